"""D: hangs on the NCCL that users have. Three ranks share the GPU, each a node to NCCL, over sockets. G: what an
unprepared job that hangs shows to those who look from outside; heat."""

import json
import re
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from preflight.engine.local_launch import free_port
from preflight.nccl import ras
from tests.real_gpu.items import ROOT, SOON, UnexpectedError, Work, codes, item
from tests.real_gpu.items.figures import Sampler
from tests.real_gpu.items.ranks import APART, TOGETHER, job, needs_one_node, places, start, wait_for

WORLD = 3


def _tested(name: str, test: str) -> None:
    @item(name, f"{test} passes", 150)
    def tested(work: Work) -> str:
        if work.dry:
            return "not on a CPU"
        path = f"tests/real_gpu/test_real_hang.py::{test}"
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(ROOT),
            str(ROOT / path),
        ]
        ended = work.run(words, limit_s=140)
        return work.expect(" passed" in ended.last_line, f"{ended.last_line}; {_asserted(ended.output)}")


def _asserted(output: str) -> str:
    return " / ".join(re.findall(r"^E +(.*)", output, re.M)[:3])


_tested("D1a", "test_a_rank_that_leaves_an_all_reduce_out_is_named_on_nccl")
_tested("D1b", "test_a_rank_in_another_collective_is_named_on_nccl")


def _debugged(name: str, deed: str, expected: str = "rank 1") -> None:
    @item(name, f"debug of a job that is {deed}: {expected} is named", 60)
    def debugged(work: Work) -> str:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
        command = [*torchrun, "-m", "tests.real_gpu.jobs.apart", deed]
        words = [
            sys.executable,
            "-m",
            "preflight",
            "debug",
            "--hang-after",
            str(SOON),
            "--report",
            "report",
            "--",
            *command,
        ]
        ended = work.run(words, limit_s=56, env={**APART, "NCCL_RAS_ADDR": f"localhost:{free_port()}"})
        found = work.findings()
        told = " | ".join(str(each["message"])[:200] for each in found)
        ranks = [str((each.get("where") or {}).get("rank")) for each in found]
        return work.expect(ranks[:1] == ["1"], f"exit {ended.code} after {ended.seconds:.0f} s; {codes(found)}; {told}")


for _letter, _deed in zip("abcdefghi", (
    "stopped", "killed", "exited", "raising", "skipping", "other_shape", "other_dtype", "other_collective", "late",
), strict=True):  # fmt: skip
    _debugged(f"D2{_letter}", _deed)


@item("D5", "two groups and a coalesced gather: what torch's dumps hold, and explain's figures", 75)
def groups(work: Work) -> str:
    seen = []
    for deed in ("two_groups", "coalesced"):
        folder = work.folder / deed
        folder.mkdir()
        dumps = {
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / "rank_"),
        }
        own = Work(folder)
        start(own, places(2, {**APART, **dumps}, own_nodes=True), job(deed), limit_s=34)
        explained = own.run(
            [sys.executable, "-m", "preflight", "explain", str(folder), "--report", str(folder / "report")],
            limit_s=15,
            name="screen",
        )
        found = own.findings()
        names = sorted(path.name for path in folder.glob("rank_*"))
        told = " | ".join(str(each["message"])[:250] for each in found[:2])
        seen.append(f"{deed}: {names}, exit {explained.code}, {codes(found)}: {told}")
    return "; ".join(seen)


@item("D6", "debug against none: the ratio of 2,000 small all-reduces", 60)
def overhead(work: Work) -> str:
    plain, under = [], []
    for turn in range(2):
        ended = start(
            work, places(2, TOGETHER), [*needs_one_node(work), *job("many")], limit_s=14, name=f"plain{turn}_"
        )
        plain += _took(ended[0].output)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = [
            sys.executable,
            "-m",
            "preflight",
            "debug",
            "--",
            *torchrun,
            "-m",
            "tests.real_gpu.jobs.collectives",
            "many",
        ]
        debugged = work.run([*needs_one_node(work), *words], limit_s=25, name=f"debug{turn}", env=TOGETHER)
        under += _took(debugged.output)
    if not plain or not under:
        raise UnexpectedError(f"plain {plain}, under debug {under}")
    return f"{statistics.median(under) / statistics.median(plain):.2f} (plain {plain} s, under debug {under} s)"


def _took(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"took ([\d.]+) s", output)][:1]


@item("G1", "an unprepared job that hangs: what RAS, stacks, sockets and NVML tell from outside", 60)
def from_outside(work: Work) -> str:
    port, seen = free_port(), {}

    def look(pids: list[int]) -> None:
        wait_for(work.folder / "rank0.txt", f"step {4}", 20)
        time.sleep(3)  # nothing says that a rank has begun to wait
        first = ras.status(f"localhost:{port}")
        for rank, pid in enumerate(pids):
            seen[rank] = _looked_at(work, rank, pid)
        time.sleep(2)  # two looks apart, as RAS' counts are compared
        work.save("ras.json", [first, ras.status(f"localhost:{port}")])
        if not work.dry:
            work.run(["nvidia-smi", "pmon", "-c", "3"], limit_s=8, name="pmon")

    ranks = places(WORLD, {**APART, "NCCL_RAS_ADDR": f"localhost:{port}"}, own_nodes=True)
    start(work, ranks, job("skipping"), limit_s=45, beside=look)
    work.save("seen.json", seen)
    return json.dumps({rank: each["top"] for rank, each in seen.items()})


def _looked_at(work: Work, rank: int, pid: int) -> dict[str, Any]:
    """State, wait and frames of one process."""
    proc = Path("/proc", str(pid))
    look: dict[str, Any] = {"state": (proc / "stat").read_text().rpartition(")")[2].split()[0], "top": "no py-spy"}
    for name in ("wchan", "stack", "status"):
        try:
            look[name] = (proc / name).read_text()
        except OSError as error:
            look[name] = str(error)
    spy = shutil.which("py-spy") or ""
    if spy:
        words = [spy, "dump", "--nonblocking", "--pid", str(pid)]
        ended = work.run(words, limit_s=8, name=f"stacks{rank}")
        frames = re.findall(r"^ {4}(\S+ \(.*\))", ended.output, re.M)
        look["top"] = frames[0] if frames else ended.last_line
    return look


@item("G2", "a minute of GEMM and copies together: heat, clock, first throttling", 70)
def heat(work: Work) -> str:
    if work.dry:
        return "not on a CPU"
    import torch

    sampler, end = Sampler(), time.monotonic() + 50
    sampler.start()
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    there, aside = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    other = torch.empty_like(there)
    while time.monotonic() < end:
        for _ in range(20):
            a @ b
            with torch.cuda.stream(aside):
                other.copy_(there)
        torch.cuda.synchronize()
    samples = sampler.finish()
    work.save("heat.json", samples)
    throttled = [sample["ms"] / 1000 for sample in samples if sample["reasons"] & ~0x1]
    ends = [samples[0], samples[len(samples) // 2], samples[-1]]
    reasons = sorted({hex(each["reasons"]) for each in samples})
    course = "; ".join(f"{each['c']} C, {each['sm']} MHz, {each['mw'] // 1000} W" for each in ends)
    return f"{course}; first reason at {throttled[:1]} s: {reasons}"
