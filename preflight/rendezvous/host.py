"""Node 0's part in `preflight rendezvous`: it serves torch's store at the endpoint, and tells who came and saw what."""

import json
import time
from collections.abc import Mapping
from typing import Any

from preflight import ranges
from preflight.check import Finding
from preflight.child import Child
from preflight.control import Log
from preflight.courier import StoreLost, host_store
from preflight.rendezvous import causes, codes, holder, tcp
from preflight.rendezvous.judge import Arrival, Seen, judge
from preflight.rendezvous.node import (
    ARRIVALS,
    BYE,
    HOST,
    LOOK_S,
    POLL_S,
    REACHED,
    STORE_S,
    TARGETS,
    VERDICT,
    Node,
    Stopped,
)
from preflight.rendezvous.tcp import Reach

LAST_S = 5.0
"""As many nodes came as are expected, but some have one rank or expect others: how much longer to wait."""
ANSWER_S = 10.0
"""For everybody to try the ephemeral ports: up to three times LOOK_S."""
SECOND_S = 1.0
"""When every number has answered: for a second one with the same number, which a node that was started again is not."""
GOODBYE_S = 3.0
LOOKED_UP = 16
"""Clients whose names are looked up: what is wrong with a DNS server shows in these."""
TELL_S = 2.0


class Host(Node):
    """Node 0."""

    _store_host: Child | None = None

    def run(self) -> list[dict[str, Any]]:
        """All findings. Raises Stopped where it cannot serve, or the endpoint does not lead to it."""
        request = self.request
        said = f"preflight rendezvous: node 0 of {request.nnodes} ({self.name}) serves {request.endpoint}"
        self.say(f"{said}, at most {request.timeout_s:.0f} s")
        self._serve()
        reach = self._reach_itself()
        own = self.arrival(reach)
        place = self.control.request("append", key=ARRIVALS, value=json.dumps(own))
        start = time.monotonic()
        came = Log(self.control, ARRIVALS)
        arrivals = self._gather(place, came)
        seen = self._ask_all(place, arrivals, came, time.monotonic() - start)
        found = [as_json(finding) for finding in judge(seen)]
        self._publish(found, len(seen["reached"]) - 1)
        return found

    def _serve(self) -> None:
        request, port = self.request, self.request.port
        kind, why = holder.problem(port)
        if kind == "taken":
            who = (self.control.ask("holder", lambda: {"is": holder.holder(port)}, LOOK_S)[0] or {}).get("is", "?")
            text = f"port {port} of this node is taken by {who}, expected it to be free for the store"
            raise Stopped(codes.PORT_TAKEN.fail(text, node=self.name, evidence=self.evidence))
        if kind:
            text = f"this node may not listen at port {port} ({why}), expected to serve the store there"
            raise Stopped(codes.PORT_REFUSED.fail(text, node=self.name, evidence=self.evidence))
        self.import_torch()
        self._store_host = Child(host_store("127.0.0.1", port, HOST, self.nonce), "store host", output=False)
        end, message = self.control.until(STORE_S), None
        while message is None and time.monotonic() < end and not self._store_host.channel.closed:
            self.control.pump(POLL_S)
            message = self._store_host.channel.receive()
        if message is None or "error" in message:
            why = (message or {}).get("error", "it did not start")
            text = f"torch's store cannot be served at port {request.port}: {why}; expected it to be"
            raise Stopped(codes.NOT_SERVED.fail(text, node=self.name, evidence=self.evidence))

    def _reach_itself(self) -> Reach:
        """As torch does: also the server's own client goes by the endpoint."""
        request = self.request
        reach = self.reach(request.host, request.port)
        used, text = tcp.used(reach["connections"]), ""
        if not used:
            text = f"{causes.why(reach, request.host, request.port)}, though this node serves the port"
        else:
            try:
                if self.join() != self.nonce:
                    text = f"another store answers at {used['address']}, port {request.port}, and not this node's"
            except StoreLost as why:
                text = f"what answers at {used['address']} is not this node's store: {why}"
        if text:
            code = codes.NOT_HERE if reach["connections"] else codes.UNRESOLVED
            text += f"; expected {request.host} to be node 0 ({self.name})"
            raise Stopped(code.fail(text, node=self.name, evidence=self.evidence))
        return reach

    def _gather(self, own: int, came: Log) -> dict[int, Arrival]:
        """Until every number has come, or time is up, of which the rest needs some."""
        arrivals: dict[int, Arrival] = {}
        end = self.control.end_at - min(ANSWER_S + GOODBYE_S, 0.4 * self.request.timeout_s)
        missing, start = set(range(self.request.nnodes)), time.monotonic()
        while missing and (now := time.monotonic()) < end:
            for number, arrival in _new(came):
                arrivals[number] = arrival
                missing.discard(arrival["node_rank"])
                if number != own and self.request.nnodes <= 2 * LOOKED_UP:
                    self.say(f"node {arrival['node_rank']} came: {arrival['name']} ({source(arrival)})")
                if missing and self._is_odd(arrivals):
                    end = min(end, now + LAST_S)
            if missing and now - start >= TELL_S:
                of = ranges.count(self.request.nnodes, "node")
                numbers = f"node{'s' if len(missing) > 1 else ''} {ranges.to_text(missing)}"
                self.say_waiting(f"waiting for {numbers}; {self.request.nnodes - len(missing)} of {of} came", end)
            self.pause(POLL_S)
        return arrivals

    def _is_odd(self, arrivals: Mapping[int, Arrival]) -> bool:
        """Whether waiting longer will not help: as many came as one of them expects, and some number is missing. A
        node that was started again counts once."""
        came = {(one["name"], one["node_rank"]) for one in arrivals.values()}
        return any(len(came) >= one["nnodes"] for one in arrivals.values())

    def _ask_all(self, own: int, arrivals: dict[int, Arrival], came: Log, waited_s: float) -> Seen:
        """Has all nodes connect to an ephemeral port of node 0, and of the node that c10d makes the workers' master:
        the first by its full name (torch's dynamic_rendezvous sorts the nodes)."""
        request = self.request
        first = min(arrivals, key=lambda number: arrivals[number]["full_name"])
        targets = list(dict.fromkeys([own, first])) if request.backend == "c10d" else [own]
        by_name = request.backend == "c10d"
        names = [arrivals[i]["full_name"] if by_name else request.host for i in targets]
        about = [{"name": name, "port": arrivals[i]["port"]} for name, i in zip(names, targets, strict=True)]
        self.control.request("put", key=TARGETS, value=json.dumps({"targets": about}))
        self.try_targets(own, about)
        clients = [tcp.mapped(source(one)) for one in arrivals.values() if one["node_rank"]]
        arrivals[own]["looked_up_s"] |= self.look_up(sorted(set(clients))[:: -(-len(clients) // LOOKED_UP) or 1])
        log, reached = Log(self.control, REACHED), dict[int, list[Reach]]()
        awaited, end = {one["node_rank"] for one in arrivals.values()}, self.control.until(ANSWER_S)
        while len(reached) < len(arrivals) and (now := time.monotonic()) < end:
            arrivals |= dict(_new(came))  # a node that was killed, and started again just now
            for _, entry in log.new():
                if (place := entry["place"]) in arrivals:
                    reached[place] = entry["reached"]
                    awaited.discard(arrivals[place]["node_rank"])
            end = end if awaited else min(end, now + SECOND_S)
            self.pause(POLL_S)
        return {
            "host": request.host, "port": request.port, "backend": request.backend, "waited_s": waited_s,
            "arrivals": arrivals, "targets": targets, "reached": reached,
        }  # fmt: skip

    def _publish(self, found: list[dict[str, Any]], others: int) -> None:
        """For all nodes, and waits a moment until they have it: the store goes with this process."""
        self.control.begin_ending()
        self.control.request("put", key=VERDICT, value=json.dumps({"findings": found[:MOST_PUBLISHED]}))
        end = time.monotonic() + GOODBYE_S
        while self.control.request("count", key=BYE) < others and time.monotonic() < end:
            self.control.pump(POLL_S)

    def end(self) -> None:
        super().end()
        if self._store_host:
            self._store_host.end()


MOST_PUBLISHED = 200


def _new(came: Log) -> list[tuple[int, Arrival]]:
    """What another version of preflight says in other words is left out: its node never came."""
    whole = [(number, entry) for number, entry in came.new() if set(Arrival.__annotations__) <= set(entry)]
    return [(number, Arrival(**entry)) for number, entry in whole]  # type: ignore[typeddict-item]  # as sent


def source(arrival: Arrival) -> str:
    """The address from which it came."""
    used = tcp.used(arrival["reach"]["connections"])
    return used["source"] if used else "?"


def as_json(finding: Finding) -> dict[str, Any]:
    """As a report holds it."""
    slug = next(slug for slug, code in codes.by_slug().items() if code is finding.code)
    return {
        "severity": str(finding.severity), "code": f"{codes.FAMILY}.{slug}", "message": finding.message,
        "where": finding.where, "noticed_by": finding.noticed_by, "evidence": finding.evidence, "fix": finding.fix,
    }  # fmt: skip
