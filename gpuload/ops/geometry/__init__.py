"""Ops of geometry: pixels come to lie elsewhere."""
