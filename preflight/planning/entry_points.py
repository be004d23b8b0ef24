"""Checks that installed packages bring: their entry points in the group `preflight.checks`."""

import contextlib
import os
import sys

GROUP = "preflight.checks"
_METADATA = (".dist-info", ".egg-info", "EGG-INFO")


def found() -> list[tuple[str, str]]:
    """(name, MODULE or MODULE:NAME) of each. Raises what importlib.metadata raises in a broken installation."""
    if not _may_be_any():
        return []
    from importlib.metadata import entry_points

    return [(entry.name, entry.value) for entry in entry_points(group=GROUP)]


def _may_be_any() -> bool:
    """Whether any installed package may name the group. Importing importlib.metadata takes longer than all else that
    `preflight list` does, so it is imported only if a file names the group, or files cannot show it: in archives, and
    with other packages' finders."""
    import importlib.machinery

    others = (finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder)
    if any(hasattr(finder, "find_distributions") for finder in others):
        return True
    return any(os.path.isfile(folder) or _is_named_in(folder) for folder in sys.path)


def _is_named_in(folder: str) -> bool:
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder or ".") if name.endswith(_METADATA)]
    for name in names:
        with contextlib.suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
            if GROUP.encode() in file.read():
                return True
    return False
