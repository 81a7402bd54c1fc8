"""The CUDA builds of TensorFlow, DALI and CuPy in one process: `python tests/cudabuilds.py`, with
or without a GPU.

They load beside one another, DALI's TensorFlow plugin, too, and a ``tf.data.Dataset`` has the
loader's batches, by a generator and by the plugin. It needs an environment with gpuload[cuda12] and
the plugin; without a GPU all runs on the CPU. `make release-check` runs it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import gpuload as gl

NUM_RECORDS, BATCH_SIZE, NUM_EPOCHS = 40, 8, 2
ROWS = np.arange(3 * NUM_RECORDS, dtype=np.float32).reshape(NUM_RECORDS, 3)
PACKAGES = (
    "tensorflow",
    "cupy",
    "nvidia.dali",
    "nvidia.dali.plugin.tf",
    "gpuload.bridges.tensorflow",
)


def main() -> None:
    """Load all, compare, and print what is there."""
    modules = {name: importlib.import_module(name) for name in PACKAGES}
    tensorflow, cupy, dali = (modules[name] for name in PACKAGES[:3])
    assert tensorflow.test.is_built_with_cuda(), "this TensorFlow was built without CUDA"
    majors = {
        "TensorFlow": int(tensorflow.sysconfig.get_build_info()["cuda_version"].partition(".")[0]),
        "CuPy": cupy.cuda.runtime.runtimeGetVersion() // 1000,
    }
    assert len(set(majors.values())) == 1, f"two CUDA majors in one process: {majors}"

    ops = [gl.ops.Normalize(0.0, 1.0, on="x")]
    with gl.Loader(gl.arrays(x=ROWS), BATCH_SIZE, ops=ops, shuffle=True, seed=3) as loader:
        rows = [batch["x"].tolist() for epoch in range(NUM_EPOCHS) for batch in loader.epoch(epoch)]
        for via in ("generator", "plugin"):
            data = modules[PACKAGES[-1]].dataset(loader.replace(), via=via)
            batches = [tensors for _ in range(NUM_EPOCHS) for tensors in data]
            assert [_only_part(tensors).numpy().tolist() for tensors in batches] == rows, via
        device = loader.device
    print(
        f"TensorFlow {tensorflow.__version__}, DALI {dali.__version__} and CuPy {cupy.__version__}, CUDA "
        f"{majors['CuPy']}, on {device}: a generator and the plugin have the loader's batches"
    )


def _only_part(tensors: object) -> object:
    """Return the one tensor of an element of a dataset."""
    parts = list(tensors.values()) if isinstance(tensors, dict) else [tensors]
    assert len(parts) == 1
    return parts[0][0] if isinstance(parts[0], tuple) else parts[0]


if __name__ == "__main__":
    main()
