"""What is left of a library whose code for other GPUs is replaced by zeros."""

import struct

import pytest

from tests.real_gpu import slim_nccl


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    head = slim_nccl.ENTRY.pack(kind, 0x101, 64, len(payload))
    return head + bytes(slim_nccl.ARCHITECTURE_AT - len(head)) + struct.pack("<I", architecture) + bytes(32) + payload


def container(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return slim_nccl.CONTAINER.pack(int.from_bytes(slim_nccl.MAGIC, "little"), 1, 16, len(content)) + content


HOPPER, AMPERE, PTX = entry(2, 90, b"h" * 40), entry(2, 80, b"a" * 24), entry(1, 90, b"p" * 8)


def test_only_machine_code_of_the_architecture_stays() -> None:
    image = bytearray(b"elf" + container(AMPERE, HOPPER) + b"between" + container(PTX) + b"end")
    assert slim_nccl.slim(image) == (40, 32)
    assert image.count(b"h") == 40 and b"a" * 24 not in image and b"p" * 8 not in image
    assert image.startswith(b"elf") and b"between" in image and image.endswith(b"end")


def test_the_magic_in_other_data_is_passed_over() -> None:
    image = bytearray(slim_nccl.MAGIC + b"\xff" * 20 + container(AMPERE))
    assert slim_nccl.slim(image) == (0, 24)


def test_a_layout_that_is_not_known_is_refused() -> None:
    broken = bytearray(container(AMPERE))
    broken[16 + 4 : 16 + 8] = (8).to_bytes(4, "little")
    with pytest.raises(ValueError, match="layout"):
        slim_nccl.slim(broken)
