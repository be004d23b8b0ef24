"""Makes NCCL's library small enough to travel: only the code for Hopper stays in it.

    python -m tests.real_gpu.slim_nccl nvidia_nccl_cu13-2.32.3-*.whl .carry/libnccl.so.2.xz

NCCL 2.30 and newer runs several ranks on one GPU as ranks of one node (NCCL_MULTI_RANK_GPU_ENABLE=1), which the NCCL
of torch 2.11 does not. Nearly all of the wheel's 344 MB is code for other GPUs. It is replaced by zeros, so that no
offset changes, and zeros compress to nothing.

NVIDIA does not document the layout of fat binaries. What is here was read off the wheel of 2.32: a container is the
magic, a version, the size of its header (u16 each) and the size of its content (u64); an entry in it is its kind (u16:
1 PTX, 2 machine code), a u16, the sizes of its header (u32) and of its payload (u64), with the architecture (u32: 90
is sm_90) 28 bytes from its start.
"""

import lzma
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0xBA55ED50.to_bytes(4, "little")
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQ")
ARCHITECTURE_AT = 28
MACHINE_CODE = 2
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


def payloads(image: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """(kind, architecture, offset, bytes) of each entry of each fat binary in a library's image."""
    at = image.find(MAGIC)
    while at >= 0:
        _, version, header, size = CONTAINER.unpack_from(image, at)
        end = at + header + size
        if version == 1 and header == CONTAINER.size and end <= len(image):
            yield from _entries(image, at + header, end)
            at = image.find(MAGIC, end)
        else:
            at = image.find(MAGIC, at + 1)


def _entries(image: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    while at + ARCHITECTURE_AT + 4 <= end:
        kind, _, header, size = ENTRY.unpack_from(image, at)
        if header < ARCHITECTURE_AT + 4 or at + header + size > end:
            raise ValueError(f"the entry at {at} of this library's fat binary has a layout that is not known")
        (architecture,) = struct.unpack_from("<I", image, at + ARCHITECTURE_AT)
        yield kind, architecture, at + header, size
        at += header + size


def slim(image: bytearray, architecture: int = 90) -> tuple[int, int]:
    """Replaces by zeros what is not machine code of this architecture; returns the bytes kept and replaced."""
    kept = replaced = 0
    for kind, of, at, size in payloads(bytes(image)):
        if (kind, of) == (MACHINE_CODE, architecture):
            kept += size
        else:
            image[at : at + size] = bytes(size)
            replaced += size
    return kept, replaced


def main() -> None:
    wheel, target = map(Path, sys.argv[1:])
    with zipfile.ZipFile(wheel) as files:
        image = bytearray(files.read(LIBRARY))
    kept, replaced = slim(image)
    if not kept:
        raise SystemExit(f"{wheel.name} has no machine code for sm_90")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(bytes(image), preset=6))
    print(f"{target}: {target.stat().st_size} bytes; {kept} bytes of code kept, {replaced} replaced by zeros")


if __name__ == "__main__":
    main()
