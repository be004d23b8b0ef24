"""RDMA errors: since the run started, no HCA port has gone down and no link error counter has risen.

Runs last: compares what net.rdma read at the start with the state after the collectives have used the links.
"""

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypedDict

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Severity,
    ranges,
    words,
)
from preflight.checks.net.shared import hca, hca_counters
from preflight.checks.net.shared.port_selection import SHOWN, NodePorts, PortTrouble, Use, findings, weighed
from preflight.sdk import files, tcp

RDMA = "net.rdma"
PLAN = Plan(Scope.NODE, Level.STANDARD, deadline_s=20, estimate_s=0.1, after={RDMA: After.READS}, last=True)

WENT_DOWN = Code(
    "A port of an HCA went down, or its device vanished, during the run.",
    fix="There: ibstat {device}; dmesg | grep -i -e mlx5 -e infiniband. Drain the node until the link stays up.",
    action=Action.REPLACE,
)
LINK = Code(
    "Error counters of an HCA's link rose during the run.",
    fix="There: mlxlink -d {device} -c; reseat or replace the cable or transceiver, check the switch port. Drain the "
    "node if they keep rising.",
    action=Action.REPLACE,
)
RETRANSMITS = Code(
    "HCAs resent packets during the run.",
    fix="See rdma statistic show link {device}/{port}, and drops on switches; on RoCE also PFC and ECN everywhere.",
    action=Action.NONE,
)
COUNTER_SATURATED = Code(
    "An error counter of an HCA is saturated and cannot rise.",
    fix="There: perfquery -x -C {device} -P {port}; reset its counters: perfquery -R -C {device} -P {port}",
)
FIX_ETHERNET = "Only a card reset clears it, after draining the node: mlxfwreset -d {device} reset."

PATIENCE_S = 4.0
GONE, SILENT = "gone", f"silent (no answer within {PATIENCE_S:g} s)"
UNKNOWN_RATE = 100.0
"""Gb/s, if sysfs does not tell the rate."""


class Facts(TypedDict):
    ports: dict[str, tuple[str, dict[str, int]]]
    """{"mlx5_0:1": (state, counters)}."""
    silent: list[str]
    """Devices that did not answer."""
    run_s: float
    """Seconds since this rank started, which was before net.rdma."""


def measure(ctx: Context, root: str = "") -> Facts:
    """`root`: where tests have a tree with /sys."""
    names = hca.names(root)
    ctx.doing("reading sysfs")
    read = tcp.in_time({name: partial(hca.watched, name, root) for name in names}, PATIENCE_S)
    ports = {label: port for found in read.values() for label, port in found.items()}
    silent = [name for name in names if name not in read]
    facts: Facts = {"ports": ports, "silent": silent, "run_s": _age(os.getppid())}
    if not names:
        raise NotApplicable("there is no RDMA device in /sys/class/infiniband", facts)
    return facts


def _age(pid: int) -> float:
    """Seconds since a process started; the worker's parent is the rank's supervisor."""
    began = int(files.stat_of(pid)[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    troubles: list[PortTrouble] = []
    resent: dict[Use, list[hca_counters.Rise]] = {}
    before = _before(facts, run)
    for node in before:
        after = facts[node.rank]
        for use in node.ports:
            gone = SILENT if use.hca["name"] in after["silent"] else GONE
            state, counters = after["ports"].get(f"{use.hca['name']}:{use.port['port']}", (gone, {}))
            rises = hca_counters.risen(use.port["counters"], counters)
            troubles += _of_port(use, state, rises, after["run_s"], node, run)
            lost = [rise for rise in rises if rise.name in hca_counters.LOST]
            resent |= {use: lost} if lost and use in node.taken else {}
            if use in node.taken:
                troubles += _full(use, counters, _bad(use, rises, after["run_s"]), node, run)
    yield from findings(troubles, run, len(facts))
    if resent:
        yield _resent(resent, sum(len(node.taken) for node in before), run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    before = _before(facts, run)
    ports = sum(len(node.ports) for node in before)
    unknown = len(facts) - len(before)
    more = f"; the state of {ranges.count(unknown, 'node')} at the start is unknown" if unknown else ""
    return f"{ranges.count(ports, 'port')} compared with the start of the run{more}"


def _before(facts: Mapping[int, Facts], run: Run) -> list[NodePorts]:
    return [NodePorts(rank, reading) for rank, reading in run.facts(RDMA).items() if rank in facts]


def _of_port(
    use: Use, state: str, rises: list[hca_counters.Rise], run_s: float, node: NodePorts, run: Run
) -> Iterator[PortTrouble]:
    """Findings about a port; only info if NCCL does not use it."""
    is_taken = use in node.taken
    fail, warn = (
        weighed(worst, node, use.vendor, run) if is_taken else Severity.INFO for worst in (Severity.FAIL, Severity.WARN)
    )
    if use.is_active and state not in ("ACTIVE", ""):
        yield PortTrouble(WENT_DOWN, fail, use.rank, use.label, f"{state} after the run", "ACTIVE as at its start")
    if found := _bad(use, rises, run_s):
        severity = warn if use.vendor == hca.MELLANOX else Severity.INFO
        what = f"counting link errors: {', '.join(map(str, found))}"
        yield PortTrouble(LINK, severity, use.rank, use.label, what, "none during the run")


def _bad(use: Use, rises: list[hca_counters.Rise], run_s: float) -> list[hca_counters.Rise]:
    return hca_counters.bad(rises, use.port["rate"] or UNKNOWN_RATE, run_s)


def _full(
    use: Use, counters: Mapping[str, int], rises: list[hca_counters.Rise], node: NodePorts, run: Run
) -> Iterator[PortTrouble]:
    """Saturated counters, without those whose rise is already reported. A link that went down that often is at risk,
    and no one would see it go down again; other counters may have been saturated for long."""
    rose = {rise.name for rise in rises}
    full = [name for name in hca_counters.full(counters) if name not in rose]
    if full:
        went_down = hca_counters.WENT_DOWN in full and use.vendor == hca.MELLANOX
        severity = weighed(Severity.WARN if went_down else Severity.INFO, node, use.vendor, run)
        ends = [f"{name} ({counters[name]:,})" for name in full]
        what = f"at the end of its counter{'' if len(full) == 1 else 's'} {words.some(ends, SHOWN)}"
        fix = None if use.port["layer"] == hca.INFINIBAND else FIX_ETHERNET
        yield PortTrouble(COUNTER_SATURATED, severity, use.rank, use.label, what, "room to rise", fix)


def _resent(resent: Mapping[Use, list[hca_counters.Rise]], of: int, run: Run) -> Finding:
    """A port that resends is the victim of a loss anywhere on the way: it is named only if it is the only one."""
    worst = sorted(resent, key=lambda use: -sum(rise.after - rise.before for rise in resent[use]))
    listed = [f"{use.label} of {run.job.node_of(use.rank).node}: {', '.join(map(str, resent[use]))}" for use in worst]
    shown = words.clauses(listed, 3)
    text = f"{len(resent)} of {ranges.count(of, 'port')} resent packets during the run ({shown})"
    names = {run.job.node_of(use.rank).node for use in worst}
    device = worst[0].hca["name"]
    where = {"node": names.pop()} if len(names) == 1 else {}
    where |= {"device": device} if len(worst) == 1 else {}
    return RETRANSMITS.info(
        f"{text}, expected none", evidence={"device": device, "port": worst[0].port["port"]}, **where
    )
