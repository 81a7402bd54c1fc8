"""Arrow: record batches in files and in memory, through PyArrow."""

FILE_MAGIC = b"ARROW1\0\0"  # of Arrow files; streams have none
