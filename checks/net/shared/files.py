"""Small files of /proc and /sys."""

import os


def text(path: str) -> str:
    """Without the space around it; nothing of what is not there or may not be read. (The speed of an interface that is
    down is an error.)"""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def listed(folder: str) -> list[str]:
    """Nothing of what is not there or may not be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
