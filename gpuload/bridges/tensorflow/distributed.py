"""distribute: a loader under a ``tf.distribute`` strategy, shard by shard in our order.

TensorFlow's own ways to divide a dataset do not keep our promise. Autosharding has every worker
read all records and throw most of them away, or gives each worker all of them. So a dataset of a
loader says that it can only be divided by its files, of which it has none: TensorFlow then refuses
it (``dataset``), and here each replica gets its shard of each step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.batch import arranged
from gpuload.bridges import common
from gpuload.bridges.common import Nest
from gpuload.bridges.tensorflow.data import as_yielded, checked_nest, signature_of, with_cardinality
from gpuload.bridges.tensorflow.framework import alive, tf
from gpuload.errors import SpecError

if TYPE_CHECKING:
    from gpuload.loader import Loader


def distribute(loader: Loader, strategy: Any) -> Any:
    """Return the loader as a distributed dataset of a strategy, for ``model.fit`` and for loops of
    one's own.

    Each replica gets its part of each step: with ``batch_size=256`` and 8 replicas, 32 records
    each. Which records a step has does not depend on the number of replicas, nor on that of
    workers, so a state of one run goes on in another. Every iterator begins at the loader's
    position, as with `dataset`; the callbacks count the trained steps.

    Args:
        loader: of all records, with the batch size of all replicas together; the same in every
            worker.
        strategy: ``tf.distribute.MirroredStrategy``, ``MultiWorkerMirroredStrategy`` or the default
            one.

    Raises:
        SpecError: the loader is a shard already, or its batch size cannot be divided by the number
            of replicas.
    """
    common.check_loader("distribute", loader)
    if not hasattr(strategy, "distribute_datasets_from_function"):
        raise SpecError(
            f"distribute(loader, {strategy!r})"[:200],
            cause="it is no strategy of tf.distribute",
            remedy="pass tf.distribute.MirroredStrategy(), say",
        )
    num_replicas = strategy.num_replicas_in_sync
    if loader.num_shards != 1 or loader.batch_size % num_replicas:
        raise SpecError(
            f"a loader of {loader.num_shards} shards with batches of {loader.batch_size}, for "
            f"{num_replicas} replicas",
            cause="its batches are divided among the replicas",
            remedy="make it without num_shards=, and with a batch_size that is a multiple of "
            f"{num_replicas}",
        )
    names, nest = checked_nest(loader)
    common.warn_of_padding("distribute", loader)
    per_replica = loader.batch_size // num_replicas

    def shards_of(context: Any) -> list[Loader]:
        """Return the loaders of the replicas of a worker."""
        local = num_replicas // context.num_input_pipelines
        first = context.input_pipeline_id * local
        changed = {"batch_size": per_replica, "num_shards": num_replicas}
        return [loader.replace(shard_id=first + number, **changed) for number in range(local)]

    loaders = [loader]

    def make_dataset(context: Any) -> Any:
        shard_loaders = shards_of(context)
        loaders.extend(shard_loaders)
        # TensorFlow keeps the generators of all datasets for ever; loaders must not live as long.
        weak, weak_shards = weakref.ref(loader), [weakref.ref(shard) for shard in shard_loaders]

        def epoch() -> Iterator[Nest]:
            loader, shards = alive(weak), [alive(shard) for shard in weak_shards]
            start = loader.position
            for shard in shards:
                shard.port.go_to(start)
            runs = [shard.port.ahead() for shard in shards]
            loader.port.follow(runs[0])
            # The replicas of a worker take its elements in turn, so the shards of one step follow
            # one another.
            for batches in zip(*runs, strict=True):
                arrays = [
                    arranged(nest, {name: as_yielded(shard, batch[name]) for name in names})
                    for shard, batch in zip(shards, batches, strict=True)
                ]
                yield from arrays

        signature = arranged(
            nest, {name: signature_of(shard_loaders[0].spec_out[name], None) for name in names}
        )
        return with_cardinality(
            tf.data.Dataset.from_generator(epoch, output_signature=signature),
            len(loader) * len(shard_loaders),
        )

    distributed = strategy.distribute_datasets_from_function(make_dataset)
    # TensorFlow 2.21 takes the length of a worker's dataset, which has an element for each replica,
    # for the number of steps, and Keras then warns that the data ended early.
    distributed._cardinality = np.int64(len(loader))
    distributed._gpuload_loaders = loaders  # it keeps them, as a dataset keeps its loader
    return distributed
