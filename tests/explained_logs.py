"""How often `preflight explain` is right on real logs that lie beside this project: `python -m tests.explained_logs`.

The logs are others': they are read where they lie, and no part of the project. Their list (dev.json) says of each what
its cause was. What this prints stands in docs/explain.md; a test keeps it true where the logs are there.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.explain.command import explain_paths
from preflight.results.report import findings

LOGS = Path(__file__).parent.parent.parent / "shared" / "nccl_logs"
PAGE = Path(__file__).parent.parent / "docs" / "explain.md"
BEGIN, END = "<!-- python -m tests.explained_logs -->", "<!-- end -->"


@dataclass(frozen=True)
class Judged:
    """One log."""

    label: dict[str, Any]
    slug: str
    """Of the first finding; "healthy" without one."""
    report: dict[str, Any]

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
        found = next(findings(made), None)
        yield Judged(label, found.code.partition(".")[2] if found else "healthy", made)


def table(all_logs: list[Judged]) -> str:
    """For the page: how many are right, and by difficulty."""
    lines = ["| logs | the right cause first | or another fair one |", "|---|---|---|"]
    groups = {"all": all_logs, **_by_difficulty(all_logs)}
    for name, logs in groups.items():
        exact, fair = sum(log.exact for log in logs), sum(log.fair for log in logs)
        lines.append(f"| {name}: {len(logs)} | {exact} ({exact / len(logs):.0%}) | {fair} ({fair / len(logs):.0%}) |")
    healthy = [log for log in all_logs if log.label["category"] == "healthy"]
    silent = sum(log.slug == "healthy" for log in healthy)
    return "\n".join([*lines, "", f"Healthy logs without a finding: {silent} of {len(healthy)}."])


def _by_difficulty(all_logs: list[Judged]) -> dict[str, list[Judged]]:
    counts = Counter(log.label["difficulty"] for log in all_logs)
    return {
        name: [log for log in all_logs if log.label["difficulty"] == name]
        for name in ("easy", "medium", "hard")
        if counts[name]
    }


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
