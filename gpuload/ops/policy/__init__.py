"""Ops of ops: which of them an image gets is drawn."""
