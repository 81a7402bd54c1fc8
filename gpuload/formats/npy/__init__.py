"""NPY files: one array a file."""
