"""Made-up entries of a history, as preflight/history/entry.py makes them of reports."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
KIND = "nccl, 512 ranks on 64 nodes, NVIDIA H100"
BUSBW = ("comm.all_reduce", "1 GiB fp32 busbw", "GB/s")
GEMM = ("gpu.compute", "bf16 GEMM", "TFLOP/s")


def started(hours: float) -> str:
    return (FIRST + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def figure(value: float, units: Mapping[str, float] | None = None) -> dict[str, Any]:
    return {
        "value": value, "spread": 0.01, "n": 8, "of_job": units is None, "less_is_better": False, "least": 0.8,
        "labels": {}, "units": dict(units or {}),
    }  # fmt: skip


def finding(code: str, *nodes: str, gpu: str = "", severity: str = "fail") -> dict[str, Any]:
    return {"code": code, "severity": severity, "nodes": list(nodes), "gpu": gpu, "message": "made up", "counts": True}


def entry(
    number: int, nodes: Sequence[str] = ("node-0", "node-1"), *, findings: Sequence[dict[str, Any]] = (),
    busbw: float = 400.0, gemm: Mapping[str, float] | None = None, places: Mapping[str, str] | None = None,
    software: Mapping[str, str] | None = None, hours: float | None = None, kind: str = KIND,
    machines: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The run of this number, an hour after the one before; `gemm` by GPU, `software` and `machines` by node."""
    failed = {row["code"].rpartition(".")[0] for row in findings if row["severity"] == "fail"}
    return {
        "run": f"run-{number:05}", "started": started(number if hours is None else hours),
        "verdict": "fail" if failed else "pass", "job": "torchrun", "kind": kind, "backend": "nccl",
        "nodes": list(nodes), "machines": dict(machines or {}), "findings": list(findings),
        "places": dict(places or {}), "left_out": {},
        "checks": {check: "fail" if check in failed else "pass"
                   for check in ("gpu.health", "gpu.compute", "comm.all_reduce", "env.software")},
        "absent": {"env.software": []},
        "traits": [["software", "env.software", "torch", dict(software)]] if software else [],
        "figures": [[*BUSBW, figure(busbw)], *([[*GEMM, figure(700.0, gemm)]] if gemm else [])],
    }  # fmt: skip
