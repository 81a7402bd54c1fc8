"""The files of a source: one value that says all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpuload.errors import RecordError


@dataclass(frozen=True)
class SourceFiles:
    """The files that a source reads; none where its records lie in no files.

    Attributes:
        paths: absolute paths, and URLs, of the files that are read; `gl.convert` does not write
            over them.
        counts: how many records each file has, where the source is these files, whole and in order;
            else None.
        originals: the files that were named where ``paths`` are unpacked copies of them; () where
            they are the same.
        checks: each yields file and error of the damage that reading records does not show: of sums
            over more than a record.
    """

    paths: Sequence[str] = ()
    counts: Sequence[int] | None = None
    originals: Sequence[str] = ()
    checks: tuple[Callable[[], Iterator[tuple[str, RecordError]]], ...] = ()

    @classmethod
    def of_parts(cls, parts: Sequence[SourceFiles]) -> SourceFiles:
        """Return the files of a source that is made of others."""
        if len(parts) == 1:
            return cls(parts[0].paths, checks=parts[0].checks)
        paths = [path for part in parts for path in part.paths]
        return cls(paths, checks=tuple(check for part in parts for check in part.checks))

    @property
    def whole(self) -> tuple[Sequence[str], Sequence[int]]:
        """The files that were named, and the number of records of each; none if the source is not
        whole files."""
        if self.counts is None:
            return ((), ())
        return (self.originals or self.paths, self.counts)

    def verify(self) -> Iterator[tuple[str, RecordError]]:
        """Yield file and error of each damage that reading records does not show."""
        for check in self.checks:
            yield from check()
