"""A process that is no rank of the job but reaches its store, as another user of the host or of the network may. It has
no secret: it reads what stands in the store, and writes what it likes."""

import json
import sys
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
    """A client of the store. `signed`: whether what ranks write begins with a signature (engine/store_seal.py)."""

    def __init__(self, port: int, folder: Path) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self.store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=COMES)
        self.folder = folder

    def read(self, key: str) -> Any:
        """Waits for a key. The JSON after a signature, if there is one."""
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
    """A module from the ranks' current folder, by the name of a check that they know."""
    (stranger.folder / "stranger_module.py").write_text(OWN_FILE.format(mark=str(stranger.folder / "ran")))
    now = stranger.read(f"{run}/now")
    source = {"id": "env.launch", "kind": "module", "target": "stranger_module"}
    order = {**now["order"], "step": now["step"] + 1, "source": source, "check": "env.launch"}
    stranger.tell(run, {"event": "step", "step": now["step"] + 1, "order": order})


def settings(stranger: Stranger, run: str) -> None:
    """A function of the stranger's as the loader, in the settings of the job."""
    (stranger.folder / "stranger_module.py").write_text(OWN_FILE.format(mark=str(stranger.folder / "ran")))
    stranger.store.get(f"{run}/job")
    about = stranger.read(f"{run}/job")
    about["settings"] = {**about.get("settings", {}), "data.sampler.data": f"{stranger.folder}/stranger_module.py:f"}
    stranger.write(f"{run}/job", about)


def verdict(stranger: Stranger, run: str) -> None:
    """All is well."""
    job = stranger.read(f"{run}/job")["job"]
    sentence = "preflight: PASS"
    stranger.tell(run, {
        "event": "verdict", "step": 0, "run": run, "attempt": "00" * 16, "job": job, "living": [], "strangers": 0,
        "exit_code": 0, "sentence": sentence, "command": [],
    })  # fmt: skip


def damaged(stranger: Stranger, run: str) -> None:
    stranger.store.set(f"{run}/now", "{")
    stranger.append(f"{run}/news", "")


def foreign(stranger: Stranger, run: str) -> None:
    stranger.tell(run, {"hello": ["world"]})


def facts(stranger: Stranger, run: str) -> None:
    """An outcome of rank 1 with facts of the stranger's."""
    from preflight.core.facts import content_hash

    text = json.dumps({"forged": True})
    stranger.store.set(f"{run}/facts/{content_hash(text)}", text)
    outcome = {"kind": "measured", "seconds": 0.1, "facts": content_hash(text)}
    stranger.append(f"{run}/done/{stranger.read(f'{run}/now')['step']}", {"rank": 1, "outcome": outcome})


STRIKES: dict[str, Callable[[Stranger, str], None]] = {
    strike.__name__: strike for strike in (order_a_file, order_a_module, settings, verdict, damaged, foreign, facts)
}


def main() -> None:
    """PORT WORLD FOLDER STRIKE: waits until the first check runs, and strikes."""
    port, world, folder, strike = sys.argv[1:]
    stranger = Stranger(int(port), Path(folder))
    run = stranger.run_of(1, int(world))
    stranger.read(f"{run}/now")
    STRIKES[strike](stranger, run)


if __name__ == "__main__":
    main()
