"""How CUDA interprets CUDA_VISIBLE_DEVICES."""

import re
from collections.abc import Sequence


def chosen(everyone: Sequence[str], wanted: str | None) -> tuple[list[str], str]:
    """(UUIDs of the devices that CUDA shows, in its order; the first entry that matches none, or "").

    Entries are indices or (prefixes of) UUIDs; the list ends at the first entry that matches no device; a MIG UUID is
    taken as it is (CUDA C++ programming guide, environment variables).
    """
    if wanted is None:
        return list(everyone), ""
    found: list[str] = []
    for word in (word.strip() for word in wanted.split(",")):
        if word.startswith("MIG-"):
            found.append(word)
        elif re.fullmatch("[0-9]{1,9}", word) and int(word) < len(everyone):
            found.append(everyone[int(word)])
        elif word.startswith("GPU-") and (match := next((uuid for uuid in everyone if uuid.startswith(word)), None)):
            found.append(match)
        else:
            return found, word
    return found, ""
