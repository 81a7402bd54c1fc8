"""Sources: records by number, and the parts that all sources share; the sources of files are in `formats`."""

from gpuload.sources.arrays import arrays
from gpuload.sources.compose import concat, zip
from gpuload.sources.mix import mix
from gpuload.sources.records import records

__all__ = ["arrays", "concat", "mix", "records", "zip"]
