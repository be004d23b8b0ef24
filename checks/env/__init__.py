"""Checks of how the job was started and of the environment its processes got."""
