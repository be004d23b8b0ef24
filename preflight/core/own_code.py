"""Which files of a stack are the user's own: one rule, so that `run`, `debug` and `explain` blame the same line.

It looks at paths only, since most stacks were written on another machine.
"""

import os
import re

PACKAGES = ("preflight", "torch")
"""Modules that are never the user's, even from a checkout in the user's folder."""
_LIBRARY = re.compile(
    r"^$|^<|"  # no file; <frozen importlib>, <string>
    r"(?:^|[/\\])(?:site|dist)-packages[/\\]|(?:^|[/\\])lib(?:64)?[/\\]python3|"  # installed, and Python's own
    r"(?:^|[/\\])torch[/\\]|"  # a checkout of torch
    r"[/\\]bin[/\\]|"  # torchrun, accelerate
    r"(?:^|[/\\])(?:runpy|threading|subprocess|concurrent|multiprocessing|asyncio|importlib|unittest)(?:\.py$|[/\\])|"
    r"(?:^|[/\\])(?:sitecustomize|preflight_debug_rank)\.py$|"  # what `preflight debug` injects
    r"\.(?:cc?|cpp|cu|h|hpp)$"  # frames of C++ in a flight recorder's dump
)


def is_own(path: str, home: str = "", module: str = "") -> bool:
    """Whether a source file is the user's. `home`: a folder (or file) known to be the user's; only the part of the path
    below it is looked at. `module`: the file's module, if it is known."""
    if module.partition(".")[0] in PACKAGES:
        return False
    below = f"{home.rstrip(os.sep)}{os.sep}"
    if home and path == home:
        return True
    return not _LIBRARY.search(path.removeprefix(below) if home else path)
