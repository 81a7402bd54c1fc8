"""Stats: what a loader counts, the time of each stage, and which stage holds the rest up."""

from gpuload.stats.bottleneck import Bottleneck, Facts, Limits
from gpuload.stats.counters import MEANING, Counters, Stats, fill
from gpuload.stats.stages import STAGES, Stage, Watch, watch

__all__ = ["MEANING", "STAGES", "Bottleneck", "Counters", "Facts", "Limits", "Stage", "Stats", "Watch", "fill", "watch"]
