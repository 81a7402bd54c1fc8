"""Ops that make a record of several."""
