"""Made-up jobs, findings, outcomes and reports for tests of several rooms."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema

from preflight.core import plots
from preflight.core.finding import Reported
from preflight.core.job import Job, Node
from preflight.core.outcome import Outcome
from preflight.planning.policy import Policy, Waiver
from preflight.results.building import build
from preflight.results.report import Explained, RankFacts, RankSpan, Report, SavedCheckpoint, UnreadFile
from preflight.results.result import Result
from tests.sizes import ROOT

SCHEMA = json.loads((ROOT / "preflight" / "results" / "report.schema.json").read_text())
_BY_SCHEMA = jsonschema.Draft202012Validator(SCHEMA)
"""Made once: jsonschema.validate looks at the schema itself each time, which takes 60 ms of CPU; a report takes 2."""


def assert_valid(report: Report | Mapping[str, Any]) -> None:
    """By the schema. Raises jsonschema.ValidationError."""
    _BY_SCHEMA.validate(report.to_json() if isinstance(report, Report) else report)


def job(*sizes: int, backend: str = "gloo", world_size: int | None = None) -> Job:
    """A node for each size: `job(2, 3)` has ranks 0-1 on node-0 and 2-4 on node-1."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    nodes = tuple(
        Node(f"node-{number}", number, tuple(range(first, first + size)), (f"10.0.0.{number + 1}",))
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    )
    return Job("torchrun", sum(sizes) if world_size is None else world_size, backend, nodes)


def finding(
    severity: str = "fail",
    message: str = "it is 1, expected 2",
    *,
    code: str = "plugin.made.bad",
    noticed_by: str = "",
    evidence: Mapping[str, Any] | None = None,
    fix: str = "mend it",
    action: str = "",
    not_measured: bool = False,
    **where: Any,
) -> Reported:
    return Reported(
        severity=severity, code=code, message=message, where=where, noticed_by=noticed_by,
        evidence=dict(evidence or {}), fix=fix, action=action, not_measured=not_measured,
    )  # fmt: skip


def result(*findings: Reported, check: str = "plugin.made", **more: Any) -> Result:
    return Result(check, more.pop("title", "A made-up check."), findings=list(findings), **more)


def measured(*ranks: int, seconds: float = 1.0) -> dict[int, Outcome]:
    return {rank: Outcome("measured", seconds) for rank in ranks}


def made_report(
    *results: Result, on: Job | None = None, strict: bool = False, options: Mapping[str, str] | None = None
) -> Report:
    """By the real `build`, and valid by the schema."""
    built = build(
        run_id="0123456789ab",
        started="2026-01-31T12:00:00Z",
        seconds=1.25,
        command=["--all", "--strict"] if strict else ["--all"],
        options=options or {},
        job=on or job(2, 2),
        results=list(results),
        strict=strict,
    )
    assert_valid(built)
    return built


def full_report() -> Report:
    """With every field that a report may have; what each of them says is made up."""
    call = {"seq": 1, "operation": "all_reduce", "sizes": [[4]], "elements": 4, "dtype": "float32", "over": False,
            "stuck": True}  # fmt: skip
    group = {"ranks": "0-4", "world": True, "entered": 1, "lately": True, "sending": False, "calls": [call]}
    inside = {"operation": "all_reduce", "shape": "4", "number": 1, "inside": True}
    hung = Outcome("timed_out", 9.0, "late", collective=inside, signal="SIGKILL", state="D", doing="all_reduce",
                   stack="at 7", log_tail="a log", recorded=[group], nccl_log="NCCL", ras="RAS")  # fmt: skip
    day = {"until": "2026-12-31", "reason": "ticket 7"}
    merged = replace(
        finding(rank=2, gpu=1, uuid="GPU-1", action="reboot", noticed_by="0-1", evidence={"lines": [], "also": []}),
        severity_was="warn", waived=day, waiver_ended=day, ranks="2-3", nodes=["node-1"], not_measured=True,
    )  # fmt: skip
    entry = result(merged, outcomes={0: hung}, picture=["a line"], aside=True, plots=[plot.to_json() for plot in PLOTS],
                   began_s=0.5, summary="one link").entry(job(2, 2))  # fmt: skip
    whole = replace(job(2, 2, world_size=5), missing_on=(("node-2", (4,)),))
    return replace(
        made_report(on=whole, options={"plugin.made.a": "1"}),
        policy=Policy({"plugin.made.bad": "warn"}, (Waiver("plugin.made.bad", **day, node="node-1"),)),
        checks=[replace(entry, facts=[RankFacts("0-3", {"a": 1})])],
        explained=Explained(
            1, 2, 3, [UnreadFile("a.bin", "is binary")], [RankSpan(0, 1.0, 5.0), RankSpan(2, 1.0, 7.5)]
        ),
        checkpoint=SavedCheckpoint("model.pt", "torch", 1, 2, None, 4, 5, 6, ["  0.  4 tensors"]),
    )


PLOTS: tuple[plots.Plot, ...] = (
    plots.Chart("c", "bytes", "y", [plots.Series("a", [(1, 2), (3, 4)]), plots.Series("b", [(1, 2, 3, 4)])], "xy",
                marks=[(1.0, "begin")]),
    plots.HeatMap("h", ["a", "b"], ["c", "d"], {(0, 1): 2.0, (1, 0): 0.5}, "ms", 2.0, 1.0),
    plots.Wiring("w", ["node-0"], [("GPU0", "NUMA 0"), ("GPU1", "NUMA 0")], [(0, 1, "NV18")], [(0, 1)]),
    plots.Table("t", ("a", "b"), [("1", "2")]),
    plots.Strips("s", [("node-0", "rank 0")], [plots.Strip("time", "ms", [1.0], [0])]),
    plots.Strips("m", [("node-0", "")] * 9000, [plots.Strip("time", "ms", [1.0, 2.0] * 4500, [3])]),
)  # fmt: skip
"""One of each kind, and one that is counted."""
