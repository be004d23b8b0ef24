"""Lists of nodes as schedulers and launchers read them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from preflight.core import node_names

FORMATS: Mapping[str, Callable[[Sequence[str], Mapping[str, int]], str]] = {
    "slurm": lambda names, _: f"{fold(names)}\n" if names else "",
    "lines": lambda names, _: "".join(f"{name}\n" for name in names),
    "csv": lambda names, _: f"{','.join(names)}\n" if names else "",
    "hostfile": lambda names, ranks: "".join(f"{name} slots={ranks.get(name, 1)}\n" for name in names),
    "json": lambda names, _: f"{json.dumps(list(names))}\n",
}
"""Functions that format names; the second argument is the number of ranks of each."""


def fold(names: Iterable[str]) -> str:
    """ "gpu-[3,17-19],login": Slurm's host list. Only a number at the end is folded: Slurm 22.05 refuses a
    suffix after brackets."""
    return node_names.folded(names, suffixes=False)
