"""Gather, judge and report of 8,192 made-up ranks with 30 KB of facts each, over a real store.

Rank 0's own code runs here as it is; one other process plays all the other ranks. It has more to do than rank 0, so
rank 0 mostly waits for it: seconds of CPU are what gathering and judging cost.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from benchmarks.big_facts import facts_of
from preflight.core import facts, secrets
from preflight.core.outcome import Outcome
from preflight.engine import identity, worker
from preflight.engine.child import Child, adopt_orphans
from preflight.engine.coordinator import Coordinator
from preflight.engine.event_loop import EventLoop
from preflight.engine.membership import Membership, Newcomer, hello
from preflight.engine.process_group import GroupMaker, import_torch
from preflight.engine.store_client import StoreClient, connect, host_store
from preflight.engine.worker_slot import WorkerSlot
from preflight.hangs.collective_recorder import DumpFile
from preflight.planning.plan import CheckSelection, Request
from preflight.planning.registry import plugin_source
from preflight.results import report_files
from preflight.results.building import build
from preflight.results.progress import Plain

RANKS, A_NODE = 8192, 8
BEAT_S = 3.0
NONCE = "bench"


def play_the_others(port: int, run_id: str) -> None:
    """Every other rank's part in one check: its facts, and its outcome."""
    store = connect("127.0.0.1", port, 300.0)
    store.wait([f"{run_id}/now"])
    beaten = 0.0
    for rank in range(1, RANKS):
        if time.monotonic() - beaten > BEAT_S:  # a silent rank is a lost one
            beaten = time.monotonic()
            beats = [json.dumps({"beat": beaten})] * (RANKS - 1)
            store.multi_set([f"{run_id}/beat/{other}" for other in range(1, RANKS)], beats)
        text = facts.to_text(facts_of(rank))
        name = facts.content_hash(text)
        store.set(f"{run_id}/facts/{name}", text)
        outcome = Outcome("measured", 0.1, facts_hash=name).to_json()
        index = store.add(f"{run_id}/done/1", 1)
        store.set(f"{run_id}/done/1/{index}", json.dumps({"rank": rank, "outcome": outcome}))


def arrivals(here: identity.LaunchIdentity) -> dict[int, Newcomer]:
    about = {
        **here.to_json(),
        "pid": os.getpid(),
        "pids": identity.namespace("pid"),
        "nonce": NONCE,
        "addresses": ["10.0.0.1"],
    }
    nodes = {
        rank: {
            "rank": rank,
            "node_rank": rank // A_NODE,
            "node_key": f"node {rank // A_NODE}",
            "node_name": f"gpu-{rank // A_NODE}",
        }
        for rank in range(RANKS)
    }
    return {rank: Newcomer(rank + 1, {**about, **node}) for rank, node in nodes.items()}


def main(folder: str) -> None:
    import_torch()
    adopt_orphans()
    server = Child(host_store("127.0.0.1", 0), output=False)
    port = server.channel.wait()["port"]
    loop = EventLoop(600.0)
    loop.store = store_client = StoreClient("127.0.0.1", port, loop.pump, 30.0, 120.0)
    store_client.connected()
    here = identity.from_environ(
        {"RANK": "0", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    )
    membership = Membership(loop, here, NONCE, hello(loop, here, NONCE))
    membership.present = arrivals(here)
    job = membership.job("gloo")
    loop.world_size = RANKS
    source = plugin_source(str(Path(__file__).parent / "big_facts.py"))
    group = GroupMaker("127.0.0.1", port, "none", "gloo")
    orders = worker.Orders(job, 0, 0, dict(os.environ), {}, group, secrets.Scrubber({}), "", DumpFile())
    loop.slot = WorkerSlot(lambda _: Child(worker.serve(orders)), lambda: {server.pid, store_client.child.pid}, str)
    others = Child(lambda *_: play_the_others(port, membership.run_id), output=False)
    request = Request(CheckSelection(), {}, {source.id: source})
    leader = Coordinator(loop, membership, job, request, Plain(lambda _: None))
    begin = _cpu_s()
    leader.run()
    gathered, judged = (after - before for after, before in zip(_cpu_s(), begin, strict=True))
    ran = time.process_time()
    made = build(
        run_id=membership.run_id, started="2026-01-01T00:00:00Z", seconds=1.0, command=[], options={}, job=job,
        results=leader.results,
    )  # fmt: skip
    report_files.write_folder(folder, made, leader.book, {})
    written = time.process_time()
    sizes = {name: os.path.getsize(os.path.join(folder, name)) / 1e6 for name in ("report.json", "facts.jsonl.gz")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"  {RANKS:,} ranks, seconds of CPU: gather {gathered:.1f}, judge {judged:.1f}, report {written - ran:.1f}")
    print(f"  peak memory: rank 0 {peak:.2f} GB, its largest child {child:.2f} GB")
    print(f"  report.json {sizes['report.json']:.2f} MB (at most 5), facts.jsonl.gz {sizes['facts.jsonl.gz']:.0f} MB")
    print(f"  findings: {sum(len(check['findings']) for check in made['checks']):,}, verdict {made['verdict']}")
    others.end()
    loop.end_children()
    server.end()


def _cpu_s() -> tuple[float, float]:
    """Of this process, and of its children that have ended: the judge."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), ended.ru_utime + ended.ru_stime


if __name__ == "__main__":
    main(sys.argv[1])
