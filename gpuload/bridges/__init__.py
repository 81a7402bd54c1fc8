"""Bridges hand batches to a framework: one module each, which is the only importer of that
framework."""
