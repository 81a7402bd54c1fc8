"""Stats: the counters of a loader, the time of each stage, and the stage that holds the rest up."""

from gpuload.stats.bottleneck import Bottleneck, Facts
from gpuload.stats.counters import LOOP_TITLES, MEANING, STAGE_TITLES, Counters, Stats
from gpuload.stats.limits import Limits, StageLimit
from gpuload.stats.stages import STAGES, STATES, Stage, Watch, fill, mark_ranges, watch
from gpuload.stats.trace import Trace

__all__ = [
    "LOOP_TITLES",
    "MEANING",
    "STAGES",
    "STAGE_TITLES",
    "STATES",
    "Bottleneck",
    "Counters",
    "Facts",
    "Limits",
    "Stage",
    "StageLimit",
    "Stats",
    "Trace",
    "Watch",
    "fill",
    "mark_ranges",
    "watch",
]
