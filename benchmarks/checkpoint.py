"""How long `preflight checkpoint` takes to look at a checkpoint, against `cat` of the same files to /dev/null, which
the cache holds (warm): `python -m benchmarks.checkpoint [GB] [torch|safetensors|dcp ...]`.

The start of the command (torch is imported) does not depend on the size: it is measured with a checkpoint of 1 MB, and
taken off. Seconds of processor time, which other programs on the machine disturb less than those of the clock. Goal:
1.3 times, below 1 GB of memory.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TIMES = 5
TENSOR = 64 << 20
"""Bytes of each tensor."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def make(folder: Path, form: str, size: int) -> Path:
    """A checkpoint of about so many bytes, in bfloat16 and float32."""
    import torch

    folder.mkdir()
    tensors = {}
    piece = min(size, TENSOR)
    for number in range(max(1, size // piece)):
        dtype = torch.bfloat16 if number % 2 else torch.float32
        tensors[f"layers.{number}.weight"] = torch.randn(piece // dtype.itemsize // 64, 64).to(dtype)
        if form == "torch":  # shards, as large checkpoints are: only one is in memory
            torch.save(tensors, folder / f"pytorch_model-{number + 1:05}-of-{max(1, size // piece):05}.bin")
            tensors.clear()
        elif form == "safetensors":
            sys.path += [str(ROOT / ".venv" / "wrappers")]
            from safetensors.torch import save_file

            save_file(tensors, folder / f"model-{number + 1:05}-of-{max(1, size // piece):05}.safetensors")
            tensors.clear()
    if form == "dcp":
        import torch.distributed.checkpoint as dcp

        dcp.save(tensors, checkpoint_id=folder, no_dist=True)
    return folder


class Spent(NamedTuple):
    cpu_s: float
    wall_s: float
    mib: float
    """Of the largest process."""


def spent(command: list[str]) -> Spent:
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Spent(used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024)


def look(path: Path) -> Spent:
    return spent([sys.executable, "-W", "ignore", "-m", "preflight", "checkpoint", str(path)])


def cat(path: Path) -> Spent:
    return spent(["cat", *(str(file) for file in sorted(path.iterdir()))])


def compare(form: str, small: Path, large: Path) -> None:
    size = sum(file.stat().st_size for file in large.iterdir())
    look(small), cat(large)
    turns = [(look(small), look(large), cat(large)) for _ in range(TIMES)]
    ratios = sorted((whole.cpu_s - start.cpu_s) / read.cpu_s for start, whole, read in turns)
    start, whole, read = (min(spents) for spents in zip(*turns, strict=True))
    print(
        f"  {form}: {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}), goal 1.3x; "
        f"{size / 1e9:.2f} GB: {whole.cpu_s:.2f} s ({whole.wall_s:.2f} s by the clock), of it start-up "
        f"{start.cpu_s:.2f} s; cat {read.cpu_s:.2f} s ({read.wall_s:.2f} s); at most {whole.mib:,.0f} MiB"
    )


def run(size: int, forms: list[str]) -> None:
    print(f"preflight checkpoint on {size / 1e9:.2f} GB in the cache, against cat > /dev/null")
    for form in forms:
        with tempfile.TemporaryDirectory() as folder:
            small, large = Path(folder, "small"), Path(folder, "large")
            process = os.fork()  # a process that has been large makes children that count as large
            if not process:
                make(small, form, 1 << 20), make(large, form, size)
                os._exit(0)
            os.waitpid(process, 0)
            compare(form, small, large)


if __name__ == "__main__":
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    run(int(gigabytes * 1e9), sys.argv[2:] or ["torch", "safetensors", "dcp"])
