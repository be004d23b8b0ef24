"""Which nodes NCCL's ranks could not connect to, from the addresses in their logs; a part of failed_init."""

import re
from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Code, Finding, Run, ranges
from preflight.checks.comm.init.init_causes import RDMA

UNREACHABLE = Code(
    "A rank could not connect to another node over the interface that NCCL chose.",
    fix="Check that the nodes reach each other at these addresses on all ports from 1024 on (net.mesh; firewall: nft "
    "list ruleset), and that NCCL_SOCKET_IFNAME is the interface that connects them: ip route get ADDRESS.",
    see=("net.mesh", "net.interfaces", "net.rendezvous"),
)
LOOPBACK = "127."

CONNECT = re.compile(
    r"[Cc]onnect to ([0-9A-Fa-f.:]{2,45}(?:%[\w.-]{1,20})?|[\w.-]{1,200})<\d+> "
    r"(?:failed ?: |returned (?:\d+\()?)([A-Z][A-Za-z ]{3,40})"
)
"""2.14 to 2.30: "Net : Connect to A<P> failed : E", "socketPollConnect: Connect to A<P> returned N(E) errno ...",
"socketStartConnect: connect to A<P> returned E, exceeded error retry count ..." (src/misc/socket.cc)."""
RETRIES = re.compile(
    r"completion from peer ([0-9A-Fa-f.:]{2,45})<\d+> with (?:error |status=)(?:IBV_WC_RETRY_EXC_ERR\()?12\b"
)
"""In the first all-reduce: the peer's HCA does not answer (a link, a GID, a route); status 5 marks a victim."""
NAMELESS = re.compile(
    r"(?:connect returned|socket\w{4,5}Connect:) (?!connect)([A-Za-z ]{3,40}?)(?:, exceeded error retry count| \(\d)"
)
"""2.24 to 2.26; before, "socketPollConnect: exceeded retries (20000)" (refused), or "exceeded timeouts (3)"."""
USING = re.compile(r"Bootstrap ?: Using (?:\[\d+\])?([\w.-]{1,40}):([0-9A-Fa-f.:]{2,45})<")
FORCED = re.compile(r"NCCL_SOCKET_IFNAME set (?:by environment )?to =?lo\s")
Pair = tuple[str, str]


def findings(warnings: Mapping[int, Sequence[str]], logs: Mapping[int, str], run: Run) -> Iterator[Finding]:
    """`warnings`, `logs`: by failed rank."""
    failed: dict[Pair, list[int]] = {}
    nameless: dict[str, list[int]] = {}
    for rank, texts in warnings.items():
        tried = {(match[1], match[2].strip()) for text in texts if (match := CONNECT.search(text))}
        for pair in tried:
            failed.setdefault(pair, []).append(rank)
        for error in {match[1] for text in texts if (match := NAMELESS.search(text))}:
            nameless.setdefault(error, []).append(rank)
    silent: dict[Pair, list[int]] = {}
    for rank, texts in warnings.items():
        for address in {match[1] for text in texts if (match := RETRIES.search(text))}:
            silent.setdefault((address, "RDMA status 12, retries exceeded"), []).append(rank)
    yield from _not_reached(silent, run, RDMA, "got no answer from")
    if silent:
        return
    loop = {pair: of for pair, of in failed.items() if pair[0].startswith(LOOPBACK)}
    if loop and len(run.job.nodes) > 1:
        yield from _on_loopback(loop, logs, run)
    else:
        yield from _not_reached(failed, run, UNREACHABLE, "could not connect to")
    for error, of in nameless.items() if not failed else ():
        text = f"{ranges.ranks(of)} could not connect ({error}), expected all of {len(run.members)} to be reached"
        yield UNREACHABLE.fail(text, noticed_by=tuple(of))


def _on_loopback(failed: Mapping[Pair, Sequence[int]], logs: Mapping[int, str], run: Run) -> Iterator[Finding]:
    """Findings about ranks that announced a loopback address to other nodes."""
    victims = tuple(sorted({rank for of in failed.values() for rank in of}))
    chose = {rank: "lo" for rank, log in logs.items() if FORCED.search(log)}
    chose |= {rank: match[1] for rank, log in logs.items() if (match := USING.search(log)) and _is_loopback(match[2])}
    address = next(iter(failed))[0]
    text = f"a rank was told to connect to {address} on another node, expected an address that connects the nodes"
    if not chose:
        yield UNREACHABLE.fail(text, variable="NCCL_SOCKET_IFNAME", noticed_by=victims)
    for rank, interface in chose.items():
        own = f"NCCL took {interface}, a loopback interface, expected one that connects the nodes"
        others = tuple(victim for victim in victims if victim != rank)
        yield UNREACHABLE.fail(own, variable="NCCL_SOCKET_IFNAME", noticed_by=others, **run.job.where(rank))


def _is_loopback(address: str) -> bool:
    return address.startswith(LOOPBACK) or address == "::1"


def _not_reached(failed: Mapping[Pair, Sequence[int]], run: Run, code: Code, verb: str) -> Iterator[Finding]:
    """Names a node that several could not reach, or that could not reach several; between two it is undecidable."""
    owners: dict[str, list[str]] = {}
    for node in run.job.nodes:
        for address in node.addresses:
            owners.setdefault(address, []).append(node.node)
    at = {address: of[0] for address, of in owners.items() if len(of) == 1}
    links = {
        (run.job.node_of(rank).node, at.get(address, address)) for (address, _), of in failed.items() for rank in of
    }
    ends: dict[str, set[str]] = {}
    for first, second in links:
        ends.setdefault(first, set()).add(second)
        ends.setdefault(second, set()).add(first)
    common = [end for end, others in ends.items() if len(others) > 1 and all(end in link for link in links)]
    victims = tuple(sorted({rank for of in failed.values() for rank in of}))
    nodes = {node.node for node in run.job.nodes}
    for (address, error), of in list(failed.items())[:1]:
        shared = f", an address of {len(owners[address])} nodes" if len(owners.get(address, ())) > 1 else ""
        to = f"{at[address]} at {address}" if address in at else f"{address}{shared}"
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        text = f"{ranges.ranks(sorted(of))} {verb} {to}{more} ({error}), expected all nodes to be reached"
        named = {"node": common[0]} if len(common) == 1 and common[0] in nodes else {}
        evidence = {"address": address, "error": error}
        yield code.fail(text, noticed_by=victims, evidence=evidence, **named)
