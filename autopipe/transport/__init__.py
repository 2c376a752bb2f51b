"""Transport: how tensors and small notes travel between ranks, over torch.distributed or between threads."""
