"""Checks of which data each rank sees."""
