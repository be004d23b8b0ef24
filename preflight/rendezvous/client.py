"""What every node except node 0 does in `preflight rendezvous`."""

import json
import re
from typing import Any

from preflight.check import Finding
from preflight.core.finding import Reported
from preflight.engine.store_client import StoreLost
from preflight.rendezvous import codes, wire_format
from preflight.rendezvous.judge import unreached
from preflight.rendezvous.node import AGAIN_S, IMPORT_S, LOOK_S, NOTHING, POLL_S, RendezvousNode, Stopped
from preflight.sdk import reachability, tcp
from preflight.sdk.tcp import Reach

ENOUGH_S = 5.0
"""Time for torch's store to answer a client, on a machine that is busy starting."""
WAITED = "See node 0's output: it lists who joined. Start all nodes within the time of --timeout, node 0 first."


class ClientNode(RendezvousNode):
    _last: Reach = NOTHING
    """What it last saw of the endpoint."""

    def run(self) -> list[Reported]:
        """The findings that node 0 has published. Raises Stopped."""
        intro = f"preflight rendezvous: node {self.request.node_rank} of {self.request.nnodes} ({self.name})"
        self.say(f"{intro} to {self.request.endpoint}, at most {self.request.timeout_s:.0f} s")
        furthest: Stopped | None = None
        while (reach := self._await_endpoint()) is not None:
            left = self.loop.left
            try:
                return self._take_part(reach)
            except Stopped as why:  # node 0 may be started again: try until the deadline
                if why.is_final:
                    raise
                furthest = why if furthest is None or left > ENOUGH_S else furthest
            self.pause(AGAIN_S)
        raise furthest or Stopped(unreached(self._last, self.request.host, self.request.port, self.name))

    def _await_endpoint(self) -> Reach | None:
        """Until something there accepts a connection; None at the deadline."""
        host, port = self.request.host, self.request.port
        while (left := self.loop.left) > 2 * POLL_S:
            reach = self.reach(host, port)
            if tcp.used(reach["connections"]):
                return reach
            if self._last == NOTHING or left > 3 * LOOK_S:  # otherwise the deadline cut its patience short
                self._last = reach
            why = re.sub(r" after \d+\.\d s", "", reachability.why(self._last, host, port))  # the same each time
            self.say_waiting(f"waiting: {why}; is node 0 started?", self.loop.end_at)
            if left > IMPORT_S and any(connection["kind"] == "refused" for connection in reach["connections"]):
                self.import_torch()  # the host is there: the store will be needed
            self.pause(AGAIN_S)
        return None

    def _take_part(self, reach: Reach) -> list[Reported]:
        self.import_torch()
        left, used = max(0.0, self.loop.left), tcp.used(reach["connections"])
        there = f"{self.request.endpoint} ({used['address'] if used else '?'})"
        try:
            if self.join() is None:
                text = f"a store of torch answers at {there}, but does not say that it is node 0's; expected it to"
                raise self.stopped(codes.OTHER_STORE, text)
        except StoreLost as why:
            raise Stopped(self._no_client(reach, there, why, left)) from None
        try:
            place = self.loop.request("append", key=wire_format.ARRIVALS, value=json.dumps(self.arrival(reach)))
            self.say_waiting(f"reached node 0's store at {there}; waiting for all nodes", self.loop.end_at)
            targets = self._fetch(place, wire_format.TARGETS)["targets"]
            reached = self.reach_all([(str(target["name"]), int(target["port"])) for target in targets])
            answer = json.dumps({"place": place, "reached": reached})
            self.loop.request("append", key=wire_format.REACHED, value=answer)
            findings = wire_format.findings(self._fetch(place, wire_format.VERDICT))
            self.loop.request("append", key=wire_format.BYE, value="{}")
            return findings
        except StoreLost as why:
            text = f"{why}, after this node had reached it; expected node 0 to wait for all nodes"
            raise self.stopped(codes.STORE_LOST, text) from None
        except (ValueError, KeyError, TypeError) as error:
            raise self.foreign(error) from None

    def _no_client(self, reach: Reach, there: str, why: StoreLost, left: float) -> Finding:
        """Something accepted a connection, but torch's client failed."""
        first = reach["connections"][0]
        if first["kind"] == "filtered":
            text = f"no connection to {reachability.describe([first])}; torch tries it first, and waits there: {why}"
            usable = "an address that answers"
            if used := tcp.used(reach["connections"]):
                usable = used["address"]
                text += f"; expected a connection as to {usable}"
            return self.failure(codes.SILENT_ADDRESS, text, address=first["address"], usable=usable)
        host, port = self.request.host, self.request.port
        again = self.reach(host, port) if self.loop.left > LOOK_S else NOTHING
        if again["connections"] and not tcp.used(again["connections"]):
            gone = reachability.why(again, host, port)
            text = f"{there} accepted a connection, but accepts none any more: {gone}; expected node 0 to stay"
            return self.failure(codes.STORE_LOST, text)
        if left < ENOUGH_S:
            text = (
                f"{there} accepted a connection, but with {left:.1f} s left {why}; expected at least {ENOUGH_S:.0f} s"
            )
            return self.failure(codes.NO_TIME, text)
        text = f"what listens at {there} does not answer as torch's store does: {why}; expected node 0's store"
        return self.failure(codes.OTHER_LISTENER, text)

    def _fetch(self, place: int, key: str) -> dict[str, Any]:
        """Raises Stopped when this node's own time is up, and tells node 0 so."""
        while self.loop.left > 2 * POLL_S:
            if (text := self.loop.request("fetch", keys=[key])[0]) is not None:
                answer: dict[str, Any] = json.loads(text)
                return answer
            self.pause(max(POLL_S, self.request.nnodes / 5000))
        self.loop.request("append", key=wire_format.LEFT, value=json.dumps({"place": place}))
        text = f"node 0 still waited for other nodes after {self.request.timeout_s:.0f} s, expected all to join"
        raise Stopped(codes.NEVER_JOINED.fail(text, evidence=self.evidence, fix=WAITED), is_final=True)
