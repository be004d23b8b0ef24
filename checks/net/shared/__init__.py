"""What several checks of the network use: the host's links, and its HCAs with the ports that NCCL would use."""
