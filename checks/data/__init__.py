"""Data: what each rank sees of it."""
