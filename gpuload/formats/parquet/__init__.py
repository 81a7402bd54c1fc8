"""Parquet: row groups of columns, through PyArrow."""
