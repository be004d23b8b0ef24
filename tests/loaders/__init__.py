"""Loaders as users give them with `--data`."""
