"""Node 0 in `preflight rendezvous`: serves torch's store at the endpoint, and publishes the findings."""

import json
import time
from collections.abc import Mapping

from preflight.check import Finding
from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.engine.child import Child
from preflight.engine.event_loop import StoreLog
from preflight.engine.store_client import StoreLost, host_store
from preflight.rendezvous import codes, port_owner, wire_format
from preflight.rendezvous.judge import SLOW_S, NodeArrival, Observations, judge, source
from preflight.rendezvous.node import LOOK_S, POLL_S, STORE_S, RendezvousNode, Stopped
from preflight.sdk import reachability, tcp
from preflight.sdk.tcp import Reach

LAST_S = 5.0
"""How much longer to wait if as many nodes joined as are expected, but two have one rank or expect another number."""
ANSWER_S = 10.0
"""Time for all nodes to try the ephemeral ports: up to three times LOOK_S."""
SECOND_S = 1.0
"""Wait after every rank has answered, for a second node with the same rank, unless one was started again."""
GOODBYE_S = 3.0
LOOKED_UP = 16
"""Clients whose names are looked up: enough to show a faulty DNS server."""
TELL_S = 2.0
MOST_PUBLISHED = 200
FIRST_CLIENT = "::ffff:127.0.0.1"
"""The server's own client, as the server sees it."""


class ServerNode(RendezvousNode):
    """Node 0."""

    _store_host: Child | None = None
    _place = 0
    """The number of this node's own arrival."""

    def run(self) -> list[Reported]:
        """All findings. Raises Stopped if it cannot serve, or the endpoint does not lead to it."""
        request = self.request
        intro = f"preflight rendezvous: node 0 of {request.nnodes} ({self.name}) serves {request.endpoint}"
        self.say(f"{intro}, at most {request.timeout_s:.0f} s")
        self._serve()
        own = self.arrival(self._reach_itself())
        self._place = self.loop.request("append", key=wire_format.ARRIVALS, value=json.dumps(own))
        came, start = StoreLog(self.loop, wire_format.ARRIVALS), time.monotonic()
        arrivals = self._gather({self._place: own}, came)
        seen = self._ask_all(arrivals, came, time.monotonic() - start)
        findings = [reported(finding) for finding in judge(seen)]
        self._publish(findings, len(seen["reached"]) - 1)
        return findings

    def _serve(self) -> None:
        request, port = self.request, self.request.port
        kind, why = port_owner.problem(port)
        if kind == "taken":
            holder = self.loop.ask(lambda: {"is": port_owner.holder(port)}, LOOK_S)
            who = holder.value_or({"is": "?"})["is"]
            text = f"port {port} of this node is taken by {who}, expected it to be free for the store"
            raise self.stopped(codes.PORT_TAKEN, text)
        if kind:
            text = f"this node may not listen at port {port} ({why}), expected to serve the store there"
            raise self.stopped(codes.PORT_REFUSED, text)
        self.import_torch()
        self._store_host = Child(host_store("127.0.0.1", port, wire_format.HOST, self.nonce), output=False)
        end, message = self.loop.until(max(1.0, min(STORE_S, self.loop.left - 2 * LOOK_S))), None
        while message is None and time.monotonic() < end and not self._store_host.channel.closed:
            self.loop.pump(POLL_S)
            message = self._store_host.channel.receive()
        if message is None or "error" in message:
            why = (message or {}).get("error", "it did not start")
            text = f"torch's store cannot be served at port {request.port}: {why}; expected it to be"
            raise Stopped(self._slow_names() or self.failure(codes.NOT_SERVED, text))

    def _slow_names(self) -> Finding | None:
        """The store looks up the name of its own first client before it answers."""
        if self.loop.left < 1.5 * LOOK_S:
            return None
        took = self.look_up([FIRST_CLIENT])[FIRST_CLIENT]
        if took is not None and took < SLOW_S:
            return None
        text = f"did not end within {LOOK_S:.0f} s" if took is None else f"took {took:.1f} s"
        text = f"looking up the name of {FIRST_CLIENT} {text}, and torch's store does so for every client"
        return self.failure(codes.SLOW_REVERSE, f"{text}; expected less than {SLOW_S:g} s", address=FIRST_CLIENT)

    def _reach_itself(self) -> Reach:
        """As torch does: the server's own client connects to the endpoint, too."""
        request = self.request
        reach = self.reach(request.host, request.port)
        used, text = tcp.used(reach["connections"]), ""
        if not used:
            text = f"{reachability.why(reach, request.host, request.port)}, though this node serves the port"
        else:
            try:
                if self.join() != self.nonce:
                    text = f"another store answers at {used['address']}, port {request.port}, and not this node's"
            except StoreLost as why:
                if slow := self._slow_names():
                    raise Stopped(slow) from None
                text = f"what answers at {used['address']} is not this node's store: {why}"
        if text:
            code = codes.NOT_HERE if reach["connections"] else codes.UNRESOLVED
            text += f"; expected {request.host} to be node 0 ({self.name})"
            raise self.stopped(code, text)
        return reach

    def _gather(self, arrivals: dict[int, NodeArrival], came: StoreLog) -> dict[int, NodeArrival]:
        """Waits until every rank has joined or time is up; leaves some time for the rest."""
        nnodes = self.request.nnodes
        end = self.loop.end_at - min(ANSWER_S + GOODBYE_S, 0.4 * self.request.timeout_s)
        missing, start = set(range(1, nnodes)), time.monotonic()
        if missing and start >= end:
            text = f"this node was ready to serve only {self.loop.left:.0f} s before its deadline"
            raise self.stopped(codes.NO_TIME, f"{text}, expected enough time for the others to join")
        while missing and (now := time.monotonic()) < end:
            for number, arrival in self._new(came):
                arrivals[number] = arrival
                missing.discard(arrival["node_rank"])
                if nnodes <= 2 * LOOKED_UP:
                    self.say(f"node {arrival['node_rank']} joined: {arrival['name']} ({source(arrival)})")
                if missing and is_odd(arrivals):
                    end = min(end, now + LAST_S)
            if missing and now - start >= TELL_S:
                numbers = f"node{'s' if len(missing) > 1 else ''} {rank_ranges.to_text(missing)}"
                here = f"{nnodes - len(missing)} of {rank_ranges.count(nnodes, 'node')} joined"
                self.say_waiting(f"waiting for {numbers}; {here}", end)
            self.pause(POLL_S)
        return arrivals

    def _new(self, came: StoreLog) -> list[tuple[int, NodeArrival]]:
        """The other nodes' new arrivals. A node with another version of preflight is not recognized: it never joins."""
        came_now = ((number, wire_format.arrival(entry)) for number, entry in self.entries(came))
        return [(number, arrival) for number, arrival in came_now if arrival and number != self._place]

    def _ask_all(self, arrivals: dict[int, NodeArrival], came: StoreLog, waited_s: float) -> Observations:
        """Makes all nodes connect to an ephemeral port of node 0, and of the node that c10d makes the workers' master:
        the first by its full name (torch's dynamic_rendezvous sorts the nodes)."""
        request, own = self.request, self._place
        newest = {arrival["node_rank"]: number for number, arrival in sorted(arrivals.items())} | {0: own}
        first = min(newest.values(), key=lambda number: arrivals[number]["full_name"])
        targets = [(own, request.host)]
        if request.backend == "c10d":
            targets = [*(targets if first != own else []), (first, arrivals[first]["full_name"])]
        places = [{"name": name, "port": arrivals[number]["port"]} for number, name in targets]
        self.loop.request("put", key=wire_format.TARGETS, value=json.dumps({"targets": places}))
        reached = {own: self.reach_all([(name, arrivals[number]["port"]) for number, name in targets])}
        clients = sorted({tcp.mapped(source(arrival)) for arrival in arrivals.values() if arrival["node_rank"]})
        arrivals[own]["looked_up_s"] |= self.look_up(clients[:: -(-len(clients) // LOOKED_UP) or 1])
        left = self._await_answers(arrivals, came, reached, len(targets))
        return {
            "host": request.host, "port": request.port, "backend": request.backend, "waited_s": waited_s,
            "arrivals": arrivals, "left": left, "targets": targets, "reached": reached,
        }  # fmt: skip

    def _await_answers(
        self, arrivals: dict[int, NodeArrival], came: StoreLog, reached: dict[int, list[Reach]], targets: int
    ) -> set[int]:
        """Adds to `reached`, and adds nodes that were just started again to `arrivals`. Returns those that ran out of
        time."""
        answers, gone = StoreLog(self.loop, wire_format.REACHED), StoreLog(self.loop, wire_format.LEFT)
        left: set[int] = set()
        end = self.loop.until(ANSWER_S)
        while len(reached) + len(left) < len(arrivals) and (now := time.monotonic()) < end:
            arrivals |= dict(self._new(came))
            left |= {wire_format.place(entry) for _, entry in self.entries(gone)} & set(arrivals)
            for _, entry in self.entries(answers):
                place, saw = wire_format.place(entry), wire_format.reaches(entry, targets)
                if saw is not None and place in arrivals and place != self._place:
                    reached[place] = saw
            heard = {arrivals[number]["node_rank"] for number in {*reached, *left}}
            if heard >= {arrival["node_rank"] for arrival in arrivals.values()}:
                end = min(end, now + SECOND_S)
            self.pause(POLL_S)
        return left - set(reached)

    def _publish(self, findings: list[Reported], others: int) -> None:
        """Publishes for all nodes, and waits a moment until they have read it: the store ends with this process."""
        self.loop.begin_ending()
        published = [finding.to_json() for finding in findings[:MOST_PUBLISHED]]
        self.loop.request("put", key=wire_format.VERDICT, value=json.dumps({"findings": published}))
        end = time.monotonic() + GOODBYE_S
        while self.loop.request("count", key=wire_format.BYE) < others and time.monotonic() < end:
            self.loop.pump(POLL_S)

    def end(self) -> None:
        super().end()
        if self._store_host:
            self._store_host.end()


def is_odd(arrivals: Mapping[int, NodeArrival]) -> bool:
    """Whether waiting will not help, though a rank is missing: as many joined as one of them expects. A node that was
    started again counts once."""
    came = {(arrival["name"], arrival["node_rank"], source(arrival)) for arrival in arrivals.values()}
    return any(len(came) >= arrival["nnodes"] for arrival in arrivals.values())


def reported(finding: Finding) -> Reported:
    """As a report holds it."""
    slug = next(slug for slug, code in codes.by_slug().items() if code is finding.code)
    return Reported(**{**vars(finding), "code": f"{codes.FAMILY}.{slug}"})
