"""Readable: the part of a source that functions need which read all of its records."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpuload.sources.leaf import Fields, Group, Indices, Share
from gpuload.spec import Spec


class Readable(Protocol):
    """Records by number, as `gpuload.sources.base.Source` has them; the methods are described
    there."""

    groups: tuple[Group, ...]
    spec: Spec
    _has_card: bool

    def __len__(self) -> int:
        """The number of records."""

    def resolve(self, numbers: Indices) -> list[Share]:
        """Return which leaf holds which of the records."""

    def read_groups(self, numbers: Indices, names: Collection[str]) -> Fields:
        """Return all fields of the groups that have one of these names."""

    def _line(self) -> str:
        """Return the source in one line, without its fields, for errors."""

    def fingerprint(self) -> str:
        """Return a short text that differs for other data."""
