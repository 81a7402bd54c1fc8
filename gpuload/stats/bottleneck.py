"""Bottleneck: one sentence that names the stage that holds the rest up, and the one change that
helps most.

Rules are data: each is a cause, a test of figures, a finding in words, and a remedy. The first rule
with a true test gives the sentence; so a rule may assume that those above it are false. Figures
come from the counters of a loader, facts about it, and the limits of the machine where they were
measured.

Order   First the loop: where training hardly waits, no change of the loader helps; where the
        hand-over takes the time, the threads do not matter. Then the stage on which the threads
        spend most of their time. A stage with a cause of its own (storage, Python, large images)
        comes before the number of threads and cores, which every stage has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuload.stats.limits import Limits

SMALL_WAIT = 0.1  # of the loop: a faster loader gains no more
SMALL_FILE_BYTES = (
    256 << 10
)  # to open a file costs as much as to read so many bytes from a disk that is fast
SMALL_BATCH_BYTES, SMALL_BATCH_S = 64 << 10, 2e-3  # batches of mostly fixed cost
MANY_PIXELS = 4  # times as many pixels are decoded as batches hold
MOSTLY = 0.5
THREADS_PER_CORE = (
    4  # where threads wait: of a store that answers in 20 ms they got 5 times the records
)
FEW_BATCHES = 2


@dataclass(frozen=True)
class Facts:
    """Facts about a loader beside its counters; 0, "" and False stand for an unknown fact.

    Attributes:
        num_threads: that it works with.
        tunes_threads: True if the loader chooses their number by its measurements.
        num_cores: that this process may use.
        num_machine_cores: that the machine has.
        batch_size: records of a batch.
        own_file_bytes: the mean size of files, where each record has a file of its own.
        reads_in_python: True if a function of the user reads records.
        python_ops: the ops that call functions of the user.
        output_pixels: of an image of a batch.
        device: ``"cpu"`` or ``"gpu:N"``.
        shuffled: True if records are read in random order.
        tuning: which number of threads and steps ahead was chosen, and why.
    """

    num_threads: int = 0
    tunes_threads: bool = False
    num_cores: int = 0
    num_machine_cores: int = 0
    batch_size: int = 0
    own_file_bytes: float = 0.0
    reads_in_python: bool = False
    python_ops: tuple[str, ...] = ()
    output_pixels: int = 0
    device: str = ""
    shuffled: bool = False
    tuning: str = ""


@dataclass(frozen=True)
class Bottleneck:
    """The stage that holds the rest up; ``str`` of it is one sentence.

    Attributes:
        cause: in a few words, the same for the same rule: ``"slow disk"``.
        finding: the figures that show it.
        remedy: the one change that helps most.
    """

    cause: str
    finding: str
    remedy: str

    def __str__(self) -> str:
        cause = f"{self.cause[:1].upper()}{self.cause[1:]}"
        return f"{cause}: {self.finding}; what helps most: {self.remedy}."


class Figures:
    """Counters in the form in which rules ask for them.

    Attributes:
        facts, limits: as of ``find_bottleneck``.
        waiting, handing_over, training, uploading: shares of the loop; uploads from memory that is
            not page-locked.
        gpu_upload, gpu_ops: time of the GPU as a share of the loop.
        largest: the stage on which the threads spend most of their time; "" if none took any. The
            time in which they had no core does not count: on a busy machine it is most of the time
            of any stage.
        share: of that stage in the time of all stages.
        busy: the share of the loop in which a thread worked.
        blocked: the share of that stage in which it waits, where the system does not tell waiting
            for a core apart (``is_clear`` is False) that too.
        waits_elsewhere: True if that waiting cannot be for Python's lock alone.
    """

    def __init__(self, counts: Mapping[str, float], facts: Facts, limits: Limits) -> None:
        self.counts, self.facts, self.limits = counts, facts, limits
        loop_s = self["loop_s"] or 1.0
        self.waiting, self.handing_over = self["wait_s"] / loop_s, self["hand_over_s"] / loop_s
        self.uploading = self["pageable_upload_s"] / loop_s
        self.gpu_upload, self.gpu_ops = self["gpu_upload_s"] / loop_s, self["gpu_ops_s"] / loop_s
        self.training = max(0.0, 1.0 - self.waiting - self.handing_over)
        times = {
            name.partition(".")[0]: value
            for name, value in counts.items()
            if name.endswith(".seconds")
        }
        # Without the time in which other programs had the core: on a busy machine it would make any
        # stage the largest.
        seconds = {name: value * (1 - self._part(name, "starved")) for name, value in times.items()}
        self.work_s = sum(seconds.values())
        if self.work_s > 0:
            self.largest = max(seconds, key=lambda name: seconds[name])
        else:
            self.largest = ""
        if self.largest:
            self.share = seconds[self.largest] / self.work_s
        else:
            self.share = 0.0
        self.seconds = seconds.get(self.largest, 0.0)
        self.busy = min(1.0, sum(times.values()) / (loop_s * max(facts.num_threads, 1)))
        waits = self._part(self.largest, "blocked") + self._part(self.largest, "off_core")
        self.blocked = min(1.0, waits / max(1 - self._part(self.largest, "starved"), 1e-9))
        self.is_clear = not self[f"{self.largest}.off_core"]
        # Where threads wait for Python's lock, one has it, and runs or waits for a core, as long as
        # training waits.
        unblocked_s = times.get(self.largest, 0.0) * (1 - min(1.0, waits))
        self.waits_elsewhere = self.blocked > MOSTLY and unblocked_s < MOSTLY * self["wait_s"]

    def _part(self, stage: str, state: str) -> float:
        """Return the share of a stage's time in which its threads were in a state; see `Stage`."""
        return min(1.0, self[f"{stage}.{state}"] / (self[f"{stage}.sampled"] or 1.0))

    def __getitem__(self, name: str) -> float:
        return self.counts.get(name, 0.0)

    def per_batch(self, name: str) -> float:
        """Return a counter for each batch."""
        return self[name] / max(self["batches"], 1.0)

    @property
    def read_rate(self) -> float:
        """Bytes that were read for each second of the loop."""
        return self["read.bytes"] / (self["loop_s"] or 1.0)

    @property
    def pixels(self) -> float:
        """Pixels that were decoded of each image."""
        return self["decode_images.pixels"] / (self["decode_images.images"] or 1.0)

    @property
    def batch_is_tiny(self) -> bool:
        """True if a batch is so small that its fixed cost is most of its time."""
        work_s = (self.work_s + self["hand_over_s"]) / max(self["batches"], 1.0)
        return self.per_batch("bytes") < SMALL_BATCH_BYTES and work_s < SMALL_BATCH_S

    @property
    def waits_in_words(self) -> str:
        """The waiting of the loop, and the stage that it is spent on."""
        words = WORDS.get(self.largest, self.largest)
        return f"training waited {self.waiting:.0%} of the time, and {self.share:.0%} of the threads' work was {words}"


@dataclass(frozen=True)
class Rule:
    """A cause: its test, its finding in words, and its remedy."""

    cause: str
    test: Callable[[Figures], bool]
    finding: Callable[[Figures], str]
    remedy: Callable[[Figures], str]


WORDS = {
    "draw": "random draws and the order of records",
    "read": "reading",
    "decode_raw": "decoding raw records",
    "decode_images": "decoding images",
    "ops": "ops",
    "python_ops": "Python functions",
    "upload": "uploading",
}


def find_bottleneck(
    counts: Mapping[str, float], facts: Facts, limits: Limits | None = None
) -> Bottleneck:
    """Return the bottleneck of a loop over batches.

    Args:
        counts: the counters of its loader, as `Counters` has them.
        facts: about the loader.
        limits: of the machine, None where they were not measured.
    """
    figures = Figures(counts, facts, limits or Limits())
    # The order of RULES is a part of their meaning; the last one is always true.
    rule = next(rule for rule in RULES if rule.test(figures))
    return Bottleneck(rule.cause, rule.finding(figures), rule.remedy(figures))


def _disk_finding(figures: Figures) -> str:
    if figures.facts.shuffled:
        limit = figures.limits.random_bytes
    else:
        limit = figures.limits.sequential_bytes
    if figures.facts.shuffled:
        order = "in random order"
    else:
        order = "in their order"
    waits = f"{figures.waits_in_words}, {figures.blocked:.0%} of which waits for storage"
    if not figures.is_clear:
        waits += " or for a core, which this system does not tell apart"
    rate = f"at {figures.read_rate / 1e6:,.0f} MB/s"
    if limit:
        rate += f"; this storage gives {limit / 1e6:,.0f} MB/s of these files {order}"
    return f"{waits}, {rate}"


def _disk_remedy(figures: Figures) -> str:
    facts, count = figures.facts, THREADS_PER_CORE * figures.facts.num_cores
    remedy = "files on a faster disk, or source.cache(memory=...) if the records fit into memory"
    if facts.shuffled:
        remedy += ", or shuffle=gl.Blocks(...), which reads neighbours together"
    # A loader that tunes tries more threads by itself.
    if not facts.tunes_threads and 0 < facts.num_threads < count:
        network = "where the storage answers many reads at a time, as a network's does"
        return f"num_threads={count} {network}; else {remedy}"
    return remedy


def _reader_finding(figures: Figures) -> str:
    text = f"{figures.waits_in_words} by the function of gl.records"
    if figures.waits_elsewhere:
        return (
            f"{text}, {figures.blocked:.0%} of which is waiting, for storage or a network perhaps"
        )
    return f"{text}, and Python runs one thread at a time"


def _reader_remedy(figures: Figures) -> str:
    facts, count = figures.facts, THREADS_PER_CORE * figures.facts.num_cores
    is_fixed = figures.waits_elsewhere and not facts.tunes_threads and 0 < facts.num_threads < count
    threads = ""
    if is_fixed:
        threads = (
            f"num_threads={count}, or leave num_threads= out: calls can wait side by side; or "
        )
    return (
        f"{threads}write the records once with gl.convert(source, ...), which are then read without "
        "Python; or have the "
        "function read all the numbers that it gets in one call"
    )


def _cores_finding(figures: Figures) -> str:
    facts = figures.facts
    cores = f"{_threads(facts.num_threads)} on {facts.num_cores} of {facts.num_machine_cores} cores"
    return f"{figures.waits_in_words}, with {cores}, busy {figures.busy:.0%} of the time"


def _cores_remedy(figures: Figures) -> str:
    facts = figures.facts
    if facts.num_cores < facts.num_machine_cores:
        gap = facts.num_machine_cores - facts.num_cores
        return (
            f"give this process more of the machine's cores, {gap} of which it may not use "
            "(docker --cpus, Slurm's "
            "--cpus-per-task, taskset, OMP_NUM_THREADS)"
        )
    cache = "loader.cache(...), which does the work before the first random op once"
    remedy = f"a machine with more cores, or {cache}"
    if facts.device in ("", "cpu"):
        remedy += ", or a GPU to run the ops on"
    return remedy


def _limit_words(words: str, *rates: float) -> str:
    """Return words about limits of this machine; "" where they were not measured."""
    return words.format(*rates) if rates[-1] else ""


RULES = (
    Rule(
        "too little was measured",
        lambda figures: figures["loop_s"] <= 0 or figures["batches"] < FEW_BATCHES,
        lambda figures: f"{figures['batches']:.0f} batches were taken in a loop",
        lambda figures: "take some hundred batches with `for batch in loader`, and ask again",
    ),
    Rule(
        "pageable memory",
        lambda figures: figures.uploading > MOSTLY,
        lambda figures: (
            f"{figures.uploading:.0%} of the loop copied batches to the GPU from memory that is "
            "not page-locked"
            + _limit_words(
                ", at {:.1f} GB/s where page-locked memory gives {:.1f}",
                figures.limits.pageable_bytes / 1e9,
                figures.limits.pinned_bytes / 1e9,
            )
        ),
        lambda figures: (
            'gl.Loader(..., device="gpu"), which uploads from page-locked memory ahead of the '
            "training"
        ),
    ),
    Rule(
        "slow consumer",
        lambda figures: figures.training >= 1 - SMALL_WAIT,
        lambda figures: (
            f"training waited {figures.waiting:.1%} of the time for the loader, and its own "
            "steps took "
            f"{figures.training:.0%}"
        ),
        lambda figures: (
            "a faster training step (mixed precision, compilation, another GPU); the loader "
            "needs no change"
        ),
    ),
    Rule(
        "tiny batches",
        lambda figures: (
            figures.batch_is_tiny
            and (figures.handing_over > figures.waiting or not _is_special(figures))
        ),
        lambda figures: (
            f"a batch of {figures.per_batch('records'):.0f} records has "
            f"{figures.per_batch('bytes'):,.0f} bytes, and "
            f"what every batch costs, {1e6 * figures.per_batch('loop_s'):,.0f} us, is most of "
            "the time"
        ),
        lambda figures: (
            "a larger batch_size than "
            f"{figures.facts.batch_size or figures.per_batch('records'):.0f}"
        ),
    ),
    Rule(
        "audit",
        lambda figures: figures["audit_s"] > MOSTLY * figures["loop_s"],
        lambda figures: (
            f"training waited {figures.waiting:.0%} of the time, and a thread made "
            f"{figures['records_audited']:.0f} of "
            f"{figures['records']:.0f} records again on the CPU in "
            f"{figures['audit_s'] / figures['loop_s']:.0%} of it"
        ),
        lambda figures: "a smaller share, audit=1e-3 say",
    ),
    Rule(
        "hand-over",
        lambda figures: figures.handing_over > figures.waiting,
        lambda figures: (
            f"{figures.handing_over:.0%} of the loop made batches, and tensors of them, "
            f"{figures['tensors_copied']:.0f} of which are copies"
        ),
        lambda figures: (
            "fields that a framework takes without a copy: numbers, not text, each used by the "
            "training"
        ),
    ),
    Rule(
        "slow link to the GPU",
        lambda figures: figures.gpu_upload > max(MOSTLY, figures.gpu_ops),
        lambda figures: (
            f"training waited {figures.waiting:.0%} of the time, and uploads took "
            f"{figures.gpu_upload:.0%} of it"
            + _limit_words(
                "; page-locked memory gives {:.1f} GB/s here", figures.limits.pinned_bytes / 1e9
            )
        ),
        lambda figures: (
            "smaller records: uint8 in the files and gl.ops.Cast on the GPU, only the fields "
            "that are needed"
        ),
    ),
    Rule(
        "slow GPU ops",
        lambda figures: figures.gpu_ops > MOSTLY,
        lambda figures: (
            f"training waited {figures.waiting:.0%} of the time, and ops took "
            f"{figures.gpu_ops:.0%} of the GPU's"
        ),
        lambda figures: (
            "fewer or cheaper ops, or loader.cache(...), which does the work before the first "
            "random op once"
        ),
    ),
    Rule(
        "Python reader",
        lambda figures: figures.largest == "read" and figures.facts.reads_in_python,
        _reader_finding,
        _reader_remedy,
    ),
    Rule(
        "slow Python op",
        lambda figures: figures.largest == "python_ops",
        lambda figures: (
            f"{figures.waits_in_words} ({', '.join(figures.facts.python_ops)}), and Python runs "
            "one thread at a time"
        ),
        lambda figures: (
            "an op of gl.ops in place of the function; or let it work on whole batches with "
            "NumPy (batch=True), or do "
            "it once with loader.cache(...)"
        ),
    ),
    Rule(
        "small files",
        lambda figures: (
            figures.largest == "read" and 0 < figures.facts.own_file_bytes < SMALL_FILE_BYTES
        ),
        lambda figures: (
            f"{figures.waits_in_words} files of {figures.facts.own_file_bytes / 1e3:,.1f} kB, "
            "one for each record"
        ),
        lambda figures: "put the records into a few large files once, with gl.convert(source, ...)",
    ),
    Rule(
        "slow disk",
        lambda figures: figures.largest == "read" and figures.blocked > MOSTLY,
        _disk_finding,
        _disk_remedy,
    ),
    Rule(
        "large images",
        lambda figures: (
            figures.largest == "decode_images"
            and figures.facts.output_pixels > 0
            and figures.pixels >= MANY_PIXELS * figures.facts.output_pixels
        ),
        lambda figures: (
            f"{figures.waits_in_words}, of {figures.pixels / 1e6:,.2g} million pixels each, "
            "where batches have "
            f"{figures.facts.output_pixels / 1e6:,.2g}"
        ),
        lambda figures: (
            "store the images smaller once: gl.convert(loader, ...) behind Decode and Resize, or "
            "loader.cache(...)"
        ),
    ),
    Rule(
        "raw decoding",
        lambda figures: figures.largest == "decode_raw",
        lambda figures: figures.waits_in_words,
        lambda figures: (
            "write the records once as NPY, with gl.convert(source, ...): they need no decoding"
        ),
    ),
    Rule(
        "one thread",
        lambda figures: (
            not figures.facts.tunes_threads
            and 0 < figures.facts.num_threads < figures.facts.num_cores
        ),
        lambda figures: (
            f"{figures.waits_in_words} of {_threads(figures.facts.num_threads)}, where "
            f"{figures.facts.num_cores} cores "
            "may be used"
        ),
        lambda figures: f"num_threads={figures.facts.num_cores}, or leave num_threads= out",
    ),
    Rule(
        "copying memory",
        lambda figures: figures.largest == "read",
        lambda figures: (
            f"{figures.waits_in_words} from memory, at {figures.read_rate / 1e6:,.0f} MB/s"
            + _limit_words("; one thread copies {:,.0f} MB/s here", figures.limits.copy_bytes / 1e6)
        ),
        lambda figures: (
            "smaller records: uint8 or float16 in place of float32, and only the fields that are "
            "trained on"
        ),
    ),
    Rule("too few cores", lambda figures: True, _cores_finding, _cores_remedy),
)


def _is_special(figures: Figures) -> bool:
    """Return True if the threads spend their time on Python or storage, which larger batches do not
    make cheaper."""
    reads_slowly = figures.largest == "read" and (
        figures.facts.reads_in_python or figures.blocked > MOSTLY
    )
    return (
        reads_slowly
        or figures.largest in ("python_ops", "decode_images")
        or figures.facts.own_file_bytes > 0
    )


def _threads(count: int) -> str:
    if count == 1:
        return "one thread"
    return f"{count} threads"
