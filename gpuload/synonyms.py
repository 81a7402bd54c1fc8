"""Synonyms: names that other libraries have, and the form of gpuload that does the same.

Of loaders and sources they are attributes in tf.data, torch and pandas; of `gl` and `gl.ops`
classes and functions in torch, torchvision, Albumentations, Keras, Kornia and DALI.

They are no attributes: ``hasattr`` is False, and the answer is the error of a program that uses
one. Nothing here is called for an attribute that is there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gpuload.errors import UnknownAttributeError

MOST_NEAR = 3  # names, in an error

LOADER = {
    "as_numpy_iterator": "for batch in loader: the batches are NumPy arrays already",
    "batch": "gl.Loader(source, batch_size=64)",
    "columns": "loader.spec_out.names",
    "dataset": "loader.source, or gltf.dataset(loader) for model.fit (from gpuload.bridges import tensorflow as gltf)",
    "dtype": "loader.spec_out, which has the dtype of each field",
    "enumerate": "for batch in loader: batch.step counts from 0",
    "filter": "gl.Loader(source.filter(function), ...)",
    "get_next": "batches = iter(loader), and next(batches); loader.peek() looks at the next batch",
    "head": "loader.peek(), which looks at the next batch",
    "keys": "loader.spec_out.names",
    "map": "gl.Loader(source, ops=[gl.ops.Python(function)], ...)",
    "next": "batches = iter(loader), and next(batches); loader.peek() looks at the next batch",
    "repeat": "for epoch in range(10): for batch in loader; gltf.dataset(loader).repeat() for model.fit",
    "reset": "loader.replace(), a new loader at its beginning; loader.epoch(0) is epoch 0 from its beginning",
    "seek": "loader.load_state_dict(loader.state_dict(epoch=0, step=100))",
    "set_epoch": "each for is the next epoch; loader.load_state_dict(loader.state_dict(epoch)) goes to one",
    "shape": "loader.spec_out, which has the shape of each field",
    "shard": "gl.Loader(source, shard_id=rank, num_shards=ranks, ...)",
    "shuffle": "gl.Loader(source, shuffle=True, seed=1, ...)",
    "skip": "loader.load_state_dict(loader.state_dict(epoch=0, step=100))",
    "take": "itertools.islice(loader, 100) for steps; gl.Loader(source[:1000], ...) for records",
    "unbatch": "for record in loader.source",
}
SOURCE = {
    "as_numpy_iterator": "source.read([3, 1, 4]), a dict of NumPy arrays",
    "batch": "gl.Loader(source, batch_size=64)",
    "class_indices": "{name: number for number, name in enumerate(source.classes)}",
    "class_names": "source.classes, that of label 0 first",
    "class_to_idx": "{name: number for number, name in enumerate(source.classes)}",
    "columns": "source.spec.names",
    "concat": "gl.concat(source, other)",
    "concatenate": "gl.concat(source, other)",
    "dtype": "source.spec, which has the dtype of each field",
    "enumerate": "gl.zip(source, gl.arrays(number=numpy.arange(len(source))))",
    "fields": "source.spec.names; source.spec has dtype and shape of each",
    "head": "source.read(range(5))",
    "iloc": "source[i], or source.read([3, 1, 4])",
    "items": "source.read(range(len(source))).items()",
    "keys": "source.spec.names",
    "map": "gl.Loader(source, ops=[gl.ops.Python(function)], ...)",
    "numpy": "source.read(range(len(source)))",
    "peek": "source[0], or source.read(range(5))",
    "prefetch": "gl.Loader(source, ...), which reads ahead",
    "repeat": "for epoch in range(10): for batch in loader",
    "shape": "len(source), and source.spec, which has the shape of each field",
    "shard": "gl.Loader(source, shard_id=rank, num_shards=ranks, ...), or source[rank::ranks]",
    "shuffle": "gl.Loader(source, shuffle=True, seed=1, ...)",
    "skip": "source[100:]",
    "state_dict": "loader.state_dict(), with loader = gl.Loader(source, ...)",
    "take": "source[:100]",
    "to_numpy": "source.read(range(len(source)))",
    "values": "source.read(range(len(source))).values()",
    "zip": "gl.zip(source, other)",
}
PACKAGE = {
    "DataLoader": "gl.Loader(source, batch_size=64, shuffle=True)",
    "Dataset": "gl.open(path), or gl.records(length, read) of a reader of your own",
    "ImageFolder": "gl.images(path)",
    "TFRecordDataset": "gl.tfrecord(paths)",
    "TensorDataset": "gl.arrays(image=images, label=labels)",
    "augmentations": "gl.ops",
    "from_tensor_slices": "gl.arrays(image=images, label=labels)",
    "image_dataset_from_directory": "gl.images(path)",
    "image_folder": "gl.images(path)",
    "layers": "gl.ops",
    "load": "gl.open(path)",
    "read_csv": "gl.csv(paths)",
    "transforms": "gl.ops",
}
OPS = {
    "Augmix": "gl.ops.AugMix()",
    "Autocontrast": "gl.ops.AutoContrast(p=0.5)",
    "BBoxSafeRandomCrop": "gl.ops.RandomIoUCrop()",
    "BboxParams": "source.mark(boxes='xywh'): ops that move the image move boxes, and clip them",
    "Blur": "gl.ops.GaussianBlur(23, (0.1, 2.0))",
    "BrightnessContrast": "gl.ops.ColorJitter(brightness=0.2, contrast=0.2)",
    "CategoryEncoding": "gl.ops.OneHot(10), on the field 'label'",
    "Clahe": "gl.ops.CLAHE()",
    "ClampBoundingBoxes": "source.mark(boxes='xywh'): ops that move the image move boxes, and clip them",
    "CoarseDropout": "gl.ops.Cutout(16, count=8)",
    "ColorTwist": "gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "Compose": "ops=[gl.ops.RandomFlip(), gl.ops.Normalize(127.5, 127.5)], a list, in gl.Loader",
    "ConvertBoundingBoxFormat": "source.mark(boxes='xywh'): ops that move the image move boxes, and clip them",
    "ConvertColor": "gl.ops.ColorSpace('BGR')",
    "ConvertDtype": "gl.ops.Normalize(0, 255), float32 from 0 to 1; or gl.ops.Cast('float32')",
    "ConvertImageDtype": "gl.ops.Normalize(0, 255), float32 from 0 to 1; or gl.ops.Cast('float32')",
    "Crop": "gl.ops.RandomCrop(224, 224)",
    "CropMirrorNormalize": "gl.ops.RandomCrop(224), gl.ops.RandomFlip(), gl.ops.Normalize(127.5, 127.5)",
    "CutOut": "gl.ops.Cutout(16)",
    "Cutmix": "gl.ops.CutMix()",
    "DecodeImage": "gl.ops.Decode()",
    "DecodeJpeg": "gl.ops.Decode()",
    "ElasticTransform": "gl.ops.Elastic(50, sigma=5)",
    "Flip": "gl.ops.RandomFlip(horizontal=True, vertical=True)",
    "FromFloat": "gl.ops.Cast('uint8')",
    "GaussNoise": "gl.ops.GaussianNoise(0.05), a part of the white level",
    "GrayScale": "gl.ops.Grayscale(p=0.2)",
    "Greyscale": "gl.ops.Grayscale(p=0.2)",
    "GridDropout": "gl.ops.GridMask()",
    "HorizontalFlip": "gl.ops.RandomFlip()",
    "HueSaturationValue": "gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "ImageCompression": "gl.ops.JpegArtefacts((40, 90))",
    "ImageDecoder": "gl.ops.Decode()",
    "InvertImg": "gl.ops.Invert(p=0.5)",
    "JPEG": "gl.ops.JpegArtefacts((40, 90))",
    "JpegCompression": "gl.ops.JpegArtefacts((40, 90))",
    "JpegCompressionDistortion": "gl.ops.JpegArtefacts((40, 90))",
    "Lambda": "gl.ops.Python(function)",
    "LargeScaleJitter": "gl.ops.ScaleJitter(1024)",
    "LetterBox": "gl.ops.Resize(640, 640, fit=True), gl.ops.Pad(640, 640, fill=114)",
    "Letterbox": "gl.ops.Resize(640, 640, fit=True), gl.ops.Pad(640, 640, fill=114)",
    "LoadImage": "gl.ops.Decode()",
    "LongestMaxSize": "gl.ops.Resize(longer=256)",
    "Map": "gl.ops.Python(function)",
    "Mixup": "gl.ops.MixUp()",
    "OneHotEncoding": "gl.ops.OneHot(10), on the field 'label'",
    "PILToTensor": "gl.ops.Transpose('CHW') behind all others; images are HWC",
    "PadIfNeeded": "gl.ops.Pad(224, 224)",
    "Permute": "gl.ops.Transpose('CHW') behind all others; images are HWC",
    "Randaugment": "gl.ops.RandAugment()",
    "RandomAdjustSharpness": "gl.ops.Sharpness(0, 2, p=0.5)",
    "RandomAffine": "gl.ops.Affine(15, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)",
    "RandomApply": "gl.ops.Sometimes(0.5, [gl.ops.Invert()])",
    "RandomAugment": "gl.ops.RandAugment()",
    "RandomAutocontrast": "gl.ops.AutoContrast(p=0.5)",
    "RandomBrightness": "gl.ops.Brightness(0.8, 1.2)",
    "RandomBrightnessContrast": "gl.ops.ColorJitter(brightness=0.2, contrast=0.2)",
    "RandomChannelPermutation": "gl.ops.ChannelShuffle()",
    "RandomChannelShuffle": "gl.ops.ChannelShuffle()",
    "RandomChoice": "gl.ops.OneOf([gl.ops.Invert(), gl.ops.Equalize()])",
    "RandomClahe": "gl.ops.CLAHE()",
    "RandomColorDegeneration": "gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "RandomColorJitter": "gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "RandomContrast": "gl.ops.Contrast(0.8, 1.2)",
    "RandomCutMix": "gl.ops.CutMix()",
    "RandomCutout": "gl.ops.Cutout(16)",
    "RandomElasticTransform": "gl.ops.Elastic(50, sigma=5)",
    "RandomEqualize": "gl.ops.Equalize(p=0.5)",
    "RandomErasing": "gl.ops.Erasing(p=0.25)",
    "RandomGamma": "gl.ops.Gamma(0.8, 1.25)",
    "RandomGaussianBlur": "gl.ops.GaussianBlur(23, (0.1, 2.0))",
    "RandomGaussianNoise": "gl.ops.GaussianNoise(0.05), a part of the white level",
    "RandomGrayscale": "gl.ops.Grayscale(p=0.2)",
    "RandomHorizontalFlip": "gl.ops.RandomFlip()",
    "RandomHue": "gl.ops.Hue(-0.1, 0.1), parts of a turn",
    "RandomInvert": "gl.ops.Invert(p=0.5)",
    "RandomJPEG": "gl.ops.JpegArtefacts((40, 90))",
    "RandomMixUp": "gl.ops.MixUp()",
    "RandomOrder": "gl.ops.Shuffle([gl.ops.Invert(), gl.ops.Equalize()])",
    "RandomPad": "gl.ops.Pad(224, 224)",
    "RandomPerspective": "gl.ops.Perspective()",
    "RandomPhotometricDistort": "gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)",
    "RandomPosterize": "gl.ops.Posterize(4, p=0.5)",
    "RandomRotate90": "gl.ops.Rotate90()",
    "RandomRotation": "gl.ops.Rotate(15), degrees",
    "RandomSaltAndPepperNoise": "gl.ops.SaltAndPepper(0.05)",
    "RandomSaturation": "gl.ops.Saturation(0.8, 1.2)",
    "RandomScale": "gl.ops.Affine(scale=(0.8, 1.2))",
    "RandomSharpness": "gl.ops.Sharpness(0, 2, p=0.5)",
    "RandomShear": "gl.ops.Shear(10)",
    "RandomShortestSize": "gl.ops.Resize(shorter=256)",
    "RandomSizedBBoxSafeCrop": "gl.ops.RandomIoUCrop()",
    "RandomSizedCrop": "gl.ops.RandomResizedCrop(224, 224)",
    "RandomSolarize": "gl.ops.Solarize(128, p=0.5), a level of 0 to 255",
    "RandomTranslation": "gl.ops.Translate(0.1), a part of the side",
    "RandomVerticalFlip": "gl.ops.RandomFlip(horizontal=False, vertical=True)",
    "RandomZoom": "gl.ops.Affine(scale=(0.8, 1.2))",
    "ReplayCompose": "ops=[gl.ops.RandomFlip(), gl.ops.Normalize(127.5, 127.5)], a list, in gl.Loader",
    "Rescale": "gl.ops.Normalize(0, 255), which makes float32 from 0 to 1 of bytes",
    "Rescaling": "gl.ops.Normalize(0, 255), which makes float32 from 0 to 1 of bytes",
    "Rot90": "gl.ops.Rotate90()",
    "Rotation": "gl.ops.Rotate(15), degrees",
    "SafeRotate": "gl.ops.Rotate(15), degrees",
    "SaltPepper": "gl.ops.SaltAndPepper(0.05)",
    "SanitizeBoundingBox": "gl.ops.CleanBoxes()",
    "SanitizeBoundingBoxes": "gl.ops.CleanBoxes()",
    "Sequential": "ops=[gl.ops.RandomFlip(), gl.ops.Normalize(127.5, 127.5)], a list, in gl.Loader",
    "Sharpen": "gl.ops.Sharpness(0, 2, p=0.5)",
    "ShearX": "gl.ops.Shear(10)",
    "ShearY": "gl.ops.Shear(10)",
    "ShiftScaleRotate": "gl.ops.Affine(15, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)",
    "SmallestMaxSize": "gl.ops.Resize(shorter=256)",
    "Standardize": "gl.ops.PerImageStandardization()",
    "ToDtype": "gl.ops.Normalize(0, 255) for float32 from 0 to 1, or gl.ops.Cast('float32'), which leaves the values",
    "ToFloat": "gl.ops.Normalize(0, 255), which makes float32 from 0 to 1 of bytes",
    "ToGray": "gl.ops.Grayscale(p=0.2)",
    "ToImage": "nothing: images are arrays already; of files, gl.ops.Decode()",
    "ToPILImage": "nothing: images are arrays already; of files, gl.ops.Decode()",
    "ToPureTensor": "nothing: images are arrays already; of files, gl.ops.Decode()",
    "ToTensor": "gl.ops.Normalize(0, 255), which makes float32 from 0 to 1 of bytes, and gl.ops.Transpose('CHW') "
    "behind all others",
    "ToTensorV2": "gl.ops.Transpose('CHW') behind all others; images are HWC",
    "TranslateX": "gl.ops.Translate(0.1), a part of the side",
    "TranslateY": "gl.ops.Translate(0.1), a part of the side",
    "TrivialAugment": "gl.ops.TrivialAugmentWide()",
    "VerticalFlip": "gl.ops.RandomFlip(horizontal=False, vertical=True)",
    "WarpAffine": "gl.ops.Affine(15, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)",
    "crop_mirror_normalize": "gl.ops.RandomCrop(224), gl.ops.RandomFlip(), gl.ops.Normalize(127.5, 127.5)",
    "decode_image": "gl.ops.Decode()",
    "decode_jpeg": "gl.ops.Decode()",
    "one_hot": "gl.ops.OneHot(10), on the field 'label'",
    "per_image_standardization": "gl.ops.PerImageStandardization()",
}

# Arguments of other libraries, with ours: the first that the function has.
ARGUMENTS = {
    "angle": ("degrees",), "augmentations": ("ops",), "axis": ("axes",), "batch": ("batch_size",),
    "batchsize": ("batch_size",), "class_indices": ("classes",), "class_names": ("classes",),
    "class_to_idx": ("classes",), "column_names": ("header",), "columns": ("on", "columns", "fields"),
    "cval": ("fill",), "distortion_scale": ("distortion",), "drop_last": ("last_batch",),
    "drop_remainder": ("last_batch",), "dtype": ("dtypes", "columns"), "dtypes": ("columns",),
    "escape_char": ("escape",), "escapechar": ("escape",), "factor": ("low",), "field": ("on", "field"),
    "fields": ("on", "output"), "fill_value": ("fill",), "fillcolor": ("fill",), "filter": ("interpolation",),
    "func": ("fn",), "function": ("fn",), "include_columns": ("columns",), "interp": ("interpolation",),
    "keys": ("on", "output"), "kernel_size": ("kernel",), "lambd": ("fn",), "names": ("header",),
    "null_values": ("na_values",), "num_output_channels": ("channels",), "num_replicas": ("num_shards",),
    "num_workers": ("num_threads",), "order": ("axes",), "padding": ("pad", "margin"), "perm": ("axes",),
    "prefetch_factor": ("prefetch",), "prob": ("p",), "probability": ("p",), "quality_range": ("quality",),
    "quote_char": ("quote",), "quotechar": ("quote",), "quoting": ("quote",), "random_seed": ("seed",),
    "rank": ("shard_id",), "resample": ("interpolation",), "schema": ("dtypes", "columns"), "sep": ("delimiter",),
    "separator": ("delimiter",), "size": ("shorter", "height"), "skip_rows": ("skip_lines",),
    "skiprows": ("skip_lines",), "stddev": ("std", "sigma"), "transform": ("ops",), "transforms": ("ops",),
    "usecols": ("columns", "fields"), "value": ("fill",), "world_size": ("num_shards",),
}  # fmt: skip
# Words that other libraries have for values of arguments.
VALUES = {
    "bicubic": "cubic", "bilinear": "linear", "grayscale": "gray", "l": "gray", "lanczos3": "lanczos",
    "triangular": "linear",
}  # fmt: skip


def answer(owner: str, name: str, forms: dict[str, str]) -> None:
    """Raise ``UnknownAttributeError`` with our form of an attribute that is not there; return if
    none is known."""
    if name in forms:
        cause = f"there is no {name!r} here; other libraries have it by this name"
        raise UnknownAttributeError(f"{owner}.{name}", cause=cause, remedy=f"write {forms[name]}")


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that a wrong one may stand for: the same in other letters, or similar
    ones."""
    words = {word.casefold(): word for word in names if not word.startswith("_")}
    wrong = name.casefold().replace("_", "")
    if wrong in words:
        return [words[key] for key in (wrong, f"{wrong}s") if key in words]
    parts = [word for key, word in words.items() if wrong in key and len(wrong) > 2]
    near = [words[key] for key in difflib.get_close_matches(wrong, words, MOST_NEAR)]

    def similarity(word: str) -> float:
        return difflib.SequenceMatcher(None, wrong, word.casefold()).ratio()

    return sorted({*parts, *near}, key=lambda word: (word not in parts, -similarity(word), word))[
        :MOST_NEAR
    ]


def arguments_for(name: str, value: object, names: Iterable[str]) -> str:
    """Return the arguments of ours for one of another library, ``"shorter=256"``; "" if none is
    known.

    A size of two numbers is height and width; torchvision's of one number is the shorter side, or a
    square's.

    Args:
        name: the argument of the other library.
        value: that was passed.
        names: the arguments that there are.
    """
    places = list(names)
    if (
        name == "size"
        and isinstance(value, (tuple, list))
        and len(value) == 2
        and {"height", "width"} <= {*places}
    ):
        return f"height={value[0]!r}, width={value[1]!r}"
    likely = [word for word in ARGUMENTS.get(name, ()) if word in places]
    likely = likely or difflib.get_close_matches(name, places, 1)
    if name == "size" and likely:
        return f"{likely[0]}={value!r}"
    return f"{likely[0]}=" if likely else ""
