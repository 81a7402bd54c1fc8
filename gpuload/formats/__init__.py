"""Formats: one module or folder each."""
