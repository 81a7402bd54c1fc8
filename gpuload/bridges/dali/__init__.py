"""A loader as the reader of your own DALI pipeline: its order, resume and checks in front of your
operators.

    @pipeline_def(batch_size=loader.batch_size, num_threads=4, device_id=0)
    def training():
        jpegs, labels, flip = reader(loader, draws={"flip": gl.ops.RandomFlip()})
        images = fn.decoders.image(jpegs, device="mixed")
        return fn.flip(images, **flip), labels

Position  DALI reads ahead of the training. The loader's position moves with each batch that comes
          out of the pipeline, so ``loader.state_dict()`` is right whenever it is asked. A pipeline
          begins where the loader is when it reads its first batch.
Epochs    The pipeline ends with ``StopIteration`` where the loader's epoch ends; ``reset`` begins
          the next one. ``last_batch=`` of the loader decides about the last records; `reader` says
          where DALI's policies do.
Errors    of the loader are raised as themselves when their step is asked for, after the batches
          before it; ``reset`` then goes on behind it. An error of your operators has a note that
          names epoch, step and records.
Draws     A random number belongs to (seed, epoch, record, name): no batch size, shard or resume
          changes it. DALI's own random operators depend on the place in the batch and on the
          batches before.
How       DALI calls a source ahead of time, and a source cannot see the outputs. So the pipeline's
          class is replaced by one derived from it (`pipeline.Fed`), which only tells `feed.ReaderFeed`
          when DALI has taken a batch, when one comes out, and when the next epoch begins.
Memory    A pipeline without a GPU reads the loader's memory itself: DALI keeps each array until it
          has used it, and the loader does not write to memory that is referred to. For a GPU DALI
          copies to memory of its own.
TensorFlow  DALI's ``DALIDataset`` takes no pipeline with a Python source of several outputs, nor
          epochs from it: use ``gltf.dataset(loader, via="plugin")``, with DALI's operators as
          ``gl.ops.Dali``.
Source    DALI 2.4,
          https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.external_source.html
"""

from gpuload.bridges.dali.batches import DaliBatches, source
from gpuload.bridges.dali.nodes import reader
from gpuload.ops.value.numbers import Numbers, coin_flip, integers, uniform

__all__ = ["DaliBatches", "Numbers", "coin_flip", "integers", "reader", "source", "uniform"]
