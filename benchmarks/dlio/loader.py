"""gpuload as a data loader of DLIO: a class that DLIO's configuration names.

    reader:
      data_loader: custom
      data_loader_classname: benchmarks.dlio.loader.GpuloadDataLoader
      data_loader_sampler: none

Files    those that DLIO generated and lists: NPZ (the array ``x``), JPEG (RGB pixels), TFRecord
         (the bytes ``image``)
Order    the records of ``file_list_train`` or ``file_list_eval``; shuffled as a whole where the
         configuration shuffles files or samples, anew in each epoch by DLIO's seed; the same in
         each where ``seed_change_epoch`` is off
Batches  whole ones alone, as DLIO counts them; at each step the ranks together take the next
         records of one order
Values   NumPy arrays with the decoded records themselves: one array where all have one size, else a
         list or a ``Ragged`` of one. DLIO's own readers decode as much, and then hand out one and
         the same random image. DLIO's JPEGs are gray: Pillow, by which DLIO reads them, leaves them
         so; here, as in trainings, they become RGB
Threads  ``read_threads`` and ``prefetch_size``; 0 leaves them to gpuload
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import gpuload as gl
from gpuload.errors import SpecError

Paths = Sequence[str]
Opening = tuple[gl.Source, list[Any], str]  # the source, its ops, the field that is handed out


class GpuloadDataLoader(BaseDataLoader):
    """DLIO makes one for each set of files, calls ``read`` once, and loops over ``next()`` in each
    epoch."""

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.CUSTOM)

    def read(self) -> None:
        """Open the files, and make the loader for this rank.

        Raises:
            SpecError: DLIO's configuration asks for what this loader does not do.
        """
        args = self._args
        _check_arguments(args, self.format_type)
        paths = (
            args.file_list_train if self.dataset_type is DatasetType.TRAIN else args.file_list_eval
        )
        source, ops, name = OPENERS[self.format_type](paths, args)
        if len(source) != self.num_samples:
            raise SpecError(
                f"{len(source)} records in {len(paths)} files of {self.dataset_type}",
                cause=f"DLIO's configuration says {self.num_samples}",
                remedy="generate the files anew, with this configuration",
            )
        self._loader = gl.Loader(
            source,
            self.batch_size,
            ops=ops,
            output=name,
            shuffle={Shuffle(args.sample_shuffle), Shuffle(args.file_shuffle)}
            != {Shuffle.OFF},  # one may be a text
            seed=args.seed,
            shard_id=args.my_rank,
            num_shards=args.comm_size,
            last_batch="drop",
            device="cpu",
            num_threads=args.read_threads or None,
            prefetch=args.prefetch_size or None,
        )

    def next(self) -> Iterator[Any]:
        """Yield the batches of an epoch, and of the next one when it is called again.

        DLIO leaves the loop at the last batch, so that nothing behind it runs: the epoch is counted
        in front of it.
        """
        super().next()
        epoch = self.epoch_number
        if self._args.seed_change_epoch:
            self.epoch_number += 1
        for batch in self._loader.epoch(epoch):
            yield batch.output

    def finalize(self) -> None:
        """DLIO calls this behind each epoch: the loader is there for the next one."""


def _open_npz(paths: Paths, args: Any) -> Opening:
    return gl.npz(paths, record="file", fields=["x"]), [], "x"


def _open_jpeg(paths: Paths, args: Any) -> Opening:
    size = None if args.record_length_stdev else (args.dimension, args.dimension)
    return gl.images(paths, labels=None), [gl.ops.Decode(size=size)], "image"


def _open_tfrecord(paths: Paths, args: Any) -> Opening:
    return gl.tfrecord(paths, {"image": gl.Raw("u1", (None,))}), [], "image"


OPENERS: dict[FormatType, Callable[[Paths, Any], Opening]] = {
    FormatType.NPZ: _open_npz,
    FormatType.JPEG: _open_jpeg,
    FormatType.TFRECORD: _open_tfrecord,
}


def _check_arguments(args: Any, format_type: FormatType) -> None:
    if format_type not in OPENERS:
        raise SpecError(
            f"dataset.format = {format_type}",
            cause="GpuloadDataLoader reads npz, jpeg and tfrecord",
            remedy="use one of these, or add a function to OPENERS of benchmarks/dlio/loader.py",
        )
    if args.num_samples_per_file > 1 and format_type is not FormatType.TFRECORD:
        raise SpecError(
            f"dataset.num_samples_per_file = {args.num_samples_per_file} in {format_type} files",
            cause="DLIO puts the samples of an NPZ file side by side on the last axis, and one image into a JPEG",
            remedy="use num_samples_per_file: 1",
        )
    if args.preprocess_time or args.preprocess_time_stdev:
        raise SpecError(
            f"reader.preprocess_time = {args.preprocess_time}",
            cause="DLIO's readers sleep for that; GpuloadDataLoader only does real work",
            remedy="leave it out",
        )
