"""Direct reads without a GPU: what is checked around kvikio, for which a class of this file stands
in."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload.errors import ChangedFileError
from gpuload.storage import direct
from gpuload.storage.extents import Extents
from gpuload.storage.files import look_at


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_had_the_name_only_while_kvikio_opened_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    path, other, aside = (str(tmp_path / name) for name in ("a", "b", "c"))
    Path(path).write_bytes(b"content")
    Path(other).write_bytes(b"CONTENT")

    class CuFile:
        def __init__(self, name: str, mode: str) -> None:
            if is_replaced:
                os.rename(path, aside)
                os.rename(other, path)
            self._file = open(name, "rb")  # noqa: SIM115  kvikio's handle is open until it is dropped
            if is_replaced:
                os.rename(path, other)
                os.rename(aside, path)

        def fileno(self) -> int:
            return self._file.fileno()

        def pread(self, out: np.ndarray, num_bytes: int, offset: int) -> SimpleNamespace:
            out[:] = np.frombuffer(os.pread(self.fileno(), num_bytes, offset), np.uint8)
            return SimpleNamespace(get=lambda: num_bytes)

        def __del__(self) -> None:
            self._file.close()

    kvikio = SimpleNamespace(CuFile=CuFile, set=lambda name, value: None)
    monkeypatch.setattr(direct.signalsafe, "import_package", lambda name: kvikio)
    files, _ = look_at([path], 0, lambda *_: None)
    out, zero = np.zeros(7, np.uint8), np.zeros(1, np.int64)
    extents = Extents(zero, zero, np.array([7]))

    if is_replaced:
        with pytest.raises(ChangedFileError):
            direct.DirectReader(1).read(files, extents, out, zero)
    else:
        direct.DirectReader(1).read(files, extents, out, zero)
        assert out.tobytes() == b"content"
