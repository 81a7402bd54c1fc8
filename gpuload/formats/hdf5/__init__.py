"""HDF5: datasets of one length, through h5py, and without it where their bytes are as NumPy has
them."""

MAGIC = b"\x89HDF\r\n\x1a\n"
FIRST_PLACE = 512  # behind byte 0 the magic may stand at byte 512, and at each double of it
