"""DALI executor: the ops of a graph as one DALI pipeline, on the CPU or on a GPU; the only importer
of nvidia.dali.

Flow      DALI decides nothing: random numbers come in as draws. Batches in flight are counted here,
          not by DALI: its executor takes any number of ``schedule_run`` ahead of ``outputs``, and
          its prefetch queue (which wants to be full before the first run) is set to 1.
Memory    CPU inputs are not copied, so they must not change before ``finish``; a GPU copies them on
          CuPy's current stream. Outputs are DALI's memory: it lives as long as an array, view or
          DLPack capsule of it, also after ``close``, and shares nothing with the inputs.
Streams   on a GPU outputs are bound to CuPy's current stream (``outputs(cuda_stream=)``, for
          pipelines with exec_dynamic): that stream waits for DALI's, the host does not, and DALI
          uses their memory again only in the order of that stream. A reader on another stream must
          keep them until that stream has run.
Errors    after any error the pipeline is thrown away and the next call makes a new one (about 5
          ms), fed again with the batches that were started; so only the damaged batch raises. Its
          row is found by running halves of it. DALI's codec writes a line of its own about a
          damaged image to stderr; it has no switch for that.
Source    DALI 2.4, https://docs.nvidia.com/deeplearning/dali/user-guide/docs/pipeline.html
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

from gpuload import device as devices
from gpuload import driver, signalsafe, threads
from gpuload.errors import ClosedError, DeviceError, MissingPackageError, SpecError, missing_package
from gpuload.executors.base import Fields, find_row_error, one_row
from gpuload.executors.dali.program import PendingBatch, Program, Reads, feedable, reason, refusal
from gpuload.graph.graph import Graph
from gpuload.ops.base import Draw, RowError
from gpuload.ops.value.decode import REGIONS_ON_GPU, decoder_on_gpu

OLDEST = (2, 4)


class DaliExecutor:
    """Runs a graph in DALI; a ``BatchExecutor``.

    Args:
        graph: the ops.
        device: ``"cpu"`` or ``"gpu:N"``.
        batch_size: the largest batch; any smaller one will do.
        num_threads: DALI's worker threads, for decoding and the other CPU work.

    Raises:
        MissingPackageError: DALI, or for a GPU CuPy, is not installed.
        DeviceError: the GPU cannot be used; the cause is named.
        SpecError: a field has a dtype or rank that DALI has not, or DALI refuses an op.
    """

    kind: Literal["batches"] = "batches"
    name = "dali"
    any_length = bundles = False

    def __init__(
        self, graph: Graph, *, device: str = "cpu", batch_size: int, num_threads: int
    ) -> None:
        self.graph, self.device = graph, devices.choose(device)[0]
        self.batch_size, self.num_threads = batch_size, num_threads
        self._dali = load(self.device)
        device_id = None if self.device == "cpu" else devices.number(self.device)
        self._program = Program(self._dali, graph, device_id)
        self._pending: deque[PendingBatch] = deque()
        self._reads = Reads()
        self._closed = False
        # The pipeline is built now: so an op that DALI refuses is an error of the loader, not of
        # its first batch.
        self._pipeline: Any = None
        self._pipeline = self._take()

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Queue a batch; see ``BatchExecutor``.

        Raises:
            SpecError: fields or draws do not fit the graph. Nothing was started then.
        """
        batch = self._program.check(fields, draws, self.batch_size)
        pipeline = self._take()
        if pipeline is not None:
            self._feed(pipeline, batch.inputs)
        self._pending.append(batch)
        # Last: after an exception at any line above ``self`` has no pipeline, and the next call
        # builds one and feeds it with all pending batches.
        self._pipeline = pipeline

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started; see ``BatchExecutor``.

        Raises:
            RowError: a row cannot be decoded; the other batches that were started are not touched
                by that.
            DeviceError: the GPU failed, out of memory say.
            SpecError: DALI refuses the batch as a whole, or no batch was started.
        """
        if not self._pending:
            raise SpecError("finish()", cause="no batch was started", remedy="call start() before")
        try:
            pipeline = self._take()
        except Exception:
            self._pending.popleft()  # else the next call would return this batch
            raise
        if pipeline is None:
            self._pending.popleft()
            return {}
        outputs, failure = self._outputs(pipeline)
        batch = self._pending.popleft()
        if failure is not None:
            pipeline = None
            raise self._batch_error(batch, failure) from failure
        # Before the checks: values that an op cannot take are no fault of the pipeline.
        self._pipeline = pipeline
        batch.checks.answer()
        return self._program.values(outputs, self._reads)

    def row_error(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used; see ``BatchExecutor``.

        Raises:
            DeviceError: the GPU failed.
        """
        return find_row_error(lambda: self.run_row(fields, draws, row))

    def run_row(self, fields: Fields, draws: Sequence[Draw], row: int) -> Fields:
        """Return the fields of one row of a batch, as a batch of its own, in a pipeline of its own.

        Raises:
            RowError: the row cannot be used; its row is 0.
            DeviceError: the GPU failed.
        """
        batch = self._program.check(*one_row(fields, draws, row), self.batch_size)
        batch.checks.answer()
        pipeline = self._program.build(1, self.num_threads)
        self._feed(pipeline, batch.inputs)
        outputs, failure = self._outputs(pipeline)
        if failure is not None:
            problem = refusal("DALI refuses a record", failure, only=self._program.is_only)
            if isinstance(problem, DeviceError):
                raise problem
            raise RowError(0, reason(failure))
        return self._program.values(outputs, self._reads)

    def reset(self) -> None:
        """Forget the batches that were started and not finished; waits for those that DALI has
        begun."""
        if self._pending:
            self._pipeline = None
            self._pending.clear()

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        decoder = "none: no encoded images"
        if self._program.decodes and self.device == "cpu":
            decoder = "libjpeg-turbo and the other CPU codecs in DALI"
        elif self._program.decodes:
            decoder = decoder_on_gpu(self.graph.ops)
        return {
            "executor": f"dali {self._dali.__version__}, pipeline mode",
            "device": self.device,
            "decoder": decoder,
            **regions(self.graph, self.device),
            "threads": str(self.num_threads),
        }

    def close(self) -> None:
        """Give back threads and memory; results that were returned stay valid."""
        self.reset()
        self._reads.close()
        self._pipeline, self._closed = None, True

    def _take(self) -> Any:
        """Return the pipeline, fed with all that was started; None if the graph has no op.

        While it is in use it is not in ``self``: after an interrupted call there is none, and the
        next call makes one.
        """
        if self._closed:
            raise ClosedError(
                "a DALI executor that was closed",
                cause="close() was called",
                remedy="make a new one",
            )
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None and self._program.names:
            pipeline = self._program.build(self.batch_size, self.num_threads)
            # DALI loses its inputs when a pipeline ends; PendingBatch keeps the inputs until
            # their outputs are taken.
            for batch in self._pending:
                self._feed(pipeline, batch.inputs)
        return pipeline

    def _batch_error(self, batch: PendingBatch, error: Exception) -> Exception:
        """Return the error to raise for a batch that DALI refused."""
        subject = f"DALI refuses a batch of {batch.count} on {self.device}"
        problem = refusal(subject, error, only=self._program.is_only)
        if isinstance(problem, DeviceError):
            return problem
        return self._damaged_row(batch) or problem

    def _damaged_row(self, batch: PendingBatch) -> RowError | None:
        """Return the first row that DALI refuses, found by halves; None if it takes each half
        alone.

        A pipeline has tens of MB on a GPU, and building it takes 5 ms: that of the first half
        serves the others, until it refuses rows.
        """
        first, count, pipeline = 0, batch.count, None
        while True:
            half = max(count // 2, 1)
            if pipeline is None:
                pipeline = self._program.build(half, self.num_threads)
            failure = self._try_rows(pipeline, batch, first, half)
            if failure is not None:
                pipeline = None  # it is of no use any more
            if count == 1:
                if failure is None:
                    return None
                return RowError(first, reason(failure))
            if failure is not None:
                first, count = (first, half)
            else:
                first, count = (first + half, count - half)

    def _try_rows(
        self, pipeline: Any, batch: PendingBatch, first: int, count: int
    ) -> Exception | None:
        """Return DALI's error for some rows of a batch, run by themselves."""
        self._feed(
            pipeline, {name: values[first : first + count] for name, values in batch.inputs.items()}
        )
        return self._outputs(pipeline)[1]

    def _feed(self, pipeline: Any, inputs: dict[str, Any]) -> None:
        try:
            for name, values in inputs.items():
                pipeline.feed_input(name, feedable(self._dali, values), cuda_stream=self._stream())
            pipeline.schedule_run()
        except (
            Exception
        ) as error:  # DALI's C++ may throw any: RuntimeError, ValueError, IndexError ...
            raise refusal("DALI does not take a batch", error) from error.with_traceback(None)

    def _outputs(self, pipeline: Any) -> tuple[Any, Exception | None]:
        """Return the outputs of the oldest run, or DALI's error, without the frames that keep the
        pipeline alive."""
        try:
            return pipeline.outputs(cuda_stream=self._stream()), None
        except Exception as error:  # as in _feed
            return None, error.with_traceback(None)

    def _stream(self) -> Any:
        """Return CuPy's current stream; None on the CPU."""
        if self.device == "cpu":
            return None
        return devices.cupy().cuda.get_current_stream().ptr


def regions(graph: Graph, device: str) -> dict[str, str]:
    """Return the line of ``describe`` about regions of images; none where no op uses a region."""
    if all(crop is None for crop in graph.crops):
        return {}
    if device == "cpu":
        return {"regions": "decoded alone"}
    return {"regions": f"on {device} {REGIONS_ON_GPU}"}


def load(device: str) -> ModuleType:
    """Return the module ``nvidia.dali``, able to use the device."""
    try:
        dali = signalsafe.import_package("nvidia.dali")
    except ImportError as error:
        remedy = driver.install_packages(device)
        raise missing_package(
            "nvidia-dali", needed_for='executor="dali"', remedy=remedy, error=error
        ) from None
    threads.end_first()  # DALI shuts its pipelines down at the end, and wants none to be made meanwhile
    if tuple(map(int, dali.__version__.split(".")[:2])) < OLDEST:
        raise MissingPackageError(
            f"nvidia-dali {dali.__version__}",
            cause="before 2.4 it makes other pixels of images that are turned or have 16 bits",
            remedy=f"install nvidia-dali {OLDEST[0]}.{OLDEST[1]} or later, or write "
            "executor='array'",
        )
    if device != "cpu" and (problem := _device_problem(dali, devices.number(device))):
        raise DeviceError(
            f"DALI on {device}",
            cause=problem,
            remedy="install the driver that this DALI needs (nvidia-smi shows it); or write "
            "executor='array' and leave "
            "decode= out, which does without DALI; or use device='cpu'",
        )
    return dali


def _device_problem(dali: ModuleType, number: int) -> str:
    """Return why DALI cannot use the GPU of a number; "" if it can."""
    try:
        num_gpus = dali.backend.GetCUDADeviceCount()
    except RuntimeError as error:  # a driver that is too old for this DALI, say
        return " ".join(str(error).split())
    if number < num_gpus:
        return ""
    return f"DALI sees {num_gpus} GPUs"
