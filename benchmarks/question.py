"""What a benchmark is: a question, its data, and the peers that answer it.

    Question   a workload: data, batch size, variants, peers
    Peer       one way of doing the work; `build(work)` makes the loader and returns `epoch`
    epoch()    one pass: an iterator of batches; called again for the next pass
    batch      one array, or a tuple of arrays, with the records along the first axis

What a consumer does with a batch is the same for every peer: `touch`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

Batch = Any
Epoch = Callable[[], Iterator[Batch]]
Role = Literal["limit", "floor", "peer", "ours"]
Cache = Literal["warm", "cold", "large"]
SLOW: tuple[Cache, ...] = (
    "cold",
    "large",
)  # storage is waited for; "large": the data is larger than memory


def is_to_tf(variant: str) -> bool:
    """Return True for the variants that hand over tf.Tensors."""
    return variant.endswith("-tf")


@dataclass(frozen=True)
class Work:
    """The work of one variant: where its files are and how much there is to do."""

    variant: str
    path: Path
    num_records: int
    batch_size: int
    cache: str = "warm"

    @property
    def num_batches(self) -> int:
        """Batches of one pass, the last one partial."""
        return -(-self.num_records // self.batch_size)

    @property
    def shuffled(self) -> bool:
        """Whether each pass visits the records in a new random order."""
        return not self.variant.startswith("sequential")

    @property
    def to_tf(self) -> bool:
        """Whether batches are handed over as tf.Tensors."""
        return is_to_tf(self.variant)


@dataclass(frozen=True)
class Peer:
    """One way of doing the work, tuned as an expert would.

    Args:
        name: how tables and plots call it.
        build: makes the loader; what it returns makes one pass over the data.
        about: its form in one line, for the table's reader.
        needs: packages it cannot work without; missing, the peer is reported as absent.
        uses: modules it loads by itself where they can be; imported before memory is measured, like
            ``needs``.
        variants: the variants it takes part in; empty for all.
        role: a limit and the floor are what others are compared with.
        cache: the states of the page cache it is measured in: only a warm one is a question to
            those who hold all data in memory, and others ask for more threads than there are cores.
    """

    name: str
    build: Callable[[Work], Epoch]
    about: str
    needs: tuple[str, ...] = ("numpy",)
    uses: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    role: Role = "peer"
    cache: tuple[str, ...] = ("warm", *SLOW)


@dataclass(frozen=True)
class Question:
    """A workload and everyone who answers it.

    Args:
        name: of its module and of its results.
        asks: the question, one line.
        limit: what the physical limit is, one line.
        prepare: ``prepare(folder, num_records)`` writes the data once and returns its path.
        num_records: of the full run, and of the smoke run.
        variants: the forms of the work; each is measured by itself.
        record_bytes: of its file, if it is asked of data larger than memory, too.
    """

    name: str
    asks: str
    limit: str
    prepare: Callable[[Path, int], Path]
    num_records: tuple[int, int]
    batch_size: int
    variants: tuple[str, ...]
    peers: tuple[Peer, ...]
    record_bytes: int = 0

    def peer(self, name: str) -> Peer:
        """Return the peer of that name."""
        return next(peer for peer in self.peers if peer.name == name)

    def jobs(self, cache: str) -> list[tuple[str, Peer]]:
        """Return what is measured in a round in a state of the cache: (variant, peer), variant by
        variant.

        Handing over to TensorFlow is no question where storage is all that counts.
        """
        return [
            (variant, peer)
            for variant in self.variants
            if not (cache == "large" and is_to_tf(variant))
            for peer in self.peers
            if variant in (peer.variants or self.variants) and cache in peer.cache
        ]

    def needs(self, variant: str, peer: Peer) -> tuple[str, ...]:
        """Return the packages that a peer cannot do a variant without; a limit hands nothing
        over."""
        packages = ("tensorflow",) if is_to_tf(variant) and peer.role != "limit" else ()
        return tuple(dict.fromkeys(peer.needs + packages))


NAMES = (
    "npy_rows",
    "npy_files",
    "npz_files",
    "fixed_images",
    "jpeg_training",
    "tfrecord",
    "csv_rows",
)
REMOTE = ("remote_rows", "remote_jpeg")  # need nginx
BY_NAME = (
    "augment",
    *REMOTE,
)  # asked only where --only names them: the first one has some hundred jobs a round


def find(name: str) -> Question:
    """Return the question of the module ``benchmarks.<name>``."""
    return cast(Question, importlib.import_module(f"benchmarks.{name}").QUESTION)


def missing(packages: tuple[str, ...]) -> list[str]:
    """Return those of the packages that are not installed."""
    return [name for name in packages if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def touch(batch: Batch) -> int:
    """Do what every consumer does with a batch, and return its number of records.

    Looks at each array in place (no copy: NumPy arrays, tf.Tensors, torch and DALI tensors on the
    host all show their memory to NumPy) and reads its first and its last element, so that nothing
    is promised only.
    """
    arrays = batch if isinstance(batch, tuple) else (batch,)
    for array in arrays:
        view = np.asarray(array)
        if view.size:
            view.item(0), view.item(-1)
    return len(arrays[0])
