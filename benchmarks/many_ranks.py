"""So many real ranks on this machine meet, run `--level quick` and end: `python -m benchmarks.many_ranks 64 256`.

Each is a supervisor with its store client and its worker, eight of them on what they take for a node. They are forked
from this process, which has imported torch: their memory is shared, as far as nobody writes to it.
"""

import gc
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from preflight.cli import running  # noqa: F401 -- for all ranks, before the forks
from preflight.cli.main import main
from preflight.engine.process_group import import_torch
from preflight.planning import registry

A_NODE = 8
DEADLINE_S = 600.0


def rank_of(rank: int, world: int, port: int, words: list[str], log: int) -> int:
    """The rank's pid."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(log, 1)
    os.dup2(log, 2)
    node, place = divmod(rank, A_NODE)
    beside = min(A_NODE, world - node * A_NODE)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(beside),
        "NODE_RANK": str(node), "SLURMD_NODENAME": f"gpu-{node}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    try:
        main(["run", "--level", "quick", "--deadline", str(DEADLINE_S), *words])
    finally:
        os._exit(9)


def measure(world: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        before, start = _available_gb(), time.monotonic()
        pids = {rank_of(rank, world, port, ["--report", f"{folder}/report"], log): rank for rank in range(world)}
        codes, cpu_s, least = Counter[int](), dict[int, float](), before
        while pids:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid:
                cpu_s[pids.pop(pid)] = used.ru_utime + used.ru_stime
                codes[os.waitstatus_to_exitcode(status)] += 1
            else:
                least = min(least, _available_gb())
                time.sleep(0.05)
        took, others = time.monotonic() - start, [seconds for rank, seconds in cpu_s.items() if rank]
        _tell(folder, f"{world:,} ranks in {took:.1f} s, exit codes {dict(codes)}")
        print(f"    CPU: rank 0 {cpu_s[0]:.1f} s, each other {sum(others) / len(others):.2f} s", end="; ")
        print(f"memory: {before - least:.1f} GB at most")


def _tell(folder: str, how: str) -> None:
    report = Path(folder, "report", "report.json")
    if not report.exists():
        print(f"  {how}, no report:", Path(folder, "log").read_text()[-3000:])
        return
    made = json.loads(report.read_text())
    nodes = len(made["job"]["nodes"])
    print(f"  {how}, {nodes:,} nodes, verdict {made['verdict']} after {made['seconds']:.1f} s")
    for check in made["checks"]:
        for finding in check["findings"][:2]:
            print(f"    {finding['severity']} {finding['code']}: {finding['message'][:300]}")


def _available_gb() -> float:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) / 1e6


if __name__ == "__main__":
    import_torch()
    for source in registry.sources().values():
        if source.kind == "builtin":
            registry.load(source)
    gc.freeze()
    for number in sys.argv[1:] or ("64", "256", "1024"):
        measure(int(number))
