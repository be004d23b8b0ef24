"""`make bench`: ratios measured in one run, printed and never asserted: machines are noisy."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMES = 7
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PREFLIGHT = [sys.executable, "-m", "preflight"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT, cwd=tempfile.gettempdir(), timeout=300)
    return time.perf_counter() - start


def ratio(name: str, ours: Sequence[str], theirs: Sequence[str], goal: float) -> None:
    """The two in turn, after a run of each that does not count."""
    seconds(ours), seconds(theirs)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(TIMES)]
    ratios = sorted(one / other for one, other in pairs)
    took = statistics.median(one for one, _ in pairs)
    print(
        f"  {name}: {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}; {took:.2f} s), goal {goal}x"
    )


def commands() -> None:
    print("start-up, against python -c 'import torch'")
    torch = [sys.executable, "-W", "ignore", "-c", "import torch"]
    ratio("preflight list", [*PREFLIGHT, "list"], torch, 0.08)
    ratio("preflight --help", [*PREFLIGHT, "--help"], torch, 0.08)
    ratio("preflight run --level quick", [*PREFLIGHT, "run", "--level", "quick"], torch, 0.15)
    print("torchrun with 2 ranks, against a script that inits gloo and reduces once")
    hello = [*TORCHRUN, str(ROOT / "benchmarks" / "hello.py")]
    ratio("quick", [*TORCHRUN, "-m", "preflight", "--level", "quick"], hello, 1.15)
    ratio("standard", [*TORCHRUN, "-m", "preflight"], hello, 1.6)
    ratio("--all", [*TORCHRUN, "-m", "preflight", "--all"], hello, 9)


def all_reduce() -> None:
    print("comm.all_reduce's seconds over a plain loop's, same group, fastest of 24 turns each (goal: within 3%)")
    plugin = str(ROOT / "benchmarks" / "plain_loop.py")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/report.json"
        seconds([*TORCHRUN, "-m", "preflight", "--only", "plugin", "--plugin", plugin, "--json", path, "--facts"])
        report = json.loads(Path(path).read_text())
    for name, value in report["checks"][0]["facts"][0]["facts"].items():
        print(f"  {name}: {value:.3f}")


def scale() -> None:
    print("8,192 made-up ranks with 30 KB of facts each")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.scale", folder]
        subprocess.run(command, check=True, env=ENVIRONMENT, cwd=ROOT, timeout=900)


def pages() -> None:
    print("report.html of made-up clusters (goals: 0.3, 2 and 5 MB; 2 s at 1,024 nodes)")
    subprocess.run([sys.executable, "-m", "benchmarks.page"], check=True, env=ENVIRONMENT, cwd=ROOT, timeout=900)


def judges() -> None:
    print("judging large jobs of made-up facts, seconds of one core")
    with tempfile.TemporaryDirectory() as folder:
        environ = {**ENVIRONMENT, "PREFLIGHT_TEST_TIMES": f"{folder}/times"}
        command = [sys.executable, "-m", "pytest", "-q", "tests/checks", "-k", "512 or 1024"]
        subprocess.run(command, check=True, capture_output=True, env=environ, cwd=ROOT, timeout=900)
        for line in sorted(Path(f"{folder}/times").read_text().splitlines()):
            print(f"  {line}")
    subprocess.run([sys.executable, "-m", "benchmarks.links"], check=True, env=ENVIRONMENT, cwd=ROOT, timeout=900)


def samplers() -> None:
    print("all ranks' samples counted, by made-up samplers")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.samplers"]
    subprocess.run(command, check=True, env=ENVIRONMENT, cwd=ROOT, timeout=900)


def checkpoints() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checkpoint"]
    subprocess.run(command, check=True, env=ENVIRONMENT, cwd=ROOT, timeout=900)


if __name__ == "__main__":
    commands()
    all_reduce()
    scale()
    pages()
    judges()
    samplers()
    checkpoints()
