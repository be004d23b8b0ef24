"""B: a sound card, and its figures. Each is alone on the card."""

import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.real_gpu.items import ROOT, Work, codes, item

SIZE, MIB_COPIED = 8192, 1024
DENSE_TFLOPS = {"bf16": 989.0, "fp16": 989.0, "tf32": 495.0, "fp32": 67.0, "fp8": 1979.0}
"""Of the H100 SXM and the H200 at their boost clock, without sparsity (NVIDIA's data sheets)."""
BOOST_MHZ = 1830.0
"""At which the data sheet's figures hold: 989 TFLOP/s = 132 SMs x 4096 FLOP x this clock (white paper: 1830 MHz)."""


@item("B1", "PASS, five times", 30)
def quick(work: Work) -> str:
    words = ("run", "--level", "quick", "--only", "gpu,node", "--report", "report")
    ended = [work.preflight(*words, limit_s=10, name=f"quick{turn}") for turn in range(5)]
    seconds = statistics.median(each.seconds for each in ended)
    seen = f"exit codes {[each.code for each in ended]}, median {seconds:.2f} s; {codes(work.findings())}"
    return work.expect(all(each.code == 0 for each in ended), seen)


@item("B2", "--all with one rank: all PASS", 110)
def whole_plan(work: Work) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    less = ["--skip", "train,data"] if work.dry else []  # the items F train there
    words = [*torchrun, "-m", "preflight", "--all", *less, "--report", "report", "--deadline", "100"]
    ended = work.run(words, limit_s=105)
    found = work.findings()
    verdict = re.search(r"verdict: (.*)", ended.output)
    return work.expect(ended.code == 0, f"{verdict[1] if verdict else ended.last_line}; {codes(found)}")


class Sampler(threading.Thread):
    """NVML ten times a second: SM clock, power, temperature, reasons for throttling."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        began = time.monotonic()
        while not self.over.wait(0.1):
            self.samples.append({
                "ms": round((time.monotonic() - began) * 1e3),
                "sm": pynvml.nvmlDeviceGetClockInfo(gpu, 1), "memory": pynvml.nvmlDeviceGetClockInfo(gpu, 2),
                "mw": pynvml.nvmlDeviceGetPowerUsage(gpu), "c": pynvml.nvmlDeviceGetTemperature(gpu, 0),
                "reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
            })  # fmt: skip

    def finish(self) -> list[dict[str, int]]:
        self.over.set()
        self.join(2)
        return self.samples


@item("B3", "figures as shares of the card's own limits; NVML under load", 45)
def limits(work: Work) -> str:
    if work.dry:
        return "not on a CPU"
    import torch

    sampler = Sampler()
    sampler.start()
    found: dict[str, Any] = _copies(torch)
    found["tflops"] = {kind: _gemm(torch, kind, 1.0) for kind in DENSE_TFLOPS}
    record = [sys.executable, "-m", "tests.real_gpu.nvml_record", str(work.folder / "nvml_load.json")]
    recording = subprocess.Popen(record, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    began = time.monotonic()
    while recording.poll() is None and time.monotonic() - began < 20:
        _gemm(torch, "bf16", 0.5)
    found["samples"] = sampler.finish()
    found["limits"] = _own_limits()
    found["shares"] = _shares(found)
    work.save("figures.json", found)
    busy = [sample for sample in found["samples"] if sample["sm"] > 1000]
    reasons = sorted({hex(sample["reasons"]) for sample in busy})
    hot = max(sample["c"] for sample in found["samples"])
    return work.expect(
        recording.poll() == 0,
        f"{found['shares']}, raw {found['tflops']} TFLOP/s; {hot} C, reasons {reasons}, "
        f"{max(sample['mw'] for sample in found['samples']) / 1000:.0f} W; "
        f"recorded: {(recording.communicate()[0])[:200]}",
    )


def _timed(torch: Any, call: Callable[[], object], seconds: float) -> float:
    """Median seconds of one call, over at least `seconds`."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(times) < 5:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def _copies(torch: Any) -> dict[str, float]:
    """GB/s."""
    size = MIB_COPIED << 20
    host, there = torch.ones(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(there)
    return {
        "h2d": size / _timed(torch, lambda: there.copy_(host, non_blocking=True), 0.5) / 1e9,
        "d2h": size / _timed(torch, lambda: host.copy_(there, non_blocking=True), 0.5) / 1e9,
        "device": 2 * size / _timed(torch, lambda: other.copy_(there), 0.5) / 1e9,
    }


def _gemm(torch: Any, kind: str, seconds: float) -> float:
    """TFLOP/s of a square product of random data."""
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
    if kind == "fp8":
        one = torch.ones((), device="cuda")
        low, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
        taken = _timed(
            torch, lambda: torch._scaled_mm(low, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16), seconds
        )
    else:
        taken = _timed(torch, lambda: a @ b, seconds)
    return round(2 * SIZE**3 / taken / 1e12, 1)


def _own_limits() -> dict[str, float]:
    """What NVML says of link, memory and clock."""
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    generation, width = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)
    rate = {3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}.get(generation, 0.0)  # GT/s of a lane, PCI-SIG
    memory = pynvml.nvmlDeviceGetMaxClockInfo(gpu, 2) * 1e6 * pynvml.nvmlDeviceGetMemoryBusWidth(gpu) * 2 / 8 / 1e9
    return {
        "pcie_gb_s": rate * width * 128 / 130 / 8, "memory_gb_s": memory, "generation": generation, "width": width,
        "sm_max_mhz": pynvml.nvmlDeviceGetMaxClockInfo(gpu, 1),
        "power_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    }  # fmt: skip


def _shares(found: dict[str, Any]) -> dict[str, float]:
    own = found["limits"]
    clocks = [sample["sm"] for sample in found["samples"] if sample["mw"] > own["power_w"] * 400]
    clock = statistics.median(clocks) if clocks else BOOST_MHZ
    shares = {
        "h2d": found["h2d"] / own["pcie_gb_s"], "d2h": found["d2h"] / own["pcie_gb_s"],
        "device": found["device"] / own["memory_gb_s"], "sm_mhz_under_load": clock,
    }  # fmt: skip
    shares |= {kind: found["tflops"][kind] / (most * clock / BOOST_MHZ) for kind, most in DENSE_TFLOPS.items()}
    return {name: round(share, 3) for name, share in shares.items()}


@item("B4", "14 kernels, over and over: bit-equal", 35)
def repeated(work: Work) -> str:
    from tests.real_gpu import digests

    found = digests.over_and_over(seconds=2 if work.dry else 14)
    work.save("digests.json", found)
    unlike = {name: kernel["different"] for name, kernel in found["kernels"].items() if kernel["different"]}
    return work.expect(
        not unlike, f"{found['repeats']} repeats of {len(found['kernels'])} kernels, different: {unlike}"
    )
