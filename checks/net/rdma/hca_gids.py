"""Which GID NCCL uses on a RoCE port (2.30.7: ncclIbGetGidIndex and ncclUpdateGidIndex in
src/transport/net_ib/connect.cc), and whether other nodes can reach it."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Code, Run, Severity
from preflight.checks.net.shared.hca import ETHERNET, MELLANOX, Gid
from preflight.checks.net.shared.hca_peers import OddPort, compare_ports
from preflight.checks.net.shared.port_selection import NodePorts, PortTrouble, Use, weighed
from preflight.nccl.hca_names import integer

NO_GID = Code(
    "NCCL finds no routable GID on a RoCE port.",
    fix="There: show_gids {device}; ip addr. Give its interface an IPv4 address, or set NCCL_IB_ADDR_FAMILY=AF_INET6 "
    "on all nodes if they have IPv6 ones.",
)
GID_INDEX = Code(
    "NCCL_IB_GID_INDEX selects an unusable GID.",
    fix="There: show_gids {device}. Unset NCCL_IB_GID_INDEX (NCCL chooses by itself since 2.21), or fix the "
    "interface's addresses so that the table is the same as on the other nodes.",
)

INDEX, VERSION, FAMILY, RANGE = (
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
)

EMPTY = "empty"


def set_index(settings: Mapping[str, str]) -> int | None:
    """The value of NCCL_IB_GID_INDEX; None if NCCL chooses by itself."""
    index = integer(settings[INDEX], 0) if INDEX in settings else -1
    return index if index >= 0 else None


def chosen(gids: Sequence[Gid], settings: Mapping[str, str]) -> int:
    """The index that NCCL chooses, ignoring NCCL_IB_ADDR_RANGE. It starts with entry 0; the first entry of the wanted
    family replaces it, and a routable one of the wanted version replaces one that is not."""
    wanted = "AF_INET6" if settings.get(FAMILY) == "AF_INET6" else "AF_INET"
    version = _version(settings)
    by_index = {gid["index"]: gid for gid in gids}
    index = 0
    for candidate in gids:
        if _family(candidate) != wanted:
            continue
        now = by_index.get(index)
        if _family(now) != wanted:
            index = candidate["index"]
        elif routable(candidate) and candidate["version"] == version:
            known = now["version"] if now else None
            index = candidate["index"] if known != version or not routable(now) else index
    return index


def routable(gid: Gid | None) -> bool:
    return gid is not None and gid["kind"] in ("ipv4", "ipv6")


def describe(gid: Gid) -> str:
    """A GID in words: "link-local, RoCE v1"."""
    return gid["kind"] + (f", RoCE v{gid['version']}" if gid["version"] else "")


def _family(gid: Gid | None) -> str:
    return "AF_INET" if gid is not None and gid["kind"] == "ipv4" else "AF_INET6"


def unfit(of: Mapping[int, NodePorts], run: Run) -> Iterator[PortTrouble]:
    """Ports with an unusable GID. Skips unreadable tables, and NCCL_IB_ADDR_RANGE, whose addresses are not kept."""
    by_index: dict[int | None, list[Use]] = {}
    for node in of.values():
        settings = node.facts["settings"]
        index = set_index(settings)
        if index is not None or RANGE not in settings:
            ports = [use for use in node.taken if use.port["layer"] == ETHERNET and use.port["gids"] is not None]
            by_index.setdefault(index, []).extend(ports)
    for index, ports in by_index.items():
        flaws = {use: _flaw(use, of[use.rank].facts["settings"]) for use in ports}
        items = compare_ports(use.has(flaw) for use, flaw in flaws.items())
        as_on = {item.port.about: item.as_on for item in items if isinstance(item, OddPort) and not item.usual}
        for use, flaw in flaws.items():
            if flaw and (use in as_on or use.vendor == MELLANOX):
                worst = Severity.FAIL if use in as_on or flaw == EMPTY else _everywhere(index, of[use.rank], flaws)
                alone = Severity.INFO if index is None else Severity.WARN
                severity = weighed(worst, of[use.rank], use.vendor, run, alone)
                expected = f"a routable one (RoCE v{_version(of[use.rank].facts['settings'])}) {as_on.get(use, '')}"
                yield _trouble(use, index, flaw, expected.rstrip(), severity)


def _everywhere(index: int | None, node: NodePorts, flaws: Mapping[Use, str]) -> Severity:
    """The severity for a port that has the flaw on all nodes: without an address it may serve another purpose, if other
    ports are usable."""
    others = any(not flaws.get(use) for use in node.taken)
    return Severity.INFO if index is None and others else Severity.WARN


def _trouble(use: Use, index: int | None, flaw: str, expected: str, severity: Severity) -> PortTrouble:
    if index is None:
        return PortTrouble(NO_GID, severity, use.rank, use.label, f"without a usable GID (NCCL takes {flaw})", expected)
    what, more = f"without a usable GID at index {index}, which {INDEX} selects (it is {flaw})", (("variable", INDEX),)
    return PortTrouble(GID_INDEX, severity, use.rank, use.label, what, expected, more=more)


def _flaw(use: Use, settings: Mapping[str, str]) -> str:
    """What is wrong with the GID that NCCL takes; "" if nothing, or if its version cannot be read."""
    index = set_index(settings)
    gids = use.port["gids"] or []
    at = chosen(gids, settings) if index is None else index
    gid = next((gid for gid in gids if gid["index"] == at), None)
    if gid is None and use.port["more_gids"]:
        return ""
    if gid is None:
        return EMPTY if index is not None else f"{at}, which is {EMPTY}"
    if routable(gid) and gid["version"] in (None, _version(settings)):
        return ""
    return describe(gid) if index is not None else f"{at}: {describe(gid)}"


def _version(settings: Mapping[str, str]) -> int:
    return integer(settings[VERSION], 0) if VERSION in settings else 2
