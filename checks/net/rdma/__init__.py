"""RDMA: all nodes have the same HCAs, their links are up at full speed, and NCCL uses the same number of ports.

Reads devices, ports, rates, GIDs, firmware and PCIe from sysfs, and derives which ports NCCL's own transport uses from
its rules (2.30.7: ncclIbInitDevices in src/transport/net_ib/init.cc) and settings. EFA and other makes than NVIDIA's
never fail. Keeps error counters for net.rdma_errors. node.limits reports on locked memory, gpu.topology on cards that
are far from their GPU, and env.variables on an `mlx5_1` that also matches mlx5_10.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Severity,
    Trait,
    traits,
)
from preflight.checks.net.rdma import hca_gids, hca_links, hca_numbers, hca_selected, hca_states
from preflight.checks.net.shared import hca
from preflight.checks.net.shared.port_selection import Facts, NodePorts, PortTrouble, findings, nodes, weighed
from preflight.nccl import config_files
from preflight.sdk import tcp

PARTS = (hca_gids, hca_links, hca_numbers, hca_selected, hca_states)
PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.1)

NO_ANSWER = Code(
    "An RDMA device does not answer its driver.",
    fix="Drain the node. There: dmesg | grep -i mlx5; reboot it, or reset the card (mlxfwreset -d {device} reset).",
    action=Action.REBOOT,
)
PERMISSION_DENIED = Code(
    "The process may not open an HCA, so NCCL does not see it.",
    fix="There: ls -l /dev/infiniband; cat /sys/class/infiniband_verbs/uverbs*/ibdev. Give the container all of them "
    "(docker: --device=/dev/infiniband; Kubernetes: the RDMA device plugin).",
)
NO_ACTIVE_PORT = Code(
    "No RDMA port is ACTIVE on any node.", fix="If NCCL should use them, check ibstat and the switches."
)

READ = (*hca_numbers.SWITCHES, hca_numbers.HCAS, hca_gids.INDEX, hca_gids.VERSION, hca_gids.FAMILY, hca_gids.RANGE)
PATIENCE_S = 8.0
"""For all cards of a node; a command to a card's firmware takes about a millisecond."""
MOST_GIDS = 2048
"""The most to keep per node: 150 KB. A table has up to 256, mostly empty."""
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def measure(ctx: Context, root: str = "") -> Facts:
    """Reads each card in its own thread: a sick card may block it. `root`: where tests have a tree with /sys."""
    settings = {name: value for name, value in config_files.with_files(ctx.environ).items() if name in READ}
    names, verbs = hca.names(root), hca.verbs_devices(root)
    ctx.doing("reading sysfs")
    calls = {name: partial(hca.read, name, verbs, max(4, MOST_GIDS // len(names)), root) for name in names}
    read = tcp.in_time(calls, PATIENCE_S)
    silent = {name: hca.vendor(name, root) for name in names if name not in read}
    facts: Facts = {"hcas": [read[name] for name in names if name in read], "silent": silent, "settings": settings}
    if not names:
        raise NotApplicable("there is no RDMA device in /sys/class/infiniband", facts)
    return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    all_ = nodes(facts)
    if not all_:
        return
    of = {node.rank: node for node in all_}
    silent = list(_silent(all_, run))
    lost, undecided = hca_states.not_active(of, run)
    closed, nothing = list(_closed(of, run)), list(hca_selected.selects_nothing(all_, run))
    fewer, explained = hca_numbers.missing(of, run)
    explained |= {trouble.rank for trouble in (*silent, *lost, *closed, *nothing)}
    explained |= {rank for tie in undecided for ranks_ in tie.votes.ranks_of.values() for rank in ranks_}
    everywhere = hca_states.down_everywhere(of, lost, run)
    rest = [*everywhere, *hca_gids.unfit(of, run), *hca_selected.unmatched(all_, run), *hca_selected.too_many(all_)]
    yield from fewer
    yield from findings([*silent, *lost, *closed, *nothing, *rest], run, len(all_))
    yield from hca_states.both_sides(undecided, of, run)
    yield from hca_numbers.unequal({rank: node for rank, node in of.items() if rank not in explained}, run)
    yield from hca_links.differing(of, run)
    yield from _unused(all_, run)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    for card in reading["hcas"]:
        yield from traits("software", {f"{card['name']} firmware": card["firmware"]})
        yield from traits("link", {f"{card['name']} PCIe": card["pcie"]})
        for port in card["ports"]:
            of = {"state": port["state"], "Gb/s": port["rate"]}
            yield from traits("link", {f"{card['name']}:{port['port']} {what}": value for what, value in of.items()})


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    all_ = nodes(facts)
    devices = sorted({len(node.devices) for node in all_})
    taken = sorted({hca_numbers.takes(node) for node in all_})
    links = {(port["layer"], port["rate"] or 0.0) for node in all_ for use in node.taken if (port := use.port)}
    kinds = ", ".join(f"{layer} {rate:g} Gb/s" for layer, rate in sorted(links)[:3])
    of = f"{_range(devices)} RDMA device{'' if devices == [1] else 's'} per node"
    return f"{of}; NCCL's own transport uses {_range(taken)}{f' ({kinds})' if taken[-1] else ''}"


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _silent(all_: Sequence[NodePorts], run: Run) -> Iterator[PortTrouble]:
    what = f"silent: reading its files in /sys did not end within {PATIENCE_S:g} s"
    for node in all_:
        for name, vendor in node.facts["silent"].items():
            yield PortTrouble(NO_ANSWER, weighed(FAIL, node, vendor, run), node.rank, name, what, "milliseconds")


def _closed(of: Mapping[int, NodePorts], run: Run) -> Iterator[PortTrouble]:
    """Devices closed to the process; worse if another node can open the same device."""
    ports = [use for node in of.values() for use in node.wanted if use.is_active]
    open_ = {use.label for use in ports if use.hca["opens"]}
    for use in ports:
        if use.hca["opens"] is False:
            worst = FAIL if use.label in open_ else WARN
            severity = weighed(worst, of[use.rank], use.vendor, run, alone=INFO)
            expected = "open to it as on other nodes" if use.label in open_ else "open to it"
            expected += "" if of[use.rank].taken else ", else NCCL uses sockets"
            yield PortTrouble(
                PERMISSION_DENIED, severity, use.rank, use.label, "closed to this process (/dev/infiniband)", expected
            )


def _unused(all_: Sequence[NodePorts], run: Run) -> Iterator[Finding]:
    wanted = [use for node in all_ for use in node.wanted if node.uses_verbs]
    if wanted and run.job.backend == "nccl" and not any(use.is_active for use in wanted):
        text = f"none of {len(wanted):,} ports is ACTIVE, expected some if NCCL should use them: it uses sockets"
        yield NO_ACTIVE_PORT.info(text)
