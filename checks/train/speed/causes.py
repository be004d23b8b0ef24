"""Why a rank may compute late: what holds its CPU core or its GPU back, as far as the run has seen it."""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from preflight.check import Run, read
from preflight.checks.train.speed.facts import AllFacts
from preflight.sdk.files import stat_of
from preflight.sdk.gpu_clocks import SLOWED

GPU = "gpu.inventory", "gpu.health"
"""Whose facts are used where they are there."""
THROTTLED = 0.5
"""Of the periods of a CPU quota (100 ms as a rule) that were used up before their end."""
SLOW_CLOCK = 0.75
"""Of the other ranks' clock."""


class LateCause(NamedTuple):
    text: str
    fix: str
    evidence: Mapping[str, Any]


def cause(rank: int, facts: AllFacts, run: Run, name: str) -> LateCause | None:
    """The surest one. `name`: of the strategy."""
    if facts[rank]["device"] != "CPU":
        return _of_gpu(rank, run)
    if (share := facts[rank]["strategies"][name]["throttled"]) >= THROTTLED:
        return of_quota(facts[rank]["quota"], share)
    return _of_clock(rank, facts)


def of_quota(quota: float | None, share: float) -> LateCause:
    allowed = (
        "" if quota is None else f" of {quota:.3g} {'cores' if quota > 1 else 'core' if quota == 1 else 'of a core'}"
    )
    return LateCause(
        f"the CPU quota{allowed} of its cgroup is used up: throttled in {share:.0%} of periods",
        "Raise its CPU quota: cpu.max of the cgroup (cpu.cfs_quota_us in version 1; nr_throttled in cpu.stat counts "
        "on), --cpus of the container, resources.limits.cpu of the pod; or start fewer ranks there.",
        {"cause": "quota", "throttled": round(share, 3), "quota": quota},
    )


def _of_clock(rank: int, facts: AllFacts) -> LateCause | None:
    clocks = {of: own["clock_mhz"] for of, own in facts.items() if own["clock_mhz"]}
    own, others = clocks.get(rank), [mhz for of, mhz in clocks.items() if of != rank]
    if not own or not others or own > SLOW_CLOCK * (usual := statistics.median_low(others)):
        return None
    return LateCause(
        f"its core runs at {own:,.0f} MHz, those of the others at {usual:,.0f} MHz",
        "On its node: cpupower frequency-info (governor, limits), turbostat, sensors (heat), dmesg | grep -i thermal; "
        "the power settings of the BIOS.",
        {"cause": "clock", "mhz": round(own), "usual_mhz": round(usual)},
    )


def _of_gpu(rank: int, run: Run) -> LateCause | None:
    """By what gpu.health read before the run's first CUDA call."""
    inventory, health = (run.facts(check) for check in GPU)
    own = inventory.get(rank)
    visible = own["visible"] if own else []
    index = 0 if len(visible) == 1 else own["local_rank"] if own else 0
    if index >= len(visible):
        return None
    looks = [its["look"] for of, its in health.items() if run.job.node_of(of) == run.job.node_of(rank)]
    look = next((its for its in looks if visible[index] in its["gpus"]), None)
    if look is None:
        return None
    values, number = look["gpus"][visible[index]], look["numbers"][visible[index]]
    reasons = [words for bit, words in SLOWED.items() if (values["throttle"] or 0) & bit]
    if not reasons:
        return None
    clocks, heat = values["clocks"], values["temperature"]
    at = f", SM clock {clocks['sm']:,} of {clocks['sm_max']:,} MHz" if clocks["sm"] and clocks["sm_max"] else ""
    at += f", {heat} °C" if heat is not None else ""
    return LateCause(
        f"GPU {number} was throttled before the run: {' and '.join(reasons)}{at}",
        f"See gpu.health; nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE -i {number}. Thermal: the cooling. "
        "Power brake: the power supplies.",
        {"cause": "gpu", "gpu": number, "reasons": reasons, "sm_mhz": clocks["sm"], "celsius": heat},
    )


def core_mhz() -> float | None:
    """Of the core that this thread runs on, now; None where the kernel does not tell, as in most virtual machines."""
    fields = stat_of("thread-self")
    core = fields[36] if len(fields) > 36 else ""
    khz = read(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
    return int(khz) / 1000 if khz.isdecimal() else None
