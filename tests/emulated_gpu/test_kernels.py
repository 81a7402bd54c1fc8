"""Kernels on the emulated GPU: casts as a GPU makes them, what sanitizers find, and what ptxas says
of registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gpuload import device
from gpuload.kernels import edits_cuda
from tests import emulated_gpu
from tests.emulated_gpu import casts, nvrtc

pytestmark = pytest.mark.gpu

NUMBERS = [-53.3, 300.7, -1e30, 1e30, np.nan, np.inf, -np.inf, 3e9, 5e9, -0.9, 255.9]
LEAST, MOST = -(1 << 31), (1 << 31) - 1
LEAST_LONG, MOST_LONG = -(1 << 63), (1 << 63) - 1
HALF = 1 << 63  # what the PTX ISA has for nan where 64 bits are on either side

# By PTX ISA 9.0, section cvt, and the instructions below: of float32 numbers, and the last one of
# float64.
CASTS = {
    "unsigned char": [0, 44, 0, 255, 0, 255, 0, 0, 255, 0, 255],
    "signed char": [-53, 44, 0, -1, 0, -1, 0, -1, -1, 0, -1],
    "unsigned short": [0, 300, 0, 65535, 0, 65535, 0, 24064, 65535, 0, 255],
    "int": [-53, 300, LEAST, MOST, 0, MOST, LEAST, MOST, MOST, 0, 255],
    "unsigned": [0, 300, 0, 2 * MOST + 1, 0, 2 * MOST + 1, 0, 3000000000, 2 * MOST + 1, 0, 255],
    "long long": [
        -53,
        300,
        LEAST_LONG,
        MOST_LONG,
        LEAST_LONG,
        MOST_LONG,
        LEAST_LONG,
        3000000000,
        5000000000,
        0,
        255,
    ],
    "unsigned long long": [
        0,
        300,
        0,
        2 * MOST_LONG + 1,
        HALF,
        2 * MOST_LONG + 1,
        0,
        3000000000,
        5000000000,
        0,
        255,
    ],
    "double int": [-53, 300, LEAST, MOST, LEAST, MOST, LEAST, MOST, MOST, 0, 255],
}
INSTRUCTIONS = {
    "unsigned char": "cvt.rzi.u32.f32",
    "signed char": "cvt.rzi.s32.f32",
    "unsigned short": "cvt.rzi.u32.f32",
    "int": "cvt.rzi.s32.f32",
    "unsigned": "cvt.rzi.u32.f32",
    "long long": "cvt.rzi.s64.f32",
    "unsigned long long": "cvt.rzi.u64.f32",
    "double int": "cvt.rzi.s32.f64",
}
DTYPES = {
    "unsigned char": np.uint8,
    "signed char": np.int8,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "double int": np.int32,
}


def cast_source(kind: str) -> str:
    """Return a kernel that casts numbers; "double int" casts float64."""
    before, after = ("double", "int") if kind == "double int" else ("float", kind)
    return f"""
extern "C" __global__ void convert(const {before}* from, {after}* to) {{
    to[threadIdx.x] = ({after})from[threadIdx.x];
}}
"""


@pytest.mark.parametrize("kind", list(CASTS))
def test_a_cast_makes_the_number_that_a_gpu_makes(kind):
    cupy = device.cupy()
    numbers = cupy.asarray(np.array(NUMBERS, np.float64 if kind == "double int" else np.float32))
    result = cupy.empty(len(NUMBERS), DTYPES[kind])

    cupy.RawKernel(cast_source(kind), "convert")((1,), (len(NUMBERS),), (numbers, result))

    assert result.tolist() == CASTS[kind]
    assert numbers.astype(DTYPES[kind]).tolist() == CASTS[kind]


@pytest.mark.parametrize("kind", list(CASTS))
def test_nvrtc_makes_that_instruction_of_a_cast(kind):
    from cupy_backends.cuda.libs import nvrtc as compiler

    program = compiler.createProgram(cast_source(kind), "kernel.cu", (), ())
    try:
        compiler.compileProgram(program, ("-arch=compute_90",))
        assert INSTRUCTIONS[kind] in str(compiler.getPTX(program))
    finally:
        compiler.destroyProgram(program)


def test_casts_are_found_among_signs_calls_members_and_other_parentheses():
    source = "\n".join(
        [
            "typedef unsigned char Out;",
            "a = (int)x + 1; b = -(int)f(x)[2].y; c = (Out)(x * 2) / 3; d = (float)(int)(double)x;",
            "e = (unsigned char)-x; g = h(int) + (q) * 2; i = (long long)*p->q; return (int)3.5e-2f;",
            "void k(int); l = (Out*)m; n = static_cast<int>(x); o = (int)(Out)x; r = (unsigned)s.t * u;",
        ]
    )

    assert casts.as_on_a_gpu(source).splitlines() == [
        "typedef unsigned char Out;",
        "a = emulated::to<int>(x) + 1; b = -emulated::to<int>(f(x)[2].y); c = emulated::to<Out>((x * 2)) / 3; "
        "d = (float)emulated::to<int>((double)x);",
        "e = emulated::to<unsigned char>(-x); g = h(int) + (q) * 2; i = emulated::to<long long>(*p->q); "
        "return emulated::to<int>(3.5e-2f);",
        "void k(int); l = (Out*)m; n = emulated::to<int>(x); o = emulated::to<int>(emulated::to<Out>(x)); "
        "r = emulated::to<unsigned>(s.t) * u;",
    ]


PLANTED = """
from tests import emulated_gpu
emulated_gpu.install()
import cupy
import numpy as np

SOURCE = r'''
extern "C" __global__ void right(const float* from, int number, unsigned char* to) {
    __shared__ float numbers[32];
    numbers[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = (unsigned char)(numbers[31 - threadIdx.x] + 3.5f);
}
extern "C" __global__ void past_the_end(const float* from, int number, unsigned char* to) {
    to[threadIdx.x] = from[threadIdx.x + 1] > 0.0f;
}
extern "C" __global__ void before_the_begin(const float* from, int number, unsigned char* to) {
    to[(int)threadIdx.x - 1] = 0;
}
extern "C" __global__ void past_a_local_array(const float* from, int number, unsigned char* to) {
    int numbers[4], *first = numbers;
    for (int i = 0; i < number; ++i) first[i] = i;
    to[threadIdx.x] = numbers[2];
}
extern "C" __global__ void odd_address(const float* from, int number, unsigned char* to) {
    *(int*)(to + 1) = 7;
}
extern "C" __global__ void undefined_cast(const float* from, int number, unsigned char* to) {
    to[threadIdx.x] = (unsigned char)from[threadIdx.x];
}
extern "C" __global__ void undefined_shift(const float* from, int number, unsigned char* to) {
    to[threadIdx.x] = 1 << (number + 27);
}
extern "C" __global__ void overflow(const float* from, int number, unsigned char* to) {
    to[threadIdx.x] = number * 2000000000 >> 24;
}
'''
module = cupy.RawModule(code=SOURCE)
numbers, result = cupy.full(32, -3.0, np.float32), cupy.zeros(32, np.uint8)
for name in SOURCE.split("void ")[1:]:
    name = name.partition("(")[0]
    before = emulated_gpu.num_faults()
    module.get_function(name)((1,), (32,), (numbers, np.int32(5), result))
    cupy.cuda.Device().synchronize()
    print(name, emulated_gpu.num_faults() - before, flush=True)
"""
UNDEFINED = ("odd_address", "undefined_cast", "undefined_shift", "overflow")


@pytest.mark.skipif(emulated_gpu.is_sanitizing(), reason="it starts a process that is")
def test_sanitizers_find_each_fault_that_was_planted_in_a_kernel():
    environment = {**emulated_gpu.environment(), **emulated_gpu.sanitized()}

    process = subprocess.run(
        [sys.executable, "-c", PLANTED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr[-3000:]
    faults = {
        name: int(number) for name, number in (line.split() for line in process.stdout.splitlines())
    }
    assert faults.pop("right") == 0
    assert len(faults) == 7
    assert all(faults.values()), faults
    for name in UNDEFINED:
        assert re.search(rf"emulated GPU: {name}: .*, \w{{8}}\.cu, line \d+\n", process.stderr)
    assert "AddressSanitizer: heap-buffer-overflow" in process.stderr
    assert "AddressSanitizer: stack-buffer-overflow" in process.stderr


@pytest.mark.skipif(emulated_gpu.is_sanitizing(), reason="it starts a process that is not")
def test_sanitizers_that_were_not_loaded_are_an_error():
    environment = {**emulated_gpu.environment(), emulated_gpu.SANITIZE: "1"}
    program = "from tests import emulated_gpu; emulated_gpu.install()"

    process = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "needs AddressSanitizer's library in LD_PRELOAD" in process.stderr


MANY = """
extern "C" __global__ void many(const float* from, float* to) {
    float numbers[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) numbers[i] = from[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) to[i * 1024 + threadIdx.x] = numbers[i] * numbers[(7 * i + 3) % 96];
}
"""


def test_registers_and_spills_of_a_kernel_are_what_ptxas_says():
    (usage,) = nvrtc.compile_kernel(cast_source("int"), [], 90)
    (spilling,) = nvrtc.compile_kernel(MANY, ["--maxrregcount=32"], 90)
    (large,) = nvrtc.compile_kernel(MANY, [], 90)

    assert usage.kernel.startswith("convert (")
    assert (usage.spill_bytes, usage.stack_bytes, usage.problem) == (0, 0, None)
    assert 4 <= usage.registers <= 32
    assert spilling.spill_bytes > 0
    assert (
        spilling.problem
        == f"{spilling.kernel} on sm_90: {spilling.spill_bytes} bytes of registers are spilled"
    )
    assert large.problem == f"{large.kernel} on sm_90: {large.registers} registers, at most 56"
    assert (nvrtc.most_registers(75), nvrtc.most_registers(80)) == (64, 56)
    assert nvrtc.most([usage, large]).startswith(
        f"at most {large.registers} registers a thread ({large})"
    )


@pytest.mark.parametrize("card", [80, 90, 100])
def test_the_kernel_of_all_edits_takes_at_most_56_registers_and_spills_none(card):
    source = edits_cuda.source("edits_pixels.cu", 3)
    headers = [f"-I{folder}" for folder in emulated_gpu._cuda_headers()]

    (usage,) = nvrtc.compile_kernel(source, ["--fmad=false", "-ftz=true", *headers], card)

    assert usage.problem is None


def test_a_kernel_that_does_not_compile_is_an_error_with_the_compilers_words():
    with pytest.raises(nvrtc.CompileError, match="identifier"):
        nvrtc.compile_kernel('extern "C" __global__ void broken() { nothing; }', [], 90)


def test_a_kernel_of_another_translation_is_not_taken_from_what_cupy_keeps():
    assert os.environ["CUPY_CACHE_DIR"] == str(
        emulated_gpu.CACHE / "cupy" / emulated_gpu._translation()
    )
