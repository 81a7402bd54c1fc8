"""Sources: records by number, and what every source shares; the sources of files are in `formats`."""

from gpuload.sources.arrays import arrays
from gpuload.sources.compose import concat, zip
from gpuload.sources.mix import mix
from gpuload.sources.records import records

__all__ = ["arrays", "concat", "mix", "records", "zip"]
