"""RDMA: the nodes' HCAs are alike, their links are up at full speed, and NCCL takes as many ports on each node.

Read from sysfs: devices, ports, rates, GIDs, firmware and PCIe; and which ports NCCL's own transport takes, by its
rules (2.30.7: ncclIbInitDevices in src/transport/net_ib/init.cc) and settings. EFA and makes other than NVIDIA's fail
nothing. Error counters are kept for net.rdma_errors. node.limits tells of locked memory, gpu.topology of cards that are
far from their GPU, and env.variables of `mlx5_1` where that takes mlx5_10, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from preflight.check import Code, Context, Finding, Level, NotApplicable, Plan, Run, Scope, Severity, ranges, vote
from preflight.checks.net import hca, hca_gids, hca_links, hca_names, hca_selected, nccl_files
from preflight.checks.net.hca_gids import GID_INDEX as GID_INDEX
from preflight.checks.net.hca_gids import NO_GID as NO_GID
from preflight.checks.net.hca_links import FIRMWARE as FIRMWARE
from preflight.checks.net.hca_links import LINK_LAYER as LINK_LAYER
from preflight.checks.net.hca_links import PCIE as PCIE
from preflight.checks.net.hca_links import SLOW as SLOW
from preflight.checks.net.hca_peers import Tie, compared
from preflight.checks.net.hca_selected import NOTHING as NOTHING
from preflight.checks.net.hca_selected import TOO_MANY as TOO_MANY
from preflight.checks.net.hca_selected import UNMATCHED as UNMATCHED
from preflight.checks.net.hca_use import Facts, Node, Trouble, Use, findings, listed, nodes, sides, tied, weighed
from preflight.rendezvous import tcp

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.1)

SILENT = Code(
    "An RDMA device does not answer its driver.",
    fix="There: dmesg | grep -i mlx5; reset the card (mlxfwreset -d {device} reset), or reboot; else drain the node.",
)
DOWN = Code(
    "A port that NCCL would use is not ACTIVE.",
    fix="There: ibstat {device}; mlxlink -d {device}. Polling: see the cable, its transceivers and the switch port. "
    "Disabled: switch it on (ip link set dev INTERFACE up). Else drain the node.",
)
MISSING = Code(
    "A node has fewer RDMA devices than the others.",
    fix="There: ls /sys/class/infiniband; lspci | grep -i -e infiniband -e mellanox; dmesg | grep mlx5. Hand a "
    "container all devices; else drain the node.",
)
CLOSED = Code(
    "A process may not open an HCA, so NCCL does not see it.",
    fix="There: ls -l /dev/infiniband; cat /sys/class/infiniband_verbs/uverbs*/ibdev. Hand the container all of them "
    "(docker: --device=/dev/infiniband; Kubernetes: the RDMA device plugin).",
)
UNEQUAL = Code(
    "NCCL would take unlike numbers of ports on the nodes.",
    fix="Have NCCL_IB_HCA name ports that all nodes have, such as '=mlx5_0,mlx5_1'. NCCL 2.30 ignores the mismatch by "
    "default and may hang (nccl issue 2428); with NCCL_IGNORE_NET_MISMATCH=0 it fails at the start.",
)
UNUSED = Code("No RDMA port is ACTIVE on any node.", fix="If NCCL should use them, see ibstat and the switches.")

SELECTING = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA")
READ = (*SELECTING, hca_gids.INDEX, hca_gids.VERSION, hca_gids.FAMILY, hca_gids.RANGE)
PATIENCE_S = 8.0
"""For all of a node: a command to a card's firmware takes about a millisecond."""
MOST_GIDS = 2048
"""Kept of a node: 150 KB. A table has up to 256, of which mostly a few are not empty."""
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def measure(ctx: Context) -> Facts:
    return look(ctx)


def look(ctx: Context, root: str = "") -> Facts:
    """A sick card may block who asks it: each is asked in a thread of its own. `root`: of a tree, in tests."""
    settings = {name: value for name, value in nccl_files.with_files(ctx.environ).items() if name in READ}
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
    of = {one.rank: one for one in all_}
    silent = list(_silent(all_, run))
    lost, undecided = _states(of, run)
    closed, nothing = list(_closed(of, run)), list(hca_selected.selects_nothing(all_, run))
    fewer, explained = _missing(of, run)
    explained |= {one.rank for one in (*silent, *lost, *closed, *nothing)}
    explained |= {rank for tie in undecided for ranks_ in tie.votes.ranks_of.values() for rank in ranks_}
    rest = [*hca_gids.unfit(of, run), *hca_selected.unmatched(all_, run), *hca_selected.too_many(all_)]
    yield from fewer
    yield from findings([*silent, *lost, *closed, *nothing, *rest], run, len(all_))
    yield from tied(DOWN, FAIL, undecided, "state", of, run)
    yield from _unequal(of, explained, run)
    yield from hca_links.unlike(of, run)
    yield from _unused(all_, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    all_ = nodes(facts)
    devices = sorted({len(one.devices) for one in all_})
    taken = sorted({_takes(one) for one in all_})
    links = {(port["layer"], port["rate"] or 0.0) for node in all_ for one in node.taken if (port := one.port)}
    kinds = ", ".join(f"{layer} {rate:g} Gb/s" for layer, rate in sorted(links)[:3])
    of = f"{_range(devices)} RDMA device{'' if devices == [1] else 's'} a node"
    return f"{of}; NCCL's own transport takes {_range(taken)}{f' ({kinds})' if taken[-1] else ''}"


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _takes(one: Node) -> int:
    return min(len(one.taken), hca_names.MOST) if one.uses_verbs else 0


def _silent(all_: Sequence[Node], run: Run) -> Iterator[Trouble]:
    what = f"silent: reading what /sys tells of it did not end within {PATIENCE_S:g} s"
    for one in all_:
        for name, vendor in one.facts["silent"].items():
            yield Trouble(SILENT, weighed(FAIL, one, vendor, run), one.rank, name, what, "milliseconds")


# Ports that are down


def _states(of: Mapping[int, Node], run: Run) -> tuple[list[Trouble], list[Tie[str]]]:
    """(what is down, of what nobody knows whether it should be up). What is down on all nodes is meant so, but for a
    port that waits for its subnet manager, and one that NCCL_IB_HCA asks for."""
    known = [one for node in of.values() for one in node.wanted if one.port["state"]]
    down: dict[Use, Trouble] = {}
    undecided: list[Tie[str]] = []
    for item in compared(one.has(one.port["state"]) for one in known):
        if isinstance(item, Tie):
            undecided += [item] if "ACTIVE" in item.votes.ranks_of else []
        elif item.usual == "ACTIVE":
            down[item.one.about] = _down(item.one.about, of, run, item.as_on, FAIL if item.has_twin else WARN)
    unlike = {item.one.label for item in undecided}
    for one in known:
        worst = FAIL if one.label in unlike else WARN
        if one.is_active or one in down:
            continue
        if one.port["layer"] == hca.INFINIBAND and one.port["physical"] == "LinkUp":
            down[one] = _down(one, of, run, "by its subnet manager", worst)
        elif of[one.rank].names(one.hca["name"]):
            down[one] = _down(one, of, run, "as NCCL_IB_HCA names it", worst)
    told = {one.label for one in down}
    return list(down.values()), [item for item in undecided if item.one.label not in told]


def _down(one: Use, of: Mapping[int, Node], run: Run, why: str, worst: Severity) -> Trouble:
    state, physical = one.port["state"], one.port["physical"]
    fix = "There: ibstat {device}; sminfo. The link is up, but no subnet manager has set it up: see that it runs."
    severity = weighed(worst, of[one.rank], one.vendor, run)
    waits = one.port["layer"] == hca.INFINIBAND and physical == "LinkUp"
    what = f"{state} ({physical})" if physical else state
    return Trouble(DOWN, severity, one.rank, one.label, what, f"ACTIVE {why}", fix if waits else None)


def _closed(of: Mapping[int, Node], run: Run) -> Iterator[Trouble]:
    """Who can open the same device on another node has shown that it should be so."""
    ports = [one for node in of.values() for one in node.wanted if one.is_active]
    open_ = {one.label for one in ports if one.hca["opens"]}
    for one in ports:
        if one.hca["opens"] is False:
            severity = weighed(FAIL if one.label in open_ else WARN, of[one.rank], one.vendor, run)
            expected = "open to it as on other nodes" if one.label in open_ else "open to it"
            expected += "" if of[one.rank].taken else ", without which NCCL goes over sockets"
            yield Trouble(CLOSED, severity, one.rank, one.label, "closed to this process (/dev/infiniband)", expected)


# Unlike numbers


def _missing(of: Mapping[int, Node], run: Run) -> tuple[list[Finding], set[int]]:
    """(findings, of which nodes). More than usual may be the fault of nobody: it is told where NCCL takes them. So are
    cards that nobody uses; but EFA's are a plugin's."""
    votes = vote((rank, len(one.devices)) for rank, one in of.items())
    most = max(of.values(), key=lambda one: len(one.devices))
    unlike = len({len(one.taken) for one in of.values()}) > 1
    worst = FAIL if unlike else WARN if len(most.suited) < len(most.ports) else INFO
    severity = weighed(worst, most, most.ports[0].vendor if most.ports else "", run)
    if not votes.decided:
        text = f"the number of RDMA devices is {sides(votes.ranks_of, run)}, expected the same on all nodes"
        return [MISSING.finding(severity, text)], set(of)
    usual = of[votes.ranks_of[votes.usual][0]].devices
    fewer = {rank: number for rank, number in votes.odd() if number < votes.usual}
    expected = f"expected {votes.usual} as on {votes.share('node')}"
    return [_fewer(of[rank], usual, severity, expected, run) for rank in fewer], set(fewer)


def _fewer(one: Node, usual: Sequence[str], severity: Severity, expected: str, run: Run) -> Finding:
    here = set(one.devices)
    gone = [name for name in usual if name not in here]
    known = here and len(gone) == len(usual) - len(here)
    which = f"; {listed(gone)} {'is' if len(gone) == 1 else 'are'} missing" if known else ""
    text = f"{ranges.count(len(here), 'RDMA device')} there, {expected}{which}"
    device = gone[0] if known and len(gone) == 1 else None
    return MISSING.finding(severity, text, node=run.job.node_of(one.rank).node, device=device)


def _unequal(of: Mapping[int, Node], explained: set[int], run: Run) -> Iterator[Finding]:
    """What it takes is not alike, and no device says why."""
    votes = vote((rank, _takes(one)) for rank, one in of.items())
    using = next((one for one in of.values() if _takes(one)), next(iter(of.values())))
    severity = weighed(FAIL, using, using.taken[0].vendor if using.taken else "", run)
    if not votes.decided and not explained:
        text = f"the number of ports that NCCL takes is {sides(votes.ranks_of, run)}, expected the same on all nodes"
        yield UNEQUAL.finding(severity, text)
    usual = of[votes.ranks_of[votes.usual][0]]
    for rank, number in votes.odd():
        if rank not in explained:
            expected = f"expected {votes.usual} as on {votes.share('node')}"
            yield _takes_others(
                of[rank], usual, severity, f"NCCL takes {ranges.count(number, 'port')}, {expected}", run
            )


def _takes_others(one: Node, usual: Node, severity: Severity, text: str, run: Run) -> Finding:
    differ = sorted({port.label for port in usual.taken} ^ {port.label for port in one.taken})
    text += f" (they differ in {listed(differ)})" if differ else ""
    own, others = one.facts["settings"], usual.facts["settings"]
    variable = next((name for name in SELECTING if own.get(name) != others.get(name)), None)
    device = differ[0] if len(differ) == 1 else None
    return UNEQUAL.finding(severity, text, node=run.job.node_of(one.rank).node, device=device, variable=variable)


def _unused(all_: Sequence[Node], run: Run) -> Iterator[Finding]:
    wanted = [use for one in all_ for use in one.wanted if one.uses_verbs]
    if wanted and run.job.backend == "nccl" and not any(use.is_active for use in wanted):
        text = f"none of {len(wanted):,} ports is ACTIVE, expected some if NCCL should use them: it goes over sockets"
        yield UNUSED.info(text)
