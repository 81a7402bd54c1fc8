"""Files of fixed-length records."""
