"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed, epoch, step)."""
