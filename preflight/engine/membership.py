"""Who is here? Every process says hello on the store, and rank 0 gives each its place in the run.

Keys of an earlier attempt survive in the store, and two processes may claim one rank. So each process uses
its own nonce, rank 0 answers to the nonce, and only a process that answers back is a member.
"""

import json
import os
from dataclasses import dataclass, replace
from typing import Any

from preflight.core import facts, node_names
from preflight.core.job import Job, Node
from preflight.engine import job_owner, store_keys, store_messages, store_seal
from preflight.engine.child import is_alive
from preflight.engine.endpoint import is_everywhere
from preflight.engine.event_loop import EventLoop, StoreLog
from preflight.engine.identity import LaunchIdentity, host_addresses, namespace
from preflight.engine.job_owner import JobOwner
from preflight.engine.rank_layout import Seat, nodes_of_missing
from preflight.engine.store import is_other_job, shared_port
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.verdict import Welcome

STRANGERS = "preflight.strangers"
"""The name in `PLAN.after` for the processes that came but have no place in the run."""
FOREIGN = "foreign"
"""The place of a process of another job, which leaves at once."""
RIVAL_S = 2.0
"""How long a second process with rank 0 waits for the first one to claim the run."""


def hello(loop: EventLoop, launch: LaunchIdentity, nonce: str, arguments: str) -> int:
    """Announces this process on the store, and returns its number in the order of arrival. `arguments`: a hash of what
    its command line says of checks (Request.arguments)."""
    process = {"nonce": nonce, "pid": os.getpid(), "pids": namespace("pid"), "arguments": arguments}
    about = {**process, "addresses": host_addresses(), **launch.to_json()}
    index: int = loop.request("append", key=store_keys.arrivals(launch.call), value=json.dumps(about))
    return index


@dataclass(frozen=True)
class Newcomer:
    """A process that said hello."""

    index: int
    about: dict[str, Any]

    @property
    def nonce(self) -> str:
        return str(self.about["nonce"])

    @property
    def rank(self) -> int | None:
        rank = self.about["rank"]
        return None if rank is None else int(rank)


class Membership:
    """Rank 0's list of the processes that came."""

    def __init__(self, loop: EventLoop, launch: LaunchIdentity, nonce: str, index: int) -> None:
        self.loop = loop
        self.run_id = os.urandom(6).hex()
        self.world_size = launch.world_size
        self.master_addr = launch.master_addr
        self.present: dict[int, Newcomer] = {}
        self.strangers: dict[int, dict[str, Any]] = {}
        """Living processes without a place in the run, by number of arrival: why (invalid, outside,
        duplicate or late), node, rank, pid, environ (launch variables), problems."""
        self.foreign: dict[int, JobOwner] = {}
        """Processes of other jobs that came to this store, by number of arrival."""
        self._identity = launch
        self._nonce, self._index = nonce, index
        self._arrivals = StoreLog(loop, store_keys.arrivals(launch.call), "arrival", self._is_of_other_secret)
        self._here = StoreLog(loop, store_keys.here(self.run_id), "here")
        self._greeted: dict[str, tuple[Newcomer, str]] = {}
        self._proofs = [os.urandom(16).hex() for _ in store_messages.EXIT_CODES]

    @property
    def complete(self) -> bool:
        return len(self.present) == self.world_size

    def look(self, *, late: bool = False) -> bool:
        """Greets new arrivals; True if there were any, or if one answered. With `late`, a rank that comes now is a
        stranger, too."""
        came = self._arrivals.new()
        for index, about in came:
            self._greet(Newcomer(index, about), late)
        answered = self._here.new()
        for _, entry in answered:
            if greeted := self._greeted.pop(entry["nonce"], None):  # a process of another job has no place to take
                self._give_a_place(*greeted)
        return bool(came or answered)

    def _greet(self, arrival: Newcomer, late: bool) -> None:
        if arrival.nonce == self._nonce:
            self.present[0] = arrival
            return
        if self._is_foreign(arrival):
            self.loop.put(store_keys.welcome(arrival.nonce), self._welcome(FOREIGN))
            return
        why = self._why_strange(arrival) or ("late" if late else "")
        self._greeted[arrival.nonce] = (arrival, why)
        self.loop.put(store_keys.welcome(arrival.nonce), self._welcome(why or "member"))

    def _welcome(self, place: str) -> str:
        return Welcome(self.run_id, place, [store_messages.proof_of(proof) for proof in self._proofs]).to_text()

    def proof(self, exit_code: int) -> str:
        """What shows that a verdict with this exit code is rank 0's. Its hash is in each welcome, so who comes to the
        store later cannot invent a verdict: only the one that rank 0 has published has its proof."""
        return self._proofs[exit_code]

    def _is_of_other_secret(self, index: int, text: str) -> bool:
        """Whether an arrival that nobody with this job's secret has written is of another job, by what it claims. It
        gets an answer that it cannot believe, and so it need not wait for one."""
        try:
            about = store_messages.read("arrival", store_seal.claimed(text), "")
        except ForeignWriter:
            return False
        answer = self._welcome(FOREIGN)
        self.loop.request("put_once", key=store_keys.welcome(about["nonce"]), value=answer)
        return self._is_foreign(Newcomer(index, about), with_ranks=False)

    def _is_foreign(self, arrival: Newcomer, *, with_ranks: bool = True) -> bool:
        """Notes it, if it lives: on a launcher's store, whoever came before rank 0 may be of an earlier attempt.
        `with_ranks`: ranks with places may be its own; those that know this job's secret are not another's."""
        theirs = job_owner.from_json(arrival.about.get("owner"))
        if theirs is None or not is_other_job(self._identity, theirs):
            return False
        if not self._identity.agent_store or arrival.index > self._index:
            self.foreign[arrival.index] = theirs
            if with_ranks:
                self._evict(theirs["launcher"])
        return True

    def _evict(self, launcher: str) -> None:
        """Takes their places from ranks that the rank 0 of another launch has brought along: they came first."""
        own = self._identity.owner
        for rank, newcomer in list(self.present.items()) if own and launcher != own["launcher"] else ():
            theirs = job_owner.from_json(newcomer.about.get("owner"))
            if launcher and rank and theirs and theirs["launcher"] == launcher:
                del self.present[rank]

    def _why_strange(self, arrival: Newcomer) -> str:
        if arrival.rank is None:
            return "invalid"
        if arrival.rank >= self.world_size:
            return "outside"
        return "duplicate" if arrival.rank == 0 or arrival.rank in self.present else ""

    def _give_a_place(self, arrival: Newcomer, why: str) -> None:
        """Called when a greeted process has answered; those of an earlier attempt are dead and never do."""
        why = why or self._why_strange(arrival)
        if why or arrival.rank is None:
            known = {key: arrival.about[key] for key in ("rank", "pid", "environ", "problems")}
            self.strangers[arrival.index] = {"why": why, "node": node_names.safe(arrival.about["node_name"]), **known}
        else:
            self.present[arrival.rank] = arrival

    def strangers_may_answer(self) -> bool:
        """Whether greeted processes without a place have not answered yet. (Those of an earlier attempt are dead
        and never will.)"""
        waiting = (arrival for arrival, why in self._greeted.values() if why)
        return any(arrival.about["restarts"] == self._identity.restarts for arrival in waiting)

    def note_strangers(self, book: facts.FactsStore) -> None:
        """Stores strangers as facts, so that a check can judge them, also later offline."""
        for index, stranger in self.strangers.items():
            book.add(STRANGERS, [index], facts.to_text(stranger))

    def put(self, key: str, value: dict[str, Any]) -> None:
        self.loop.put(key, json.dumps(value))

    def is_rival(self) -> bool:
        """Whether another process with rank 0 came before this one, lives, and claims the run."""
        if self._index == 1 or not any(a.rank == 0 and a.index < self._index for a in self._before_me()):
            return False
        end = self.loop.until(RIVAL_S)
        while self.loop.until(0) < end:
            if self.loop.request("fetch", keys=[store_keys.welcome(self._nonce)])[0]:
                return True
            self.loop.pump(0.05)
        return False

    def _before_me(self) -> list[Newcomer]:
        arrivals = StoreLog(self.loop, store_keys.arrivals(self._identity.call), "arrival", lambda *_: True)
        return [Newcomer(index, about) for index, about in arrivals.new()]  # who leads looks at the others again

    def with_other_arguments(self) -> list[int]:
        """The ranks whose command line says something else of checks than rank 0's."""
        if 0 not in self.present:  # something foreign stands where rank 0 had written: the coordinator refuses it
            return []
        own = self.present[0].about["arguments"]
        return sorted(rank for rank, arrival in self.present.items() if arrival.about["arguments"] != own)

    def job(self, backend: str) -> Job:
        """The job with its nodes, ordered by number, under unique names."""
        by_key: dict[str, list[int]] = {}
        for rank in sorted(self.present):
            by_key.setdefault(self.present[rank].about["node_key"], []).append(rank)
        firsts = {key: self.present[ranks[0]].about for key, ranks in by_key.items()}
        keys = sorted(by_key, key=lambda key: (firsts[key]["node_rank"] or 0, by_key[key][0]))
        names = [node_names.safe(firsts[key]["node_name"]) for key in keys]
        numbers = [firsts[key]["node_rank"] for key in keys]
        is_given = None not in numbers and len(set(numbers)) == len(numbers)
        nodes = []
        for number, key in enumerate(keys):
            about = firsts[key]
            node_rank = about["node_rank"] if is_given else number
            name = names[number] if names.count(names[number]) == 1 else f"{names[number]}#{node_rank}"
            nodes.append(Node(name, node_rank, tuple(by_key[key]), tuple(about["addresses"]), about["machine"]))
        job = Job(self._identity.launcher, self.world_size, backend, tuple(nodes))
        return replace(job, missing_on=self._missing_on(job)) if job.missing else job

    def _missing_on(self, job: Job) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """No node from which no rank came where MASTER_ADDR is each node itself, or where more such nodes are missing
        than came: the fault may then well be rank 0's, or the network's."""
        layout = self._identity.layout
        if layout is None:
            return ()
        about = {rank: newcomer.about for rank, newcomer in self.present.items()}
        seats = {
            rank: Seat(job.node_of(rank).node, came.get("local_rank"), came.get("local_world_size"))
            for rank, came in about.items()
        }
        found = nodes_of_missing(layout, job.world_size, seats)
        gone = found.keys() - {node.node for node in job.nodes}
        if is_everywhere(self.master_addr) or len(gone) > len(job.nodes):
            found = {node: ranks for node, ranks in found.items() if node not in gone}
        return tuple((node, tuple(ranks)) for node, ranks in found.items())

    def other_jobs(self) -> dict[str, str]:
        """The sentence about each other job that came to this one's port, by its name; by its rank 0, if that came."""
        came = sorted(self.foreign.values(), key=lambda owner: owner["rank"] != 0)
        return {job_owner.called(owner): shared_port(self._identity, owner) for owner in reversed(came)}

    def dead_beside_me(self, ranks: set[int]) -> set[int]:
        """Those of the ranks that are on this node and whose supervisors are dead."""
        this_machine = (self._identity.node_key, namespace("pid"))
        known = {rank: self.present[rank].about for rank in ranks & set(self.present)}
        beside = {rank for rank, about in known.items() if (about["node_key"], about["pids"]) == this_machine}
        return {rank for rank in beside if not is_alive(self.present[rank].about["pid"])}
