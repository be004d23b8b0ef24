"""An earlier run to compare with: `--baseline REPORT`."""

from preflight.core.answer import Failure
from preflight.core.exceptions import in_one_line
from preflight.core.job import Job
from preflight.engine.event_loop import EventLoop
from preflight.errors import UsageError
from preflight.planning.plan import Baseline
from preflight.results import report

READ_S = 10.0


def read(path: str) -> Baseline:
    """The report and the facts beside it: first in a child, for they may lie on a file system that hangs. Raises
    UsageError."""

    def refusal() -> dict[str, str]:
        try:
            _read(path)
        except (KeyError, TypeError, AttributeError, ValueError, OSError, EOFError, RecursionError) as error:
            return {"refused": f"is no whole report ({in_one_line(error)})"}
        except UsageError as error:
            return {"refused": str(error).removeprefix(f"{path}: ")}
        return {}

    answer = EventLoop(READ_S).ask("baseline", refusal, READ_S)
    refused = f"reading it {answer.text}" if isinstance(answer, Failure) else answer.value.get("refused")
    if refused:
        raise UsageError(f"--baseline {path}: {refused}", everywhere=False)
    return _read(path)


def _read(path: str) -> Baseline:
    earlier, file = report.load(path)
    versions = {check["check"]: check["facts_version"] for check in earlier["checks"]}
    return Baseline(path, Job.from_json(earlier["job"]), report.facts_beside(file), versions)
