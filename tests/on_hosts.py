"""Real runs on hosts made of network namespaces, and holding them against their rows of the fault table."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host
from tests.running import Finished, Run

STATIC = ("--master-addr", "{first}", "--master-port", "29511")
C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "{first}:29512", "--rdzv-id", "test")
PORT = "29513"


def run_on(
    folder: Path,
    hosts: Sequence[Host],
    *arguments: str,
    rendezvous: Sequence[str] = STATIC,
    deadline_s: float = 60,
    ranks: int = 2,
) -> Finished:
    """torchrun on each host, with so many ranks; the report is rank 0's."""
    run = Run(folder, deadline_s)
    common = [option.format(first=hosts[0].address) for option in rendezvous]
    for index, host in enumerate(hosts):
        options = ["--nnodes", str(len(hosts)), "--node-rank", str(index), *common]
        words = [*arguments, "--report", str(folder), "--deadline", str(deadline_s)]
        run.start(host.command(running.torchrun(ranks, *words, options=options)), running.environment())
    return run.finish()


def ranks_on(
    folder: Path,
    hosts: Sequence[Host],
    *arguments: str,
    master: str = "host-a",
    midway: Callable[[], None] | None = None,
    served: bool = False,
    environ: Sequence[dict[str, str]] = (),
    deadline_s: float = running.DEADLINE_S,
) -> Finished:
    """One plain rank a host: the quickest way. `midway` is done when the second host's rank is connected and the last
    rank has not begun. `served`: the store is the first host's, and was there before any rank came. `environ`: what
    each host's rank has beside the launch variables."""
    run = Run(folder, deadline_s)
    with _store(hosts[0]) if served else contextlib.nullcontext():
        for rank, host in enumerate(hosts):
            if rank == 2 and midway:
                _connected(hosts[0], hosts[1])
                midway()
            place = {"RANK": str(rank), "NODE_RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            place |= {"WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": master, "MASTER_PORT": PORT}
            place |= {"TORCHELASTIC_USE_AGENT_STORE": "True"} if served else {}
            place |= environ[rank] if environ else {}
            words = [*arguments, "--report", str(folder), "--deadline", str(deadline_s)]
            run.start_rank(rank, words, running.environment(**place), host=host)
        return run.finish()


@contextlib.contextmanager
def _store(host: Host) -> Iterator[None]:
    serve = (
        "import sys, torch.distributed as d;"
        f"s = d.TCPStore('127.0.0.1', {PORT}, is_master=True, wait_for_workers=False);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        host.command([sys.executable, "-W", "ignore", "-c", serve]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as store:  # fmt: skip
        assert store.stdin and store.stdout
        store.stdout.readline()
        try:
            yield
        finally:
            store.stdin.close()


def _connected(server: Host, client: Host) -> None:
    """Returns when it is."""
    words = ["ss", "-Htn", "state", "established", f"sport = :{PORT} and dst {client.address}"]
    end = time.monotonic() + running.DEADLINE_S
    while not subprocess.run(server.command(words), capture_output=True, check=True).stdout:
        assert time.monotonic() < end, "it never connected"
        time.sleep(0.05)  # the kernel tells nobody of a connection between two others


def found_as(name: str, finished: Finished) -> str:
    """The message of the first finding, where all is as the fault table says."""
    told = finished.told()
    fault = ELSEWHERE[name]
    found = finished.findings(finds=fault.finds)
    assert fault.is_told_by(found) and (fault.also or len(found) == len(fault.finds)), told
    assert finished.report["exit_code"] == fault.exit_code and finished.left_over == [], told
    for finding in found:
        if f"{finding['severity']} {finding['code']}" in fault.finds:
            assert fault.culprit.items() <= finding["where"].items(), told
            assert finding["noticed_by"] == fault.noticed_by, told
        assert "{" not in finding["fix"], told
    return str(found[0]["message"])


def found_each_as(finished: Finished, *names: str, beside: Sequence[dict[str, Any]] = ()) -> None:
    """Each finding is that of one row, of a whole node, and there is one for each; `beside`: that are known."""
    left = [finding for finding in finished.findings() if finding not in beside]
    assert all("rank" not in finding["where"] for finding in left), finished.told()
    for name in names:
        row = ELSEWHERE[name]
        own = [each for each in left if row.says in each["message"] and row.culprit.items() <= each["where"].items()]
        assert len(own) == 1 and row.is_told_by(own), finished.told()
        left.remove(own[0])
    assert left == [], finished.told()
