"""GPU modes that keep ranks out, or that give them only a part of a GPU."""

from collections.abc import Iterator, Sequence
from typing import Any

from preflight.check import Code, Finding, Run
from preflight.checks.gpu.shared.cards import Card, compare_cards
from preflight.checks.gpu.shared.readings import GpuIdentity, Mig

MIG = Code(
    "A rank would use a MIG instance instead of a whole GPU, or MIG mode differs from the siblings' or is about to "
    "change.",
    fix="As root, with no job on the GPU: nvidia-smi -i NUMBER -mig 0; all GPUs: without -i",
)
EXCLUSIVE = Code("A GPU's compute mode keeps ranks out.", fix="As root: nvidia-smi -i {gpu} -c DEFAULT")

MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
"""NVML's numbers of the modes other than DEFAULT."""
PROHIBITED = 2
_PROHIBITED = "the compute mode is PROHIBITED (no process can use it), expected DEFAULT"
Known = Sequence[tuple[Card, GpuIdentity]]


def of_rank(rank: int, card: Card, identity: GpuIdentity, run: Run) -> Iterator[Finding]:
    """Findings about the GPU that a rank uses."""
    where = {key: value for key, value in card.where.items() if key != "node"}
    if identity["mig"] and identity["mig"]["current"] and run.job.world_size > 1:
        yield instance(rank, (identity["mig"]["devices"] or [card.uuid])[0], run, **where)
    mode = MODES.get(identity["compute_mode"] or 0)
    if identity["compute_mode"] == PROHIBITED:
        yield EXCLUSIVE.fail(_PROHIBITED, **where, **run.job.where(rank))
    elif mode:
        text = f"the compute mode is {mode} (one process can use it), expected DEFAULT"
        yield EXCLUSIVE.info(text, **where, **run.job.where(rank))


def instance(rank: int, device: str, run: Run, **where: Any) -> Finding:
    text = f"would use MIG instance {device}, expected a whole GPU: NCCL does not connect MIG instances"
    return MIG.fail(text, **{**where, "uuid": device}, **run.job.where(rank))


def of_all(known: Known) -> Iterator[Finding]:
    """Compares modes between GPUs; without a launcher the job has all of the node's. A mode that all share may be
    intended."""
    for card, identity in known:
        if identity["compute_mode"] == PROHIBITED:
            yield EXCLUSIVE.fail(_PROHIBITED, **card.where)
    others = [
        (card, MODES.get(mode, "DEFAULT"))
        for card, identity in known
        if (mode := identity["compute_mode"]) is not None and mode != PROHIBITED
    ]
    modes = compare_cards(others, alike=lambda _: "")
    for odd in modes.odd:
        say = EXCLUSIVE.info if odd.value == "DEFAULT" else EXCLUSIVE.warn
        yield say(f"the compute mode is {odd.value}, expected {odd.usual} as on {odd.share}", **odd.where)
    yield from (EXCLUSIVE.info(f"different compute modes: {tie}; expected one", fix=_ANY_FIX) for tie in modes.ties)
    sliced = compare_cards((card, _switch(mig["current"])) for card, mig in _with_mig(known))
    for odd in sliced.odd:
        text = f"MIG mode is {odd.value}, expected {odd.usual} as on {odd.share}: NCCL does not join MIG instances"
        yield (MIG.warn if odd.value == "on" else MIG.info)(text, **odd.where)
    yield from (MIG.info(f"MIG mode differs: {tie}; expected one mode for a job over all") for tie in sliced.ties)


_ANY_FIX = "As root: nvidia-smi -i NUMBER -c DEFAULT"


def pending(known: Known) -> Iterator[Finding]:
    """What the GPU's next reset, or a reboot, will change."""
    for card, mig in _with_mig(known):
        if mig["pending"] != mig["current"]:
            now, then = _switch(mig["current"]), _switch(mig["pending"])
            fix = "As root, with no job on the GPU: nvidia-smi -r -i {gpu} applies it; "
            fix += f"nvidia-smi -i {{gpu}} -mig {mig['current']:d} reverts it."
            text = f"MIG mode is {now}, and {then} after the next reset; expected no change"
            yield MIG.warn(text, fix=fix, **card.where)


def _with_mig(known: Known) -> Iterator[tuple[Card, Mig]]:
    return ((card, identity["mig"]) for card, identity in known if identity["mig"])


def _switch(value: bool) -> str:
    return "on" if value else "off"
