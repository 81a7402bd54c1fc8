"""TFRecord files: `source.py` is the call and the source, `features.py` the user's description of
the fields."""
