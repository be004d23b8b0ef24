"""Which nodes or pairs of net.mesh lose packets, by what each node resent to its partners."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from preflight.check import Action, Code, Finding, Run, Severity, option, words
from preflight.checks.net.mesh.messages import PairTrouble, evidence_of
from preflight.checks.net.mesh.pair_tables import Facts, Nodes, Seen
from preflight.checks.net.mesh.sent import SURE, Sent, is_suspect
from preflight.sdk.pairs import Pair, Wording

LOST_SHARE = option(float, 0.001, "warn if this share of the packets between two nodes is lost, at a low rate")
"""Sound networks lose 0.001 to 0.01 percent (Guo et al., Pingmesh, SIGCOMM 2015, table 1). At 0.1 percent one TCP
connection carries at most 4.5 Gbit/s over round trips of 0.1 ms with an MTU of 1500 (Mathis et al., 1997)."""
ENOUGH = 500
"""Packets of which a sound pair loses none. A pair that loses 1 percent loses none of so many in 1 of 150 runs."""

NO_LOSSES = ("_bytes", "_packets", "multicast", "OutSegs")

LOSS = Code(
    "Packets between nodes are lost, also at a low rate.",
    fix="On {from} and {to}: ip -s -s link show {interface} and ethtool -S {interface} (crc, discards, missed); nstat "
    "-az | grep -i -e csum -e drop; see the counters of the switch ports, reseat or replace the cable or transceiver; "
    "then look for what drops at random: policers (tc -s qdisc), rules (iptables -vnL), full tables (conntrack -S).",
    action=Action.NONE,
)
_AGAIN = "Run it again with more time: --only net.mesh --deadline 300."


def found(pairs: Mapping[Pair, Seen], nodes: Nodes, explained: Collection[Pair], run: Run) -> PairTrouble:
    """`explained`: pairs that lose packets for a reason that is reported, such as a wrong MTU or a saturated link."""
    limit, looked = run[LOST_SHARE], {pair: _in_bursts(what) for pair, what in pairs.items()}
    verdicts = {pair: _is_bad(what, limit) for pair, what in pairs.items() if pair not in explained}
    known = {pair: verdict for pair, verdict in verdicts.items() if verdict is not None}

    def how(bad: Sequence[Pair]) -> str:
        lost, of = sum(looked[pair].lost for pair in bad), sum(looked[pair].segments for pair in bad)
        return f"{lost:,} of {of:,} packets sent a few at a time ({lost / of:.2%}) did not arrive"

    evidence = {pair: _evidence(pairs[pair], nodes[pair[1]]) for pair in known}
    return PairTrouble(
        list(known),
        [pair for pair, is_bad in known.items() if is_bad],
        Severity.WARN,
        code=lambda _: LOSS,
        how=how,
        expected=lambda _: f"less than {limit:.2%}",
        wording=Wording(
            sends="loses packets that it sends to",
            receives="loses packets that it receives from",
            both="loses packets to and from",
            either="loses packets to or from",
            pair="packets from {a} to {b} are lost",
            sides="packets between {a} and {b} are lost",
        ),
        many="packets are lost",
        evidence=evidence_of(nodes, evidence),
    )


def unsure(pairs: Mapping[Pair, Seen], run: Run) -> Iterator[Finding]:
    """Nodes that had to send again and again, and for which there was no time for a second look at any partner."""
    limit = run[LOST_SHARE]
    verdicts = {pair: _is_bad(what, limit) for pair, what in pairs.items() if "sent" in what}
    known = {node for pair, is_bad in verdicts.items() if is_bad is not None for node in pair}
    unseen = [pair for pair in verdicts if "in_bursts" not in pairs[pair] and is_suspect(Sent(*pairs[pair]["sent"]))]
    left = [pair for pair in unseen if not known & set(pair)]
    if left:
        first = Sent(*pairs[left[0]]["sent"])
        nodes = words.some(dict.fromkeys(run.job.node_of(rank).node for pair in left for rank in pair), 4)
        text = (
            f"whether packets are lost between {nodes} is not known: {first.lost:,} of {first.segments:,} were resent"
        )
        yield LOSS.not_measured(f"{text} in bulk, expected a second look, for which there was no time", fix=_AGAIN)


def _in_bursts(what: Seen) -> Sent:
    return Sent(*what.get("in_bursts", ()))


def _is_bad(what: Seen, limit: float) -> bool | None:
    """Whether packets to a partner are lost. None where too few were sent to know: such a pair is no witness."""
    if "sent" not in what:
        return None  # the kernel does not say
    if "in_bursts" not in what:
        first = Sent(*what["sent"])
        return False if first.segments >= ENOUGH and not is_suspect(first) else None
    looked = _in_bursts(what)
    if looked.lost >= SURE and looked.lost >= limit * looked.segments:
        return True
    return False if looked.segments >= ENOUGH and not looked.lost else None


def _evidence(what: Seen, receiver: Facts) -> dict[str, object]:
    """Of one pair, with numbers of packets."""
    rose = {name: count for name, count in receiver.get("rose", {}).items() if not name.endswith(NO_LOSSES)}
    first, looked = Sent(*what.get("sent", ())), _in_bursts(what)
    counts = {"sent": looked.segments, "lost": looked.lost, "sent_in_bulk": first.segments, "lost_in_bulk": first.lost}
    more: dict[str, Any] = {"round_trip_varies_s": what.get("rtt_variation_s"), "bytes_per_s": what.get("rate")}
    more["receiver_counted"] = rose or None
    return counts | {name: value for name, value in more.items() if value is not None}
