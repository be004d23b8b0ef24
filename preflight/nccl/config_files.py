"""NCCL's configuration files, read as NCCL reads them (src/misc/param.cc of 2.30.7)."""

import os
import pwd
import stat
from collections.abc import Mapping
from typing import TypedDict

from preflight.nccl import version

SYSTEM = "/etc/nccl.conf"
LARGEST = 1 << 20
"""The most bytes read of a file: such files have a few lines."""


class FileSetting(TypedDict):
    value: str
    origin: str
    """The file's path."""


class Conf(TypedDict):
    settings: dict[str, FileSetting]
    """What the files add: the first file that names a variable wins, and the environment over all of them."""
    odd_lines: list[tuple[str, int, str]]
    """(file, line, name) of lines that set a variable other than the one that was meant."""
    missing: str
    """The file in NCCL_CONF_FILE, if it cannot be read."""


def read(environ: Mapping[str, str], home: str | None = None, system: str = SYSTEM) -> Conf:
    """Reads NCCL_CONF_FILE or, if that is not set, ~/.nccl.conf; then /etc/nccl.conf. Raises nothing: NCCL, too,
    continues without a file that it cannot read."""
    named = environ.get("NCCL_CONF_FILE", "")
    home = _home(environ) if home is None else home
    first = named or ("" if home is None else os.path.join(home or "/", ".nccl.conf"))
    conf: Conf = {"settings": {}, "odd_lines": [], "missing": ""}
    for path in (first, system):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # NCCL would wait for a pipe
                raise OSError("not a regular file")
            with open(path, errors="replace") as file:
                lines = file.read(LARGEST).split("\n")
        except OSError:
            if path == named:
                conf["missing"] = named
            continue
        _take(conf, path, lines, environ)
    return conf


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as NCCL sees it, with the settings of its files."""
    return {name: setting["value"] for name, setting in read(environ)["settings"].items()} | dict(environ)


def _take(conf: Conf, path: str, lines: list[str], environ: Mapping[str, str]) -> None:
    """Takes the settings of one file. Nothing is stripped: `NCCL_X = 1` sets a variable whose name ends in a space."""
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if line.startswith("#") or not equals:
            continue
        if name != name.strip() or " " in name:
            conf["odd_lines"].append((path, number, name))
        elif name not in environ:
            conf["settings"].setdefault(name, {"value": value.rstrip("\r"), "origin": path})


def _home(environ: Mapping[str, str]) -> str | None:
    """The home folder: $HOME; before NCCL 2.30 the one in the password file (userHomeDir)."""
    if not version.is_before(version.installed(), 2, 30):
        return environ.get("HOME")
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user id that the container does not know
        return None
