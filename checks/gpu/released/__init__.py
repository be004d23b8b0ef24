"""Released: after the run, memory, processes and /dev/shm are as before, and no error counter has risen.

Runs last, in workers that have never used a GPU: those that have are gone. Reports what is not released after 10 s, and
which process holds it. Compares the error counters of memory, PCIe and NVLink, and for how long clocks were throttled,
with those at the start of the run.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from preflight.check import Action, After, Code, Context, Finding, Level, Plan, Run, Scope, Skip, option, ranges, words
from preflight.checks.gpu.released import counter_deltas, leftovers
from preflight.checks.gpu.released.counter_deltas import CounterRise, LinkErrors
from preflight.checks.gpu.released.leftovers import Leftover
from preflight.checks.gpu.shared import nvml_errors, nvml_survey, processes
from preflight.checks.gpu.shared.cards import INVENTORY, Card, Key, by_node, cards, looked_at
from preflight.checks.gpu.shared.nvml_errors import NO_ANSWER
from preflight.checks.gpu.shared.nvml_survey import NO_NVML, GpuLook
from preflight.checks.gpu.shared.processes import Holder
from preflight.checks.gpu.shared.readings import Health, Pcie
from preflight.checks.gpu.shared.unused_gpus import milder_elsewhere

PARTS = (nvml_errors,)
HEALTH, PCIE, NVLINK, TOPOLOGY = "gpu.health", "gpu.pcie", "gpu.nvlink", "gpu.topology"
PLAN = Plan(
    Scope.RANK,
    Level.STANDARD,
    deadline_s=60,
    estimate_s=1.0,
    after=dict.fromkeys((INVENTORY, HEALTH, PCIE, NVLINK, TOPOLOGY), After.READS),
    fresh=True,
    last=True,
)

WAIT_S = option(float, 10.0, "seconds after which the run must have released everything")

MEMORY = Code(
    "A GPU has less free memory than before the run.",
    fix="On {node}: fuser -v /dev/nvidia* shows what holds it; end that, or reset the GPU: nvidia-smi -r -i {gpu}",
    action=Action.RESET_GPU,
)
PROCESS = Code(
    "A process that did not exist before the run holds a GPU.",
    fix="If it belongs to no other job, end it: kill {pid}; if it does not end, see dmesg and reset the GPU.",
)
SHM = Code(
    "Files created during the run are left in /dev/shm.",
    fix="On {node}: remove those that no process uses (ls -l /dev/shm; fuser /dev/shm/*).",
)
UNCORRECTED = Code(
    "Uncorrectable memory errors of a GPU rose during the run.",
    fix="Drain {node}; reset the GPU (nvidia-smi -r -i {gpu}) and see nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}.",
    action=Action.RESET_GPU,
)
CORRECTED = Code(
    "A GPU corrected memory errors during the run.",
    fix="See nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}; drain the node if this continues.",
    action=Action.NONE,
)
RECOVERY = Code(
    "The driver asks for a GPU to be recovered, but did not before the run.",
    fix="On {node}: nvidia-smi -q -i {gpu} | grep -i recovery. End what runs on the GPU, then nvidia-smi -r -i {gpu}",
    action=Action.RESET_GPU,
)
THROTTLED = Code(
    "A GPU's clocks were throttled during the run, while it was at work.",
    fix="See nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu} on {node} under load. Thermal: check the cooling. "
    "Power brake: the power supplies.",
    action=Action.REPLACE,
)
PCIE_ERRORS = Code(
    "A GPU's PCIe link got worse during the run.",
    fix="On {node}: dmesg | grep -i aer; lspci -vv -s {bus} | grep Lnk. Reseat the card or its riser.",
    action=Action.REPLACE,
)
NVLINK_ERRORS = Code(
    "Errors of a GPU's NVLinks rose during the run.",
    fix="On {node}: nvidia-smi nvlink -e -i {gpu}; dmesg | grep -i xid. Drain the node if they keep rising.",
    action=Action.REPLACE,
)

PAUSE_S = 0.2
SLACK = 128 * 2**20
"""Bytes. The driver keeps some tens of MiB after the first use of a GPU; a CUDA context takes hundreds."""
RESERVE = 2**30
"""Bytes: the driver's own, 0.3 to 0.9 GiB, if it counts as used."""


class AtEnd(TypedDict):
    """One GPU after the run. Values are None if it stopped answering."""

    health: Health
    pcie: Pcie | None
    links: list[LinkErrors] | None
    new: dict[str, Holder]
    """By pid: processes that started, or may have started, after this run."""


class Facts(TypedDict):
    look: GpuLook
    """By UUID."""
    left: list[Leftover]
    up_s: float
    """Since the node booted."""


def measure(ctx: Context) -> Facts:
    session = nvml_survey.session()
    if session.seen(ctx)["system"] is None:
        raise Skip(f"{NO_NVML}: {session.troubles[0]['text']}")
    look, left = _settled(ctx)
    pcie, nvlink = session.look(ctx, "pcie"), session.look(ctx, "nvlink")
    for uuid, after in look["gpus"].items():
        after["pcie"] = pcie["gpus"].get(uuid)
        if uuid in nvlink["gpus"]:
            after["links"] = [counter_deltas.link_errors(link) for link in nvlink["gpus"][uuid]["links"] or ()]
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {"look": {**nvlink, "gpus": look["gpus"]}, "left": left, "up_s": up_s}


def _settled(ctx: Context) -> tuple[GpuLook, list[Leftover]]:
    """What is in use once nothing of this run is, or after WAIT_S."""
    began, end = leftovers.run_began(), time.monotonic() + ctx[WAIT_S]
    looks_at_shm = ctx.rank in ctx.job.one_per_node(ctx.members)
    while True:
        look = nvml_survey.session().look(ctx, "health")
        gpus: dict[str, AtEnd] = {
            uuid: {"health": health, "pcie": None, "links": None, "new": _new_holders(health, time.time() - began)}
            for uuid, health in look["gpus"].items()
        }
        left = leftovers.in_shared_memory(began) if looks_at_shm else []
        busy = any(after["new"] or _is_held_by_nobody(after["health"]) for after in gpus.values())
        if not (busy or left) or time.monotonic() > end:
            return {**look, "gpus": gpus}, left
        ctx.doing("waiting until memory is released")
        time.sleep(PAUSE_S)


def _new_holders(health: Health, run_s: float) -> dict[str, Holder]:
    """Processes that are new since the run. Not the MPS server, which our first use starts and which belongs to the
    machine."""
    found = processes.holders(process["pid"] for process in health["processes"] or ())
    new = {pid: holder for pid, holder in found.items() if holder["seconds"] is None or holder["seconds"] < run_s}
    return {pid: holder for pid, holder in new.items() if not processes.belongs_to_the_machine(holder)}


def _is_held_by_nobody(health: Health) -> bool:
    """Whether memory is in use without a listed process: one may be ending, or a container may hide it."""
    reserve = RESERVE if health["memory_reserved"] is None else 0
    return not health["processes"] and (health["memory_used"] or 0) > SLACK + reserve


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    before = {check: run.facts(check) for check in PLAN.after}
    yield from nvml_errors.findings("gpu.released", _not_named_before(facts, before, run), run)
    yield from _driver_gone(before[INVENTORY], run)
    known = cards(before[INVENTORY], run)
    health, pcie, nvlink = (_values(before[check], run, known) for check in (HEALTH, PCIE, NVLINK))
    seconds = _seconds(facts, before[PCIE], run)
    for card, after in looked_at(facts, run, known):
        key, between_s = (card.node, card.uuid), seconds.get(card.node, 0.0)
        if key in health:
            yield from _held(card, health[key], after, run)
            yield from _recovery(card, health[key], after["health"])
            for rise in counter_deltas.clock_rises(health[key], after["health"], between_s):
                yield _risen(THROTTLED, card, rise)
            for rise in counter_deltas.memory_rises(health[key], after["health"]):
                yield _risen(CORRECTED if rise.corrected else UNCORRECTED, card, rise)
        if key in pcie and after["pcie"]:
            for rise in counter_deltas.pcie_rises(pcie[key], after["pcie"], between_s):
                yield _risen(PCIE_ERRORS, card, rise)
        if key in nvlink and after["links"]:
            for rise in counter_deltas.nvlink_rises(nvlink[key]["links"] or [], after["links"], between_s):
                yield _risen(NVLINK_ERRORS, card, rise)
    yield from _left(facts, run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    known = cards(run.facts(INVENTORY), run)
    after, before = looked_at(facts, run, known), _values(run.facts(HEALTH), run, known)
    compared = [card for card, _ in after if (card.node, card.uuid) in before]
    unknown = f"; {len(after) - len(compared)} unknown before the run" if len(after) > len(compared) else ""
    return f"{ranges.count(len(compared), 'GPU')} compared with the start of the run{unknown}"


def _values(facts: Mapping[int, Any], run: Run, known: Mapping[Key, Card]) -> dict[Key, Any]:
    return {(card.node, card.uuid): values for card, values in looked_at(facts, run, known)}


def _seconds(facts: Mapping[int, Facts], before: Mapping[int, Any], run: Run) -> dict[str, float]:
    """Seconds between the two readings of each node's counters."""
    began, ended = by_node(before, run), by_node(facts, run)
    return {node: ended[node]["up_s"] - began[node]["up_s"] for node in ended.keys() & began.keys()}


# What no longer answers


def _not_named_before(facts: Mapping[int, Facts], before: Mapping[str, Mapping[int, Any]], run: Run) -> dict[int, Any]:
    """The facts without GPUs that an earlier check has reported."""
    named = {
        (run.job.node_of(rank).node, trouble["gpu"])
        for earlier in before.values()
        for rank, measured in earlier.items()
        for trouble in measured["look"]["troubles"]
    }
    found = {}
    for rank, measured in facts.items():
        node = run.job.node_of(rank).node
        troubles = [trouble for trouble in measured["look"]["troubles"] if (node, trouble["gpu"]) not in named]
        found[rank] = {"look": {**measured["look"], "troubles": troubles}}
    return found


def _driver_gone(inventory: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """If NVML worked at first, that it no longer does is more than a skip."""
    named = set()
    for rank, outcome in run.outcomes.items():
        node, reason = run.job.node_of(rank).node, outcome.reason or ""
        worked = rank in inventory and inventory[rank]["seen"]["system"] is not None
        if outcome.kind == "skipped" and reason.startswith(NO_NVML) and worked and node not in named:
            named.add(node)
            fix = "On {node}: nvidia-smi; dmesg | grep -i nvrm. Reboot the node, else drain it."
            yield NO_ANSWER.fail(f"{reason}, expected it to work as at the start of the run", node=node, fix=fix)


# What is still held


def _held(card: Card, before: Health, after: AtEnd, run: Run) -> Iterator[Finding]:
    """New processes on a GPU. One that NVML listed before is not new, whatever its pid means here."""
    old = {process["pid"] for process in before["processes"] or ()}
    listed = {process["pid"]: process["memory"] for process in after["health"]["processes"] or ()}
    new = {int(pid): holder for pid, holder in after["new"].items() if int(pid) not in old}
    for pid, holder in new.items():
        text = (
            f"the GPU is held by {processes.describe(pid, holder, listed.get(pid))}, expected no new one after the run"
        )
        yield PROCESS.warn(text, evidence={"pid": pid, "bus": card.bus}, **card.where)
    if not new and None not in (before["memory_used"], after["health"]["memory_used"]):
        yield from _unexplained(card, before, after["health"], run[WAIT_S])


def _unexplained(card: Card, before: Health, after: Health, waited_s: float) -> Iterator[Finding]:
    """Memory beyond that of the listed processes: earlier processes may use more by now."""
    was, is_ = (
        max(0, (health["memory_used"] or 0) - sum(process["memory"] or 0 for process in health["processes"] or ()))
        for health in (before, after)
    )
    if is_ > was + SLACK:
        text = f"{is_ / 2**20:,.0f} MiB of memory are in use {waited_s:g} s after the run"
        text += f", expected {was / 2**20:,.0f} as before it; no listed process holds it"
        unsure = card.numa or any(process["memory"] is None for process in after["processes"] or ())
        yield (MEMORY.info if unsure else MEMORY.warn)(text, evidence={"bus": card.bus}, **card.where)


def _left(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for rank, measured in facts.items():
        if measured["left"]:
            names = [leftover["name"] for leftover in measured["left"]]
            size = sum(leftover["size"] for leftover in measured["left"]) / 2**20
            text = f"{ranges.count(len(names), 'file')} of {size:,.1f} MiB, created during the run, "
            text += f"are left in /dev/shm ({words.some(names, 3)}), expected none"
            say = SHM.warn if measured["left"][0]["sure"] else SHM.info
            file = f"{leftovers.SHM}/{names[0]}"
            yield say(text, evidence={"files": names}, node=run.job.node_of(rank).node, file=file)


def _recovery(card: Card, before: Health, after: Health) -> Iterator[Finding]:
    if before["recovery_action"] == 0 and after["recovery_action"]:
        text = f"the driver asks for recovery action {after['recovery_action']} after the run, expected 0 (none)"
        yield RECOVERY.fail(text, evidence={"bus": card.bus}, **card.where)


def _risen(code: Code, card: Card, rise: CounterRise) -> Finding:
    evidence = {"bus": card.bus, "counters": rise.counters}
    return code.finding(rise.severity, rise.text, evidence=evidence, link=rise.link, **card.where)
