"""A stand-in for NVIDIA's driver: a library, and the machines that it pretends to be (`machines.py`)."""
