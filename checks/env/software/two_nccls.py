"""Two wheels of NCCL in one environment: they consist of the same file, so the last one installed has won."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.check import Code, Finding, Run, ranges, words

TWO_NCCLS = Code(
    "Two wheels of NCCL are installed; both consist of nvidia/nccl/lib/libnccl.so.2, so the last one has won.",
    fix="There: python -m pip uninstall {others}; python -m pip install --force-reinstall --no-deps {wanted}",
)
WHEEL = re.compile(r"(nvidia-nccl-cu(\d+)) (\d\S*)")
Loaded = Mapping[str, str | None]


class Wheels(NamedTuple):
    """What a node has of it."""

    wheels: tuple[tuple[str, str, str], ...]
    """(name, version of CUDA, version of NCCL) of each."""
    cuda: str
    """The version of torch's CUDA: "13.0"."""
    loaded: str | None
    """The version of the NCCL in memory; None where torch is not imported."""
    path: str | None


def findings(packages: Mapping[int, Sequence[str]], loaded: Mapping[int, Loaded], run: Run) -> Iterator[Finding]:
    """`packages`: "numpy 2.1.0" for each, by rank. `loaded`: the versions of torch's CUDA and of NCCL, and its path."""
    alike: dict[Wheels, list[int]] = {}
    for rank, listed in packages.items():
        found = [match for package in listed if (match := WHEEL.fullmatch(package))]
        if len({match[3] for match in found}) > 1:
            own = loaded[rank]
            wheels = tuple((match[1], match[2], match[3]) for match in found)
            alike.setdefault(Wheels(wheels, own["cuda"] or "", own["nccl"], own["path"]), []).append(rank)
    for node, ranks in alike.items():
        yield from _of(node, ranks, run)


def _of(node: Wheels, ranks: Sequence[int], run: Run) -> Iterator[Finding]:
    wanted = next((wheel for wheel in node.wheels if wheel[1] == node.cuda.partition(".")[0]), None)
    if wanted is None:  # this torch has another NCCL, or none
        return
    text = f"{words.some([f'{name} {of}' for name, _, of in node.wheels])} are installed, and this torch is for CUDA "
    at = f" ({node.path})" if node.path else ""
    text += f"{node.cuda}: " + (
        f"NCCL {node.loaded} is loaded{at}" if node.loaded else "the last one installed is loaded"
    )
    others = " ".join(name for name, _, _ in node.wheels if name != wanted[0])
    evidence = {"wanted": f"{wanted[0]}=={wanted[2]}", "others": others}
    say = TWO_NCCLS.info if node.loaded == wanted[2] else TWO_NCCLS.warn
    name = run.job.node_of(ranks[0]).node if len(ranks) == 1 else None
    more = f", on {ranges.count(len(ranks), 'node')}" if len(ranks) > 1 else ""
    yield say(f"{text}{more}; expected {wanted[0]} alone", node=name, evidence=evidence)
