"""Whether two tensors of a checkpoint hold the same bytes, as tied parameters should."""

import os

from preflight.checkpoint.contents import Contents, Stretch

PIECE = 1 << 20


def differ(folder: str, contents: Contents, first: str, second: str) -> bool | None:
    """Whether they differ; None if their layouts differ, or they were not found. Raises OSError."""
    own = [stretch for stretch in contents.stretches if stretch.tensor == first]
    others = [stretch for stretch in contents.stretches if stretch.tensor == second]
    if not own or [(s.bytes, s.dtype) for s in own] != [(s.bytes, s.dtype) for s in others]:
        return None
    return any(_differ(folder, *pair) for pair in zip(own, others, strict=True))


def _differ(folder: str, first: Stretch, second: Stretch) -> bool:
    with open(os.path.join(folder, first.file), "rb") as mine, open(os.path.join(folder, second.file), "rb") as other:
        mine.seek(first.at)
        other.seek(second.at)
        left = first.bytes
        while left > 0:
            if mine.read(min(PIECE, left)) != other.read(min(PIECE, left)):
                return True
            left -= PIECE
    return False
