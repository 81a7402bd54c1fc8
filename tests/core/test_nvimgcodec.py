"""What the core declares of nvImageCodec is what the header of the installed package says, to the
byte."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuload import core
from gpuload.images import decode, native

CPP = Path(core.__file__).parent / "cpp"
STRUCTURES = {  # ours, theirs, and the members: ours to theirs where they differ
    "Properties": ("Properties", {"version": "version", "cuda_version": "cudart_version"}),
    "InstanceInfo": (
        "InstanceCreateInfo",
        {"load_builtin_modules": "", "load_extension_modules": "", "extension_path": "extension_modules_path",
         "create_messenger": "create_debug_messenger", "messenger": "debug_messenger_desc",
         "severity": "message_severity", "category": "message_category"},
    ),
    "Orientation": ("Orientation", {"rotated": "", "flip_x": "", "flip_y": ""}),
    "Plane": (
        "ImagePlaneInfo",
        {"width": "", "height": "", "row_stride": "", "num_channels": "", "sample_type": "", "precision": ""},
    ),
    "Region": (
        "Region",
        {"num_axes": "ndim", "begin": "start", "end": "end", "outside_policy": "out_of_bounds_policy",
         "outside": "out_of_bounds_samples"},
    ),
    "ImageInfo": (
        "ImageInfo",
        {"codec_name": "", "color_spec": "", "chroma_subsampling": "", "sample_format": "", "orientation": "",
         "num_planes": "", "planes": "plane_info", "buffer": "", "buffer_kind": "", "cuda_stream": ""},
    ),
    "View": ("CodeStreamView", {"image_number": "image_idx", "region": "", "bitstream_offset": ""}),
    "BackendParams": ("BackendParams", {"load_hint": "", "load_hint_policy": ""}),
    "Backend": ("Backend", {"kind": "", "params": ""}),
    "ExecutionParams": (
        "ExecutionParams",
        {"device_allocator": "", "pinned_allocator": "", "max_num_cpu_threads": "", "executor": "",
         "device": "device_id", "initialize_now": "pre_init", "skip_synchronization": "skip_pre_sync",
         "num_backends": "", "backends": ""},
    ),
    "DecodeParams": ("DecodeParams", {"apply_exif_orientation": ""}),
}  # fmt: skip
NUMBERS = {
    "int(SUCCESS)": "STATUS_SUCCESS",
    "int(DECODED)": "PROCESSING_STATUS_SUCCESS",
    "int(CPU_ONLY_DEVICE)": "DEVICE_CPU_ONLY",
    "int(CPU_ONLY_BACKEND)": "BACKEND_KIND_CPU_ONLY",
    "int(UINT8)": "SAMPLE_DATA_TYPE_UINT8",
    "int(NO_SUBSAMPLING)": "SAMPLING_NONE",
    "int(INTERLEAVED_RGB)": "SAMPLEFORMAT_I_RGB",
    "int(SRGB)": "COLORSPEC_SRGB",
    "int(HOST_MEMORY)": "IMAGE_BUFFER_KIND_STRIDED_HOST",
    "int(Type::properties)": "STRUCTURE_TYPE_PROPERTIES",
    "int(Type::instance)": "STRUCTURE_TYPE_INSTANCE_CREATE_INFO",
    "int(Type::decode_params)": "STRUCTURE_TYPE_DECODE_PARAMS",
    "int(Type::orientation)": "STRUCTURE_TYPE_ORIENTATION",
    "int(Type::region)": "STRUCTURE_TYPE_REGION",
    "int(Type::view)": "STRUCTURE_TYPE_CODE_STREAM_VIEW",
    "int(Type::image_info)": "STRUCTURE_TYPE_IMAGE_INFO",
    "int(Type::plane)": "STRUCTURE_TYPE_IMAGE_PLANE_INFO",
    "int(Type::backend)": "STRUCTURE_TYPE_BACKEND",
    "int(Type::backend_params)": "STRUCTURE_TYPE_BACKEND_PARAMS",
    "int(Type::execution_params)": "STRUCTURE_TYPE_EXECUTION_PARAMS",
}


def checks():
    """Yield an assertion for each size, place, number and function."""
    for structure, (original, members) in STRUCTURES.items():
        yield f"static_assert(sizeof({structure}) == sizeof(nvimgcodec{original}_t));"
        pairs = {
            "head.type": "struct_type",
            "head.size": "struct_size",
            "head.next": "struct_next",
            **members,
        }
        for name, other in pairs.items():
            place = f"offsetof({structure}, {name})"
            yield f'static_assert({place} == offsetof(nvimgcodec{original}_t, {other or name}), "{structure}::{name}");'
    for number, constant in NUMBERS.items():
        yield f'static_assert({number} == int(NVIMGCODEC_{constant}), "{number}");'
    text = (CPP / "nvimgcodec.hpp").read_text()
    for name, arguments in re.findall(r"int \(\*(\w+)\)\((.*)\);", text):
        count = len(arguments.split(","))
        yield f'static_assert(num_arguments(&nvimgcodec{name}) == {count}, "{name}");'


def folder():
    if core.native is None or shutil.which("g++") is None:
        pytest.skip("there is no core, or no compiler")
    path = decode.library_folder()
    if path is None or not Path(path, "include", "nvimgcodec.h").exists():
        pytest.skip("nvImageCodec is not installed, or without its header")
    return path


def test_the_header_of_the_package_says_the_same(tmp_path):
    include = Path(folder()) / "include"
    (tmp_path / "cuda_runtime_api.h").write_text("typedef struct CUstream_st* cudaStream_t;\n")
    lines = [
        "#include <cstddef>",
        "#include <nvimgcodec.h>",
        '#include "nvimgcodec.hpp"',
        "using namespace core::nvimgcodec;",
        "template <class... Ts> constexpr int num_arguments(nvimgcodecStatus_t (*)(Ts...)) { return sizeof...(Ts); }",
        *checks(),
    ]
    (tmp_path / "check.cpp").write_text("\n".join(lines))

    flags = [
        "-std=c++20",
        "-fsyntax-only",
        "-Wno-invalid-offsetof",
        f"-I{tmp_path}",
        f"-I{include}",
        f"-I{CPP}",
    ]
    result = subprocess.run(
        ["g++", *flags, tmp_path / "check.cpp"], capture_output=True, text=True, check=False
    )

    assert result.stderr == ""
    assert len(lines) > 100


def test_the_core_uses_the_library_that_is_installed():
    folder()

    assert native.codec().version == decode.codec().removeprefix("nvimgcodec ")
    assert native.how() == f"{decode.codec()}, called by the core"


@pytest.mark.parametrize(
    ("library", "message"),
    [("missing.so", "missing.so"), (None, "function nvimgcodecGetProperties")],
)
def test_another_library_is_refused(library, message):
    path = Path(folder())
    other = next(path.glob("extensions/libjpeg_turbo_ext.so*"))

    with pytest.raises(RuntimeError, match=message):
        core.native.Codec(str(library or other), str(path / "extensions"))


def test_a_version_that_the_core_does_not_know_is_refused(tmp_path):
    path = Path(folder())
    (tmp_path / "other.cpp").write_text(
        'extern "C" int nvimgcodecGetProperties(unsigned* properties) { properties[6] = 1000; return 0; }'
    )
    subprocess.run(
        ["g++", "-shared", "-fPIC", tmp_path / "other.cpp", "-o", tmp_path / "other.so"], check=True
    )

    with pytest.raises(RuntimeError, match=r"knows version 0\.9, it is 1\.0\.0"):
        core.native.Codec(str(tmp_path / "other.so"), str(path / "extensions"))
