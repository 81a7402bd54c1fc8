"""Ops that cut, pad and resize: images get another size."""
