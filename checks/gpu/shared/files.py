"""Files of /proc and /sys, which may not be there."""


def text(path: str) -> str:
    """What stands in it, or ""."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
