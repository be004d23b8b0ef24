"""Whether the Python files of the packages that train are the same: a patched torch has the version of a sound one."""

import base64
import csv
import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import TypedDict

from preflight.checks.env.software.digests import DigestCache, sha1
from preflight.sdk import packages

COMPARED = {
    "torch": "torch", "triton": "triton", "transformers": "transformers", "accelerate": "accelerate",
    "deepspeed": "deepspeed", "lightning": "lightning", "pytorch-lightning": "pytorch_lightning",
    "flash-attn": "flash_attn", "megatron-core": "megatron", "transformer-engine": "transformer_engine",
    "apex": "apex", "xformers": "xformers", "torchdata": "torchdata", "torchtitan": "torchtitan", "peft": "peft",
}  # fmt: skip
"""The folder of each package, by the package's name: those whose code is in the path of each training step."""
LISTED = 50
"""How many edited files the facts name."""


class PackageFiles(TypedDict):
    digest: str
    """Over the names and contents of all Python files; "" if they were not read."""
    edited: list[str]
    """Names of files that are not what pip has installed, by the package's RECORD, or are not in it."""
    unread: str
    """Why they were not read, or ""."""


def read(cache: DigestCache) -> dict[str, PackageFiles]:
    """By package, those that are installed. torch's 2,300 files (46 MB) take 0.2 s, 1 s on a slow core, and 0.1 s if
    the cache has them."""
    installed = packages.installed()
    found = {}
    for name, folder in COMPARED.items():
        if name in installed and (place := _place(folder)):
            found[name] = _read(place, installed[name].folder, cache)
    return found


def _place(folder: str) -> str:
    """Where the package would be imported from; "" if nowhere."""
    try:
        spec = importlib.util.find_spec(folder)
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or ()) if spec else []
    return next(filter(os.path.isdir, places), "")  # of an editable install there may be none


def _read(place: str, metadata: str, cache: DigestCache) -> PackageFiles:
    top = os.path.dirname(place)
    digests: dict[str, str] = {}
    try:
        recorded = _recorded(metadata) if os.path.samefile(top, os.path.dirname(metadata)) else {}
        for path in _python_files(place):
            cache.in_time()
            digests[os.path.relpath(path, top)] = cache.digest(path, "record", _as_recorded)
    except OSError as error:
        return PackageFiles(digest="", edited=[], unread=error.strerror or str(error))
    edited = sorted(name for name, digest in digests.items() if recorded and recorded.get(name, "") != digest)
    return PackageFiles(digest=sha1(repr(sorted(digests.items())).encode())[:12], edited=edited[:LISTED], unread="")


def _python_files(folder: str) -> Iterator[str]:
    """Follows links, since an environment may be made of them, but into no folder twice."""
    seen = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        about = os.stat(path)
        folders[:] = sorted(
            name for name in folders if name != "__pycache__" and (about.st_dev, about.st_ino) not in seen
        )
        seen.add((about.st_dev, about.st_ino))
        yield from (os.path.join(path, name) for name in sorted(names) if name.endswith(".py"))


def _as_recorded(path: str) -> str:
    """A file's digest as RECORD has it (PEP 376)."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _recorded(metadata: str) -> Mapping[str, str]:
    """Digests by name, from the RECORD in a .dist-info folder; empty without one."""
    try:
        with open(os.path.join(metadata, "RECORD"), newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except (OSError, UnicodeError, csv.Error):
        return {}
    return {name: digest.removeprefix("sha256=") for name, digest, _ in rows if digest.startswith("sha256=")}
