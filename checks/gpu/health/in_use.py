"""Who uses a GPU before the job does: processes, memory that nobody holds, work that nobody has started."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.check import Action, Code, Finding, Run, option, words
from preflight.checks.gpu.shared import processes
from preflight.checks.gpu.shared.cards import Card
from preflight.checks.gpu.shared.processes import Holder
from preflight.checks.gpu.shared.readings import AT_WORK, Health

MAX_USED_MIB = option(int, 1024, "memory of a GPU that may be in use before the job starts, if no process is listed")
"""A CUDA context takes about half of it. If the driver's own reserve (0.3 to 0.9 GiB) counts as used, the same amount
again is allowed. A program that only draws, such as a browser, may hold as much."""

PROCESS = Code(
    "A process uses a GPU before the job does.",
    fix="On {node}, outside of containers: ps -fp {pids}; end what an earlier job left behind.",
)
MEMORY_USED = Code(
    "GPU memory is in use, but no process is listed that holds it.",
    fix="On {node}, outside of containers: fuser -v /dev/nvidia*; end what an earlier job left, or reset the GPU.",
)
SPINS = Code(
    "A GPU is at work, but no process is listed that uses it.",
    fix="On {node}, outside of containers: fuser -v /dev/nvidia*; end what an earlier job left. If there is nothing, a "
    "kernel spins for nobody: nvidia-smi -r -i {gpu}, or reboot the node.",
    action=Action.RESET_GPU,
)

GIB, LISTED = 2**30, 4
SOME_MIB = 400
"""Less than the smallest CUDA context takes, and more than an idle card shows."""
APART_S = 1.5
"""Between two looks: a driver that has just been started reports work, and a sample is at most a second long."""


def works_for_nobody(health: Health) -> bool:
    """By one look."""
    return (health.get("utilization") or 0) >= AT_WORK and not health["processes"]


def twice(first: Health, second: Health | None) -> list[int]:
    """The utilization in both looks, in per cent; only the first if the GPU has got a process, or no longer answers."""
    looks = [first, *([second] if second and not second["processes"] else [])]
    return [health.get("utilization") or 0 for health in looks]


def findings(looked: list[tuple[Card, Health]], facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """`facts`: those of gpu.health."""
    known: dict[str, dict[str, Holder]] = {}
    at_work: dict[tuple[str, str], list[int]] = {}
    for rank, measured in facts.items():
        node = run.job.node_of(rank).node
        known.setdefault(node, {}).update(measured["holders"])
        at_work |= {(node, uuid): looks for uuid, looks in measured.get("at_work", {}).items()}
    for card, health in looked:
        looks = at_work.get((card.node, card.uuid), ())
        if len(looks) == 2 and min(looks) >= AT_WORK:
            yield _spins(card, health, looks)
        else:
            yield from _of_processes(card, health, known[card.node], run[MAX_USED_MIB])


def _spins(card: Card, health: Health, looks: Sequence[int]) -> Finding:
    clocks, traffic = health["clocks"], health.get("pcie_kbs")
    text = f"the GPU is at work in two looks, {looks[0]} and {looks[1]} %, and {_nobody(health)}; "
    text += f"{words.size(health['memory_used'] or 0)} of its memory are in use"
    text += (
        f", its SM clock is {clocks['sm']:,} of {clocks['sm_max']:,} MHz" if clocks["sm"] and clocks["sm_max"] else ""
    )
    text += (
        f", {words.rate(traffic / 1e6)} go over PCIe" if traffic else ", nothing goes over PCIe" if traffic == 0 else ""
    )
    return SPINS.warn(f"{text}; expected an idle GPU before the job starts", evidence=card.evidence, **card.where)


def _nobody(health: Health) -> str:
    return "processes cannot be listed here" if health["processes"] is None else "no process is listed"


def _of_processes(card: Card, health: Health, known: Mapping[str, Holder], most_mib: int) -> Iterator[Finding]:
    listed = {process["pid"]: process for process in health["processes"] or ()}
    held = {pid: process["memory"] for pid, process in listed.items()}
    others = {pid: holder for pid in held if not (holder := known[str(pid)])["ours"]}
    small = [pid for pid in others if listed[pid].get("draws") and (held[pid] or 0) <= most_mib * 2**20]
    strangers = [
        pid for pid, holder in others.items() if not processes.belongs_to_the_machine(holder) and pid not in small
    ]
    for say, pids in ((PROCESS.warn, strangers), (PROCESS.info, [pid for pid in others if pid not in strangers])):
        if pids:
            holders = [processes.describe(pid, others[pid], held[pid]) for pid in pids]
            text = f"in use before the job starts: {words.some(holders, LISTED)}; expected no process"
            yield say(text, evidence={"pids": ",".join(map(str, pids))}, **card.where)
    if not strangers and None not in held.values():
        yield from _memory_used(card, health, sum(memory or 0 for memory in held.values()), most_mib)


def _memory_used(card: Card, health: Health, held: int, most_mib: int) -> Iterator[Finding]:
    """`held`: bytes of the listed processes. A small rest is worth a word where the driver tells its reserve apart."""
    used, total = (health["memory_used"] or 0) - held, health["memory_total"] or 0
    apart = health["memory_reserved"] is not None
    most_mib *= 1 if apart else 2
    if used > most_mib * 2**20:
        text = f"{used / GIB:.1f} of {total / GIB:.1f} GiB are in use, and "
        text += f"{_nobody(health)}{'' if health['processes'] is None else ' that holds it'}"
        text += f"; expected at most {most_mib:,} MiB"
        say = MEMORY_USED.info if card.numa else MEMORY_USED.warn
        yield say(f"{text} (or files: the kernel keeps some there)" if card.numa else text, **card.where)
    elif apart and used >= SOME_MIB * 2**20 and health["processes"] == []:
        text = f"{used >> 20} MiB are in use, and {_nobody(health)} that holds it; expected less than {SOME_MIB} MiB"
        yield MEMORY_USED.info(text, **card.where)
