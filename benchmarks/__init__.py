"""Benchmarks: one file per question, each beside tuned peers in the same run. See README.md."""
