"""Writers: records to files, one format a file."""
