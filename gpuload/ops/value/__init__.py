"""Ops on values: dtypes, axes, decoding, labels and functions of a user."""
