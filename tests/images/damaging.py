"""A process of its own that changes image files at random and lets all decoders read them: it must
not die.

python -m tests.images.damaging COUNT KIND...
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

from gpuload.images import decode, head
from tests.images import by_dali
from tests.images.test_formats import READ


def changed(data, rng):
    """Return a file with one to four changes, half of them in its header."""
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(0, min(len(data), int(rng.choice([40, 200, len(data)])))))
        subject, count = rng.random(), int(rng.integers(1, 12))
        if subject < 0.6:
            data = data[:place] + rng.bytes(1) + data[place + 1 :]
        elif subject < 0.7:
            data = data[: len(data) - int(rng.integers(0, len(data) // 2))]
        elif subject < 0.8:
            data = data[:place] + bytes([int(rng.choice([0, 255]))]) * count + data[place + count :]
        elif subject < 0.9:
            data = data[:place] + data[place + count :]
        else:
            data = data[:place] + rng.bytes(count) + data[place:]
        data = data or b"x"
    return data


def check(data):
    """Read a file with all decoders; raise where they disagree."""
    try:
        result = head.read(data)
    except head.HeadError:
        return
    array, samples = np.frombuffer(data, np.uint8), {}
    for codec in (decode._nvimagecodec(), decode._pillow()):
        if head.FORMATS[result.kind].in_dali or codec.name.startswith("Pillow"):
            try:
                samples[codec.name] = codec.decode(array, result, None, "uint8")
                shape = samples[codec.name].shape
                assert shape == (result.height, result.width, 3), f"{codec.name}: {shape}, {result}"
            except decode.ImageError:
                samples[codec.name] = None
    if head.FORMATS[result.kind].in_dali:
        first = next(iter(samples.values()))
        expected = by_dali(data)
        assert (first is None) == (expected is None), f"nvImageCodec and DALI disagree: {result}"
        if first is not None and first.dtype == np.uint8:
            np.testing.assert_array_equal(first, expected)


def main(count, *kinds):
    warnings.simplefilter("ignore")  # of Pillow, about damaged files
    for kind in kinds:
        files = [path.read_bytes() for path in READ if path.parts[-3] == kind]
        for seed in range(count):
            print(kind, seed, flush=True)
            check(changed(files[seed % len(files)], np.random.default_rng(seed)))
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
