"""WebDataset: records that are members of tar archives."""
