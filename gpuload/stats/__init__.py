"""Stats: the counters of a loader, the time of each stage, and the stage that holds the rest up."""

from gpuload.stats.bottleneck import Bottleneck, Facts, Limits
from gpuload.stats.counters import MEANING, Counters, Stats, fill
from gpuload.stats.stages import STAGES, STATES, Stage, Watch, mark_ranges, watch
from gpuload.stats.trace import Trace

__all__ = [
    "MEANING",
    "STAGES",
    "STATES",
    "Bottleneck",
    "Counters",
    "Facts",
    "Limits",
    "Stage",
    "Stats",
    "Trace",
    "Watch",
    "fill",
    "mark_ranges",
    "watch",
]
