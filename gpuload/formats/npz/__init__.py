"""NPZ files: `source.py` is the call and the source, `archive.py` the format."""
