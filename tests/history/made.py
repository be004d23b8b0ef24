"""Made-up entries of a history."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from preflight.history.run_entry import KeptFigure, KeptFinding, KeptTrait, Of, RunEntry

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
KIND = "nccl, 512 ranks on 64 nodes, NVIDIA H100"
BUSBW = ("comm.all_reduce", "1 GiB fp32 busbw", "GB/s")
GEMM = ("gpu.compute", "bf16 GEMM", "TFLOP/s")


def started(hours: float) -> str:
    return (FIRST + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def figure(
    of: Of, value: float, units: Mapping[str, float] | None = None, labels: Mapping[str, str] | None = None
) -> KeptFigure:
    return KeptFigure(*of, value, 0.01, 8, units is None, False, 0.8, labels or {}, dict(units or {}))


def finding(code: str, *nodes: str, gpu: str = "", severity: str = "fail") -> KeptFinding:
    return KeptFinding(code, severity, list(nodes), gpu, "made up", counts=True)


def entry(
    number: int, nodes: Sequence[str] = ("node-0", "node-1"), *, findings: Sequence[KeptFinding] = (),
    busbw: float = 400.0, gemm: Mapping[str, float] | None = None, places: Mapping[str, str] | None = None,
    software: Mapping[str, str] | None = None, hours: float | None = None, kind: str = KIND,
    machines: Mapping[str, str] | None = None,
) -> RunEntry:  # fmt: skip
    """The run of this number, an hour after the one before; `gemm` by GPU, `software` and `machines` by node."""
    failed = {each.code.rpartition(".")[0] for each in findings if each.severity == "fail"}
    return RunEntry(
        f"run-{number:05}", started(number if hours is None else hours), "torchrun", kind, "nccl",
        "fail" if failed else "pass",
        {check: "fail" if check in failed else "pass"
         for check in ("gpu.health", "gpu.compute", "comm.all_reduce", "env.software")},
        list(findings), list(nodes), dict(machines or {}), dict(places or {}),
        traits=[KeptTrait("software", "env.software", "torch", dict(software))] if software else [],
        figures=[figure(BUSBW, busbw), *([figure(GEMM, 700.0, gemm)] if gemm else [])],
        absent={"env.software": []},
    )  # fmt: skip
