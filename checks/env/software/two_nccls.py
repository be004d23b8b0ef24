"""Two wheels of NCCL in one environment: they consist of the same file, so the last one installed has won."""

import re
from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Code, Finding, Run, ranges, words

TWO_NCCLS = Code(
    "Two wheels of NCCL are installed; both consist of nvidia/nccl/lib/libnccl.so.2, so the last one has won.",
    fix="There: python -m pip uninstall {others}; python -m pip install --force-reinstall --no-deps {wanted}",
)
WHEEL = re.compile(r"(nvidia-nccl-cu(\d+)) (\d\S*)")
Loaded = Mapping[str, str | None]


def findings(packages: Mapping[int, Sequence[str]], loaded: Mapping[int, Loaded], run: Run) -> Iterator[Finding]:
    """`packages`: "numpy 2.1.0" for each, by rank. `loaded`: the versions of torch's CUDA ("13.0") and of the NCCL in
    memory, which is unknown where torch is not imported; and its path."""
    alike: dict[tuple[tuple[tuple[str, str, str], ...], str | None, str | None, str | None], list[int]] = {}
    for rank, listed in packages.items():
        matches = filter(None, map(WHEEL.fullmatch, listed))
        wheels = tuple((match[1], match[2], match[3]) for match in matches)
        own = loaded[rank]
        if len(wheels) > 1 and len({version for _, _, version in wheels}) > 1:
            alike.setdefault((wheels, own["cuda"], own["nccl"], own["path"]), []).append(rank)
    for (kinds, cuda, version, path), ranks in alike.items():
        yield from _of(kinds, cuda or "", version, path, ranks, run)


def _of(
    wheels: Sequence[tuple[str, str, str]], cuda: str, version: str | None, path: str | None, ranks: Sequence[int],
    run: Run,
) -> Iterator[Finding]:  # fmt: skip
    wanted = next((wheel for wheel in wheels if wheel[1] == cuda.partition(".")[0]), None)
    if wanted is None:  # this torch has another NCCL, or none
        return
    text = (
        f"{words.some([f'{name} {of}' for name, _, of in wheels])} are installed, and this torch is for CUDA {cuda}: "
    )
    text += f"NCCL {version} is loaded{f' ({path})' if path else ''}" if version else "the last one installed is loaded"
    others = " ".join(name for name, _, _ in wheels if name != wanted[0])
    evidence = {"wanted": f"{wanted[0]}=={wanted[2]}", "others": others}
    say = TWO_NCCLS.info if version == wanted[2] else TWO_NCCLS.warn
    node = run.job.node_of(ranks[0]).node if len(ranks) < len(run.job.nodes) or len(run.job.nodes) == 1 else None
    more = f", on {ranges.count(len(ranks), 'node')}" if len(ranks) > 1 else ""
    yield say(f"{text}{more}; expected {wanted[0]} alone", node=node, evidence=evidence)
