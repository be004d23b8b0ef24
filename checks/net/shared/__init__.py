"""Shared by several network checks: the host's links, its HCAs, and the ports that NCCL would use."""
