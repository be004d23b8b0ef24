"""What `preflight debug` costs a healthy job: two ranks on gloo, small all-reduces, with and without it.

`python benchmarks/debug.py` prints medians over pairs: of a step, which the ranks time themselves, and of the
whole job. It is started as the job's rank, too.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS, STEPS, WARM_UP = 3, 2000, 200
ROOT = Path(__file__).parent.parent


def rank(number: int, port: str) -> None:
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradient = torch.ones(1024)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            start = time.perf_counter()
        dist.all_reduce(gradient.fill_(1.0))
    if number == 0:
        print(f"{(time.perf_counter() - start) / STEPS * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


def launch() -> None:
    from preflight.engine.local_launch import free_port

    port = str(free_port())
    command = [sys.executable, "-W", "ignore", __file__, "rank"]
    ranks = [
        subprocess.Popen([*command, str(number), port], env={**os.environ, "RANK": str(number)}) for number in range(2)
    ]
    sys.exit(max(one.wait() for one in ranks))


def measured(*before: str) -> tuple[float, float]:
    """Microseconds a step, and seconds of the job."""
    start = time.perf_counter()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [*before, sys.executable, __file__, "launch"]
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout), time.perf_counter() - start


def main() -> None:
    debug = (sys.executable, "-m", "preflight", "debug", "--")
    pairs = [(measured(), measured(*debug)) for _ in range(PAIRS)]
    for place, name, unit in ((0, "step (all-reduce of 4 KiB)", "us"), (1, "whole job", "s")):
        plain, with_debug = (statistics.median(pair[side][place] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(pair[1][place] / pair[0][place] for pair in pairs)
        print(f"{name}: {plain:.2f} {unit} plain, {with_debug:.2f} {unit} under debug, ratio {ratio:.3f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rank", number, port]:
            rank(int(number), port)
        case ["launch"]:
            launch()
        case _:
            main()
