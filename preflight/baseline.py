"""An earlier run to compare with: `--baseline REPORT`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.job import Job
from preflight.registry import UsageError

if TYPE_CHECKING:
    from preflight.facts import Book

READ_S = 10.0


@dataclass(frozen=True)
class Baseline:
    """What is needed of it."""

    path: str
    job: Job
    facts: "Book"
    facts_versions: Mapping[str, int]
    """By check."""


def read(path: str) -> Baseline:
    """The report and the facts beside it: first in a child, for they may lie on a file system that hangs. Raises
    UsageError."""
    from preflight.control import Control

    def refusal() -> dict[str, str]:
        try:
            _read(path)
        except (KeyError, TypeError, AttributeError, ValueError, OSError, EOFError, RecursionError) as error:
            return {"refused": f"is no whole report ({type(error).__name__}: {error})"}
        except UsageError as error:
            return {"refused": str(error).removeprefix(f"{path}: ")}
        return {}

    answer, why = Control(READ_S).ask("baseline", refusal, READ_S)
    refused = f"reading it {why.partition(chr(10))[0]}" if answer is None else answer.get("refused")
    if refused:
        raise UsageError(f"--baseline {path}: {refused}", everywhere=False)
    return _read(path)


def _read(path: str) -> Baseline:
    from preflight import report

    earlier, file = report.load(path)
    versions = {check["check"]: check["facts_version"] for check in earlier["checks"]}
    return Baseline(path, Job.from_json(earlier["job"]), report.facts_beside(file), versions)
