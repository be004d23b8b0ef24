"""Builds the stand-in library, once for each set of functions that it shall not have, and the stand-in of daemons."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).parent
NAME, SERVICE = "libnvidia-ml.so.1", "service"
NCCL = "libnccl.so.2"
SOURCES = ("nvml.c", "keys.h", "links.h", "service.c")
can_build = shutil.which("gcc") is not None


def build(absent: Collection[str] = ()) -> Path:
    """The folder with the library and the program, kept in the temporary folder for other tests and processes."""
    text = "".join((HERE / name).read_text() for name in SOURCES)
    unknown = [name for name in absent if not re.search(rf"\b{name}\b", text)]
    assert not unknown, f"the stand-in has no function {unknown}"
    recipe = Path(__file__).read_text()
    digest = hashlib.sha256("\n".join([text, recipe, *sorted(absent)]).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"preflight-standin-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} is another user's"
    if not (folder / NAME).exists():
        without = [f"-D{name}=absent_{name}" for name in sorted(absent)]  # a name that nobody calls
        _compile("service.c", folder / SERVICE)
        _compile("nvml.c", folder / NAME, "-shared", "-fPIC", f"-Wl,-soname,{NAME}", *without)
    return folder


def nccl(folder: Path) -> Path:
    """Of NCCL, with its calls for parameters."""
    _compile("nccl.c", folder / NCCL, "-shared", "-fPIC", f"-Wl,-soname,{NCCL}")
    return folder / NCCL


def _compile(source: str, to: Path, *options: str) -> None:
    """The file comes there whole, also where two processes make it at once."""
    made = to.with_name(f"{to.name}.{os.getpid()}")
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", *options, "-o", str(made), str(HERE / source)], check=True)
    made.replace(to)
