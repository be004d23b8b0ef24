"""Which bytes the libraries have that this process has loaded: one version may be built or patched in several ways."""

import os
import re
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypedDict

from preflight.check import read
from preflight.checks.env.software.digests import DigestCache

OF_TRAINING = re.compile(
    r"lib(torch\w*|c10\w*|caffe2\w*|shm|nccl[\w-]*|rccl[\w-]*|gomp|iomp5|omp|cudart|cudnn\w*|cublas\w*|cusparse\w*|"
    r"cusolver\w*|cufft\w*|curand|nvrtc[\w-]*|nvJitLink|cupti|amdhip64|rocblas|MIOpen|mkl\w*|openblas\w*)"
    r"(-[0-9a-f]{6,})?\.so[.\d]*"
)
"""torch, its collectives, OpenMP and the math libraries. A wheel may have renamed them ("libgomp-a34b3233.so.1")."""
COMPUTES = re.compile(r"lib(torch|c10|caffe2|nccl|rccl)")
"""What every training goes through: other bytes there fail."""
PIECE, BUFFER = 64 << 20, 4 << 20
SAMPLES, SAMPLE = 8, 256 << 10
"""Another build moves its code, so its headers, tables and code differ in each of these."""
THREADS = 4


def is_of(name: str, packages: Collection[str]) -> bool:
    """Whether a library belongs to one of these packages: libcublas.so.12 to nvidia-cublas-cu12. (torch has its own
    finding, and torchmetrics no library.)"""
    stem = name.removeprefix("lib").partition(".")[0].partition("_")[0].lower()
    part = {"cudart": "runtime"}.get(stem, stem)
    return any(package.startswith("nvidia-") and part in package.split("-") for package in packages)


class Library(TypedDict):
    path: str
    digest: str
    """CRC-32 and size; "" if there was no time to read it all."""
    sample: str
    """The same of SAMPLES pieces, which are always read; "" if the file cannot be read."""
    unread: str
    """Why it was not read in full, or ""."""


def loaded() -> dict[str, str]:
    """Paths by name, from this process's memory map. The name is without what a wheel has added to it."""
    lines = (line.split(maxsplit=5) for line in read("/proc/self/maps").splitlines())
    paths = {words[5].removesuffix(" (deleted)") for words in lines if len(words) == 6}
    found: dict[str, str] = {}
    for path in sorted(paths):
        if match := OF_TRAINING.fullmatch(os.path.basename(path)):
            name = os.path.basename(path).replace(match[2] or "", "", 1)
            found[name] = path if name not in found else min(found[name], path, key=_added)
    return found


def _added(path: str) -> bool:
    """Of two with one name (torch's, and one that another package has brought), torch's comes first."""
    return "/torch/" not in path


def compared(cache: DigestCache) -> dict[str, Library]:
    """By name. Samples are read first, then small ones. The libraries of torch for CUDA have 4 GB, which take 1 to 3 s
    from the page cache, minutes from a cold network file system, and nothing if the cache of digests has them."""
    paths = sorted(loaded().items(), key=lambda item: _size(item[1]))
    with ThreadPoolExecutor(THREADS) as pool:
        sampled = list(pool.map(_sampled, (path for _, path in paths)))
        read = list(pool.map(partial(_read, cache), sampled))
    return {name: library for (name, _), library in zip(paths, read, strict=True)}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _sampled(path: str) -> Library:
    """With a sample only."""
    value = 0
    try:
        size = os.stat(path).st_size
        with open(path, "rb", buffering=0) as file:
            for at in range(SAMPLES):
                file.seek(at * max(size - SAMPLE, 0) // (SAMPLES - 1))
                value = zlib.crc32(file.read(SAMPLE), value)
    except OSError as error:
        return Library(path=path, digest="", sample="", unread=error.strerror or str(error))
    return Library(path=path, digest="", sample=f"{value:08x}.{size}", unread="")


def _read(cache: DigestCache, library: Library) -> Library:
    """With its digest, if there is time."""
    if library["unread"]:
        return library
    try:
        size = os.stat(library["path"]).st_size
        pieces = [_piece(cache, library["path"], at) for at in range(0, size, PIECE)]
    except OSError as error:
        return {**library, "unread": error.strerror or str(error)}
    whole = pieces[0] if len(pieces) == 1 else f"{zlib.crc32(repr(pieces).encode()):08x}"
    return {**library, "digest": f"{whole}.{size}"}


def _piece(cache: DigestCache, path: str, at: int) -> str:
    """CRC-32 of a piece, so that what was read is kept where there is no time for the whole. It finds other bytes, if
    not an attacker's, and takes a quarter of SHA-1's time without its instructions."""

    def read_it(path: str) -> str:
        value, end = 0, at + PIECE
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            while (left := end - file.tell()) > 0 and (part := file.read(min(left, BUFFER))):
                cache.in_time()
                value = zlib.crc32(part, value)
        return f"{value:08x}"

    return cache.digest(path, f"crc {at}", read_it)
