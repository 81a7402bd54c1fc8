"""Zarr: arrays of one length in folders of chunks, through the library zarr."""

METADATA = ("zarr.json", ".zgroup", ".zarray")  # of which each group and array of a store has one
FIELD = "x"  # the name of the field of an array without a group
