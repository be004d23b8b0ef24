"""Health: no GPU has failing memory, is hot or slowed down, is in use, or is set up differently from its siblings.

Reads everything from NVML, before the run's first CUDA call. Errors are the GPU's own counters; temperatures are
compared with the card's own limits; modes, clocks, power limit and BAR1 with the GPUs of the same model. What a card
does not report (ECC of a GeForce, processes in some containers) is left out.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NotRequired, TypedDict

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Trait,
    plots,
    ranges,
    traits,
)
from preflight.checks.gpu.health import in_use, settings
from preflight.checks.gpu.health.settings import GpuSetting
from preflight.checks.gpu.shared import nvml_errors, nvml_survey, processes
from preflight.checks.gpu.shared.cards import looked_at
from preflight.checks.gpu.shared.nvml_survey import GpuLook
from preflight.checks.gpu.shared.processes import Holder
from preflight.checks.gpu.shared.readings import Health
from preflight.checks.gpu.shared.unused_gpus import milder_elsewhere
from preflight.sdk.gpu_clocks import BRAKE, HW_SLOWDOWN, HW_THERMAL, SLOWED, SW_THERMAL

PARTS = (nvml_errors, in_use)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=60, estimate_s=0.2, after={"gpu.inventory": After.READS})

RETURN = "Drain {node}, run the vendor's field diagnostic on GPU {gpu}, and have it replaced."
RESET = "On {node}: end what runs on GPU {gpu}, then nvidia-smi -r -i {gpu} (if it refuses, all GPUs: nvidia-smi -r)."
UNCORRECTED = Code(
    "A GPU's memory had uncorrectable errors.",
    fix=f"{RESET} Drain the node if errors return.",
    action=Action.RESET_GPU,
)
SRAM = Code("The SRAM of a GPU (its on-chip memory) fails repeatedly.", fix=RETURN, action=Action.REPLACE)
REMAPPED = Code("Rows of a GPU's memory wait to be remapped, or cannot be.", fix=RETURN, action=Action.REPLACE)
RETIRED = Code("Pages of a GPU's memory wait to be retired, or too many were.", fix=RETURN, action=Action.REPLACE)
CORRECTED = Code(
    "A GPU corrects very many memory errors.",
    fix="Watch nvidia-smi -q -d ECC -i {gpu}; if the count keeps rising, drain {node} and have the GPU replaced.",
    action=Action.NONE,
)
RECOVERY = Code("The driver asks for a GPU to be recovered.", fix=RESET, action=Action.RESET_GPU)
INFOROM = Code("A GPU's InfoROM is corrupt: its counters and settings are not kept.", fix=RETURN, action=Action.REPLACE)
HOT = Code(
    "A GPU is too hot.",
    fix="Check fans, airflow and coolant of {node}; watch nvidia-smi -q -d TEMPERATURE.",
    action=Action.REPLACE,
)
THROTTLED = Code(
    "A GPU's clocks are throttled.",
    fix="See nvidia-smi -q -d PERFORMANCE,POWER -i {gpu}. Thermal: check the cooling. Power brake: the power supplies.",
    action=Action.REPLACE,
)
PERSISTENCE = Code("Persistence mode is off.", fix="As root: systemctl start nvidia-persistenced, or nvidia-smi -pm 1")
ECC_MODE = Code(
    "A GPU's ECC mode differs from its siblings', or is about to change.",
    fix="As root: nvidia-smi -i NUMBER -e 1 (0: off), then nvidia-smi -r -i NUMBER; all GPUs: without -i",
)
CLOCK = Code(
    "A GPU's clocks differ from its siblings', or are set low.",
    fix="See nvidia-smi -q -d CLOCK; as root, nvidia-smi -rgc, -rmc and -rac reset them.",
)
POWER_LIMIT = Code(
    "A GPU's power limit differs from its siblings', or is set low.",
    fix="See nvidia-smi -q -d POWER; as root: nvidia-smi -i NUMBER -pl WATTS; all GPUs: without -i",
)
BAR1 = Code("A GPU's BAR1 differs from its siblings'.", fix="Compare Above 4G Decoding and Resizable BAR in the BIOS.")

SETTINGS = (
    # On servers it keeps the driver loaded; on a desktop the screen does.
    GpuSetting(PERSISTENCE, "persistence mode", lambda health: settings.switch(health["persistence"]),
               lambda health: "on" if health["ecc"] else None),
    GpuSetting(ECC_MODE, "the ECC mode", settings.ecc, settings.ecc_that_turns),
    GpuSetting(BAR1, "the size of BAR1", lambda health: settings.mib(health["bar1"])),
    GpuSetting(POWER_LIMIT, "the power limit", lambda health: settings.watts(health["power_limit_mw"]),
               lambda health: settings.watts(health["power_default_mw"])),
    GpuSetting(CLOCK, "the highest SM clock", lambda health: settings.mhz(health["clocks"]["sm_max"])),
    GpuSetting(CLOCK, "the highest memory clock", lambda health: settings.mhz(health["clocks"]["memory_max"])),
    # Except in power saving, memory runs at one speed.
    GpuSetting(CLOCK, "the memory clock in P0",
               lambda health: settings.mhz(health["clocks"]["memory"]) if health["pstate"] == 0 else None),
    GpuSetting(CLOCK, "the SM application clock", partial(settings.application_clock, ("sm", "graphics"), ""),
               partial(settings.application_clock, ("sm", "graphics"), "_default")),
    GpuSetting(CLOCK, "the memory application clock", partial(settings.application_clock, ("memory",), ""),
               partial(settings.application_clock, ("memory",), "_default")),
)  # fmt: skip

MOST_ROWS = 512
"""How many uncorrectable rows can be remapped (NVIDIA, GPU memory error management; DCGM fails there too)."""
MOST_PAGES, MANY_DOUBLE = 63, 15
"""Retired pages before Ampere: there is room for 64; and this many after double-bit errors are suspect (DCGM)."""
MANY_SRAM = 4
"""Uncorrectable SRAM errors in a GPU's life: with more, vendors take it back (NVIDIA's RMA policy: 4 per bank)."""
MANY_CORRECTED = 20_000_000
"""As in Azure's node checks; others allow 50 million."""
RECOVERIES = {
    1: ("a reset of the GPU", RESET, Action.RESET_GPU),
    2: ("a reboot of the node", "Reboot {node}.", Action.REBOOT),
    3: (
        "an end of P2P traffic (drain P2P)",
        "End all processes on {node} that use several GPUs.",
        Action.FIX_CONFIG,
    ),
    4: ("a reset once its work has ended (drain and reset)", RESET, Action.RESET_GPU),
    5: (
        "a recovery of the IMEX domain",
        "Restart nvidia-imex on all nodes of {node}'s NVLink domain.",
        Action.FIX_CONFIG,
    ),
    6: ("a reset of the bus", "Reset the PCIe slot of GPU {gpu}, or power {node} off and on.", Action.REBOOT),
    7: ("a reboot of the whole system", "Reboot {node}, with the hosts that share its GPUs.", Action.REBOOT),
}
BY_RESET = (1, 4)
Statement = tuple[Callable[..., Finding], str]
"""(function that makes the finding, sentence)."""


class Facts(TypedDict):
    look: GpuLook
    """Health by UUID."""
    holders: dict[str, Holder]
    """The processes on all GPUs, by pid."""
    at_work: NotRequired[dict[str, list[int]]]
    """The utilization in two looks, in per cent, of GPUs that were at work in the first without a process, by UUID."""


def measure(ctx: Context) -> Facts:
    look = nvml_survey.session().look(ctx, "health")
    ctx.doing("looking for processes that use the GPUs")
    listed = (process["pid"] for health in look["gpus"].values() for process in health["processes"] or ())
    facts: Facts = {"look": look, "holders": processes.holders(listed)}
    if suspects := [uuid for uuid, health in look["gpus"].items() if in_use.works_for_nobody(health)]:
        time.sleep(in_use.APART_S)
        again = nvml_survey.session().look(ctx, "health")["gpus"]
        facts["at_work"] = {uuid: in_use.twice(look["gpus"][uuid], again.get(uuid)) for uuid in suspects}
    return nvml_survey.complete(ctx, facts)


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from nvml_errors.findings("gpu.health", facts, run)
    looked = looked_at(facts, run)
    for card, health in looked:
        for judged in (_errors, _flood, _recovery, _inforom, _slow):
            for say, text in judged(health):
                yield say(text, evidence=card.evidence, **card.where)
    for setting in SETTINGS:
        yield from settings.differing(setting, looked)
    yield from in_use.findings(looked, facts, run)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    """Only settings, not current clocks or temperatures."""
    for uuid, health in reading["look"]["gpus"].items():
        clocks = {f"{name} clock in MHz": mhz for name, mhz in health["clocks"].items() if name not in ("sm", "memory")}
        yield from traits("clock", {**clocks, "power limit in mW": health["power_limit_mw"]}, uuid)
        yield from traits("hardware", {"ECC": health["ecc"], "persistence mode": health["persistence"]}, uuid)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    looked = [health for _, health in looked_at(facts, run)]
    degrees = [health["temperature"] for health in looked if health["temperature"] is not None]
    unlisted = sum(health["processes"] is None for health in looked)
    parts = [ranges.count(len(looked), "GPU")]
    parts += [f"{min(degrees)} to {max(degrees)} °C"] if degrees else []
    parts += [f"processes cannot be listed on {unlisted}"] if unlisted else []
    return ", ".join(parts)


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    looked = looked_at(facts, run)
    healths = [health for _, health in looked]
    hot = [place for place, health in enumerate(healths) if _heat(health)]
    slowed = [place for place, health in enumerate(healths) if any((health["throttle"] or 0) & bit for bit in SLOWED)]
    strips = [
        plots.Strip("temperature", "°C", [health["temperature"] for health in healths], hot),
        plots.Strip("SM clock", "MHz", [health["clocks"]["sm"] for health in healths], slowed),
        plots.Strip("highest SM clock", "MHz", [health["clocks"]["sm_max"] for health in healths]),
        plots.Strip("power limit", "W", [_watts(health) for health in healths]),
    ]
    shown = [strip for strip in strips if any(value is not None for value in strip.values)]
    if shown:
        yield plots.Strips("health of each GPU", [(card.node, f"gpu {card.gpu}") for card, _ in looked], shown)


def _watts(health: Health) -> float | None:
    limit = health["power_limit_mw"]
    return None if limit is None else limit / 1000


def _uncorrected(health: Health) -> int:
    """Uncorrectable errors since the driver was loaded."""
    sram = health["sram"]["volatile_uncorrected"] if health["sram"] else 0
    return max(health["ecc_errors"]["volatile_uncorrected"] or 0, sram)


def _repair(health: Health) -> str:
    """What is pending until the next reset, or ""."""
    if health["remapped"] and health["remapped"]["pending"]:
        return "memory rows wait to be remapped at the next reset"
    return "memory pages wait to be retired at the next reset" if (health["retired"] or {}).get("pending") else ""


def _errors(health: Health) -> Iterator[Statement]:
    """Only the worst finding: errors, their consequences and what waits for a reset are one event. A row that waits is
    out of use meanwhile (NVIDIA: new work may start), so a pending row alone is only a risk."""
    count, repair, remapped = _uncorrected(health), _repair(health), health["remapped"] or {}
    had = f"{ranges.count(count, 'uncorrectable memory error')} since the driver was loaded"
    if remapped.get("failed"):
        yield REMAPPED.fail, f"a memory row could not be remapped, expected spare rows to be left; {had}"
    elif health["sram"] and health["sram"]["threshold_exceeded"]:
        lived = ranges.count(health["sram"]["aggregate_uncorrected"], "uncorrectable error")
        yield SRAM.fail, f"the SRAM has exceeded the threshold of its errors ({lived}), expected to stay below it"
    elif count:
        yield UNCORRECTED.fail, f"{had}, expected none{f'; {repair}' if repair else ''}"
    else:
        yield from _signs(health, repair)


def _signs(health: Health, repair: str) -> Iterator[Statement]:
    """Signs of memory that ages, but still works."""
    rows, pages = (health["remapped"] or {}).get("uncorrected", 0), health["retired"] or {}
    double = pages.get("double_bit") or 0
    retired = double + (pages.get("single_bit") or 0)
    lived = health["ecc_errors"]["aggregate_uncorrected"] or 0
    sram = (health["sram"] or {}).get("aggregate_uncorrected", 0)
    if rows >= MOST_ROWS:
        yield REMAPPED.warn, f"{ranges.count(rows, 'memory row')} are remapped, expected fewer than {MOST_ROWS}"
    elif retired >= MOST_PAGES or double > MANY_DOUBLE:
        most = f"fewer than {MOST_PAGES}, and at most {MANY_DOUBLE} of them"
        yield RETIRED.warn, f"{retired} memory pages are retired, {double} after double-bit errors; expected {most}"
    elif repair and health["recovery_action"] not in BY_RESET:
        code = REMAPPED if health["remapped"] else RETIRED
        yield partial(code.warn, fix=RESET, action=Action.RESET_GPU), f"{repair}, expected none"
    elif sram > MANY_SRAM:
        yield SRAM.warn, f"{sram} uncorrectable SRAM errors in the GPU's life, expected at most {MANY_SRAM}"
    elif lived or sram:
        count = ranges.count(max(lived, sram), "uncorrectable memory error")
        text = f"{count} in the GPU's life (none since the driver was loaded), expected none"
        yield partial(UNCORRECTED.info, fix="Watch nvidia-smi -q -d ECC -i {gpu}."), text


def _flood(health: Health) -> Iterator[Statement]:
    errors = health["ecc_errors"]
    count = max(errors["volatile_corrected"] or 0, errors["aggregate_corrected"] or 0)
    if count > MANY_CORRECTED:
        yield CORRECTED.warn, f"{count:,} corrected memory errors, expected at most {MANY_CORRECTED:,}"


def _recovery(health: Health) -> Iterator[Statement]:
    """Requested recoveries, except a reset that a memory finding already asks for."""
    action = health["recovery_action"] or 0
    if action and not (action in BY_RESET and _uncorrected(health)):
        wanted, fix, remedy = RECOVERIES.get(action, (f"recovery action {action}", RESET, Action.RESET_GPU))
        why = f": {repair}" if (repair := _repair(health)) else ""
        yield partial(RECOVERY.fail, fix=fix, action=remedy), f"the driver asks for {wanted}, expected none{why}"


def _inforom(health: Health) -> Iterator[Statement]:
    if health["inforom_valid"] is False:
        yield INFOROM.warn, "the InfoROM is corrupt, expected a valid checksum"


def _slow(health: Health) -> Iterator[Statement]:
    """Throttled clocks, without the slowdown that a heat finding already reports."""
    reasons, heat = health["throttle"] or 0, _heat(health)
    if heat or reasons & (HW_THERMAL | BRAKE):
        reasons &= ~HW_SLOWDOWN  # a more precise reason is given
    if heat:
        reasons &= ~(HW_THERMAL | SW_THERMAL)
        yield HOT.warn, heat
    if slowed := [name for bit, name in SLOWED.items() if reasons & bit]:
        clock = health["clocks"]["sm"]
        at = f" (SM clock {clock} of {health['clocks']['sm_max']} MHz)" if clock is not None else ""
        yield THROTTLED.warn, f"the clocks are throttled: {' and '.join(slowed)}{at}, expected no such reason"


def _heat(health: Health) -> str:
    """Compares with the card's own limits. Newer cards report only the degrees left to the limit."""
    now, margin, limits = health["temperature"], health["temperature_margin"], health["temperature_limits"]
    memory, memory_most = health["memory_temperature"], limits["memory_max"]
    most = min([limit for limit in (limits["gpu_max"], limits["slowdown"]) if limit], default=None)
    if margin is not None and margin <= 0:
        return f"the GPU is at {now} °C with {margin} degrees left to its limit, expected more than 0"
    if margin is None and now is not None and most is not None and now >= most:
        return f"the GPU is at {now} °C, expected less than its limit of {most} °C"
    if memory is not None and memory_most and memory >= memory_most:
        return f"the memory is at {memory} °C, expected less than its limit of {memory_most} °C"
    return ""
