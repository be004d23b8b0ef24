"""`preflight checkpoint`, on files written by torch.save, DCP on two ranks, safetensors, and by hand."""
