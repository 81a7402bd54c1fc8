"""Graphs: a list of ops that was checked against a spec, and advice about it."""
