"""What NCCL's configuration files add to the environment (src/misc/param.cc of 2.30.7); env.variables tells what is
wrong in them."""

import os
import stat
from collections.abc import Mapping

from preflight.checks.net import nccl_version

SYSTEM = "/etc/nccl.conf"
LARGEST = 1 << 20
"""Bytes of a file that are read: they have a few lines."""


def added(environ: Mapping[str, str], system: str = SYSTEM) -> dict[str, tuple[str, str]]:
    """Variables that are not in the environment: (value, the file). NCCL_CONF_FILE, or only where that is not set
    ~/.nccl.conf, then /etc/nccl.conf; who comes first wins. A file that cannot be read adds nothing."""
    found: dict[str, tuple[str, str]] = {}
    for path in (environ.get("NCCL_CONF_FILE") or _own(environ), system):
        for line in _lines(path) if path else ():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#") and name not in environ:
                found.setdefault(name, (value, path))
    return found


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as NCCL has it."""
    return {**environ, **{name: value for name, (value, _) in added(environ).items()}}


def _own(environ: Mapping[str, str]) -> str:
    """In $HOME; before NCCL 2.30, in the home of the password file (userHomeDir in src/misc/param.cc)."""
    home = _password_home() if nccl_version.is_before(nccl_version.installed(), 2, 30) else environ.get("HOME")
    return "" if home is None else os.path.join(home or "/", ".nccl.conf")


def _password_home() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user id that the container does not know
        return None


def _lines(path: str) -> list[str]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # NCCL would wait for a pipe
            return []
        with open(path, errors="replace") as file:
            return [line.rstrip("\r") for line in file.read(LARGEST).split("\n")]
    except OSError:
        return []
