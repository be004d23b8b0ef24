"""How often `preflight explain` is right on real logs that lie beside this project: `python -m tests.explained_logs`.

The logs are others': they are read where they lie, and no part of the project. Their list (dev.json) says of each what
its cause was. What this prints stands in docs/explain.md; a test keeps it true where the logs are there.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.explain.command import explain_paths
from preflight.results.report import Report

LOGS = Path(__file__).parent.parent.parent / "shared" / "nccl_logs"
PAGE = Path(__file__).parent.parent / "docs" / "explain.md"
GOALS = {"high": 0.95, "medium": 0.75, "low": 0.5}
"""How often each confidence should be right."""
BEGIN, END = "<!-- python -m tests.explained_logs -->", "<!-- end -->"


@dataclass(frozen=True)
class Judged:
    """One log."""

    label: dict[str, Any]
    slug: str
    """Of the first finding; "healthy" without one."""
    report: Report

    @property
    def confidence(self) -> str:
        """Of the first finding; "" without one."""
        first = next(iter(self.report.findings), None)
        return str(first.evidence["confidence"]) if first else ""

    @property
    def source(self) -> str:
        """The project in whose threads it was found: "github.com/NVIDIA/nccl"."""
        return "/".join(self.label["source_url"].split("/")[2:5])

    @property
    def exact(self) -> bool:
        return bool(self.slug == self.label["category"])

    @property
    def fair(self) -> bool:
        """Another answer that its list admits counts, too."""
        return self.exact or self.slug in self.label["also_acceptable"]


def judged(folder: Path = LOGS, labels: str = "dev.json") -> Iterator[Judged]:
    """Each log of a list."""
    for label in json.loads((folder / labels).read_text()):
        made = explain_paths([str(folder / f"{label['id']}.log")])
        found = next(iter(made.findings), None)
        yield Judged(label, found.code.partition(".")[2] if found else "healthy", made)


def table(all_logs: list[Judged]) -> str:
    """For the page: how often each confidence is right, and how often where the logs of one source are left out."""
    named = [log for log in all_logs if log.confidence]
    lines = ["| confidence | logs | a fair cause first | with any one source left out, at least | goal |"]
    lines.append("|---|---|---|---|---|")
    for level, goal in GOALS.items():
        logs = [log for log in named if log.confidence == level]
        right = sum(log.fair for log in logs)
        share = f"{right} ({right / len(logs):.0%})" if logs else "none"
        lines.append(f"| {level} | {len(logs)} | {share} | {_least(logs):.0%} | {goal:.0%} |")
    exact = sum(log.exact for log in all_logs)
    healthy = [log for log in all_logs if log.label["category"] == "healthy"]
    silent = sum(log.slug == "healthy" for log in healthy)
    total = f"Of all {len(all_logs)} logs, the listed cause is first in {exact}."
    unnamed = sum(log.confidence == "none" for log in all_logs)
    total += f" Where nothing shows the cause ({unnamed} logs), it says what it saw, and names none."
    return "\n".join([*lines, "", f"{total} Healthy logs without a finding: {silent} of {len(healthy)}."])


def _least(logs: list[Judged]) -> float:
    """The lowest share of fair ones, over all sources of which one is left out."""
    folds = [[log for log in logs if log.source != source] for source in {log.source for log in logs}]
    return min((sum(log.fair for log in fold) / len(fold) for fold in folds if fold), default=0.0)


def main() -> None:
    """Prints the misses, and writes the page's table."""
    all_logs = list(judged())
    for log in all_logs:
        if not log.fair:
            print(log.label["id"], "expected", log.label["category"], "got", log.slug, file=sys.stderr)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(all_logs)}\n{END}{rest.partition(END)[2]}")
    print(table(all_logs))


if __name__ == "__main__":
    main()
