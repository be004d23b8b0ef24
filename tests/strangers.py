"""A process that is no rank of the job but reaches its store, as another user of the host or of the network may. It has
no secret: it reads what stands in the store, and writes what it likes."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

COMES = timedelta(seconds=60)
"""For a key that the ranks write: they start on a loaded machine."""
OWN_FILE = """
import os
from pathlib import Path
Path({mark!r}).write_text("a stranger's code ran")
from plugin_of_the_job import *
"""


class Stranger:
    """A client of the store."""

    def __init__(self, port: int, folder: Path) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=COMES)
        self.folder = folder

    def read(self, key: str) -> Any:
        """Waits for a key. The JSON after the signature, if there is one (engine/store_seal.py)."""
        return json.loads(self.store.get(key).decode().rpartition("\n")[2])

    def write(self, key: str, value: object) -> None:
        self.store.set(key, json.dumps(value))

    def append(self, log: str, entry: object) -> None:
        self.write(f"{log}/{self.store.add(log, 1)}", entry)

    def arrival_of(self, rank: int, world: int) -> dict[str, Any]:
        arrivals = (self.read(f"preflight/arrivals/{index + 1}") for index in range(world))
        return next(arrival for arrival in arrivals if arrival["rank"] == rank)

    def run_of(self, rank: int, world: int) -> str:
        """The run's id, as anybody can read it."""
        run: str = self.read(f"preflight/welcome/{self.arrival_of(rank, world)['nonce']}")["run"]
        return run

    def tell(self, run: str, event: Mapping[str, Any]) -> None:
        """As rank 0 tells all ranks what to do."""
        self.write(f"{run}/now", event)
        self.append(f"{run}/news", "")


def order_a_file(stranger: Stranger, run: str) -> None:
    """The stranger's own file as a check, for the next step."""
    file, mark = stranger.folder / "stranger_check.py", stranger.folder / "ran"
    file.write_text(OWN_FILE.format(mark=str(mark)))
    now = stranger.read(f"{run}/now")
    source = {"id": "plugin.stranger", "kind": "file", "target": str(file)}
    order = {**now["order"], "step": now["step"] + 1, "source": source, "check": "plugin.stranger"}
    stranger.tell(run, {"event": "step", "step": now["step"] + 1, "order": order})


def order_a_module(stranger: Stranger, run: str) -> None:
    """A module from the ranks' current folder, under the id of a check that they know."""
    (stranger.folder / "stranger_module.py").write_text(OWN_FILE.format(mark=str(stranger.folder / "ran")))
    now = stranger.read(f"{run}/now")
    source = {"id": "env.variables", "kind": "module", "target": "stranger_module"}
    order = {**now["order"], "step": now["step"] + 1, "source": source, "check": "plugin.stranger"}
    stranger.tell(run, {"event": "step", "step": now["step"] + 1, "order": order})


def settings(stranger: Stranger, run: str) -> None:
    """A function of the stranger's as the loader, in the settings of the job."""
    (stranger.folder / "stranger_module.py").write_text(OWN_FILE.format(mark=str(stranger.folder / "ran")))
    about = stranger.read(f"{run}/job")
    about["settings"] = {**about.get("settings", {}), "data.sampler.data": f"{stranger.folder}/stranger_module.py:f"}
    stranger.write(f"{run}/job", about)


def verdict(stranger: Stranger, run: str) -> None:
    """All is well."""
    job = stranger.read(f"{run}/job")["job"]
    stranger.tell(run, {
        "event": "verdict", "step": 0, "run": run, "attempt": "00" * 16, "job": job, "living": [], "strangers": 0,
        "exit_code": 0, "sentence": "preflight: PASS (all is well)", "command": [], "proof": "00" * 16,
    })  # fmt: skip


def damaged(stranger: Stranger, run: str) -> None:
    """An order that is cut off."""
    stranger.store.set(f"{run}/now", '{"event": "step", "step"')
    stranger.append(f"{run}/news", "")


def foreign(stranger: Stranger, run: str) -> None:
    """JSON, but no order."""
    stranger.tell(run, {"hello": ["world"]})


def stale_order(stranger: Stranger, run: str) -> None:
    """The order of a step that is over: no rank would begin the next one."""
    now = stranger.read(f"{run}/now")
    stranger.tell(run, {**now, "step": now["step"] - 1})


def facts(stranger: Stranger, run: str) -> None:
    """An outcome of rank 1 before its own, with the stranger's facts."""
    from preflight.core.facts import content_hash

    text = json.dumps({"forged": True})
    stranger.store.set(f"{run}/facts/{content_hash(text)}", text)
    outcome = {"kind": "measured", "seconds": 0.1, "facts_hash": content_hash(text)}
    stranger.append(f"{run}/done/{stranger.read(f'{run}/now')['step']}", {"rank": 1, "outcome": outcome})


def other_rank(stranger: Stranger, run: str) -> None:
    """An outcome of a rank that was not asked."""
    step = stranger.read(f"{run}/now")["step"]
    stranger.append(f"{run}/done/{step}", {"rank": 7, "outcome": {"kind": "raised", "reason": "forged"}})


def arrival(stranger: Stranger, run: str) -> None:
    """A process that says too little of itself."""
    stranger.append("preflight/arrivals", {"nonce": "x", "rank": 1})


def left(stranger: Stranger, run: str) -> None:
    """A leave-taking that no rank would write."""
    stranger.append(f"{run}/left", {"rank": 1})


def beat(stranger: Stranger, run: str) -> None:
    """Something that is no sign of life in the place of rank 1's. Its own next one may come first: until it stands."""
    for _ in range(200):
        stranger.store.set(f"{run}/beat/1", "{}")
        time.sleep(0.01)  # two seconds: longer than between two looks of rank 0


def counter(stranger: Stranger, run: str) -> None:
    """A log that claims a billion entries."""
    stranger.store.add(f"{run}/left", 10**9)


def gone(stranger: Stranger, run: str) -> None:
    """A leave-taking as rank 1 would write it, which names rank 0 dead. Only a secret shows that it is not rank 1's."""
    stranger.append(f"{run}/left", {"rank": 1, "why": "was sent SIGTERM", "kind": "told", "dead": []})


STRIKES: dict[str, Callable[[Stranger, str], None]] = {
    strike.__name__: strike
    for strike in (
        order_a_file, order_a_module, settings, verdict, damaged, foreign, stale_order, facts, other_rank, arrival,
        left, beat, counter, gone,
    )
}  # fmt: skip
