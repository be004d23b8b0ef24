"""What a check is made of. A check's module imports from here, and from nowhere else in the engine.

A module is a check when it has `PLAN` (a `Plan`), `measure(ctx)` and `judge(facts, run)`. It may also have
`summarize(facts, run)`, which returns one line for the screen; `draw(facts, run)`, the lines of a picture such as a
matrix; `plot(facts, run)`, what report.html draws (`plots.Chart` and the like); `groups(facts, run)`, the `Group`s of
nodes that its facts show (a problem of all nodes of a group becomes one finding); and `record(reading, job)`, which
yields from one rank's facts the `Trait`s and `Figure`s that are compared with other runs.
`Option`s and `Code`s are constants of the module, or of the modules that its tuple `PARTS` names.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from preflight.core import plots, words
from preflight.core import rank_ranges as ranges
from preflight.core.action import TO_A_NODE, Action
from preflight.core.groups import Group
from preflight.core.job import Job, Node
from preflight.core.option import Option, count, option, seconds
from preflight.core.outcome import Outcome
from preflight.core.plan import After, Asked, Level, Plan, Scope
from preflight.core.record import Figure, Trait, traits
from preflight.core.vote import Comparison, Vote, compare, grouped, vote
from preflight.errors import NotApplicable, Skip
from preflight.sdk.files import entries, read
from preflight.sdk.probe import NoReply, NoReplyKind, Probe, Reply

if TYPE_CHECKING:
    import torch

    from preflight.sdk import pairs
    from preflight.sdk.user_code import UserCode, UserError

__all__ = [
    "Action", "After", "Asked", "Code", "Comparison", "Context", "Figure", "Finding", "Group", "Job", "Level",
    "NoReply", "NoReplyKind", "Node", "NotApplicable", "Option", "Outcome", "Plan", "Probe", "Reply", "Run", "Scope",
    "Severity", "Skip", "Trait", "UserCode", "UserError", "Vote", "compare", "count", "entries", "grouped", "option",
    "pairs", "plots", "ranges", "read", "seconds", "traits", "vote", "words",
]  # fmt: skip

T = TypeVar("T")


class Severity(StrEnum):
    """What the finding means for a job."""

    FAIL = "fail"
    """It cannot run, or computes wrongly."""
    ERROR = "error"
    """Given by the engine only: preflight could not measure or judge."""
    WARN = "warn"
    """It is slower, or at risk."""
    INFO = "info"


WHERE_KEYS = (
    "node", "rank", "local_rank", "gpu", "uuid", "serial", "link", "interface", "device", "variable",
    "peer_node", "peer_rank", "peer_gpu", "step", "parameter", "file", "line",
)  # fmt: skip
"""What a finding can blame."""


@dataclass(frozen=True, eq=False)
class Code:
    """A kind of finding. Its id is `<check id>.<constant in lower case>`, and is never renamed."""

    meaning: str
    fix: str
    """A sentence or a command; `{gpu}` and the like are filled from the culprit and the evidence."""
    action: Action = Action.FIX_CONFIG
    """What an operator does about it; a finding may override it. It is none for a finding of severity info, and for one
    without a culprit if the action is done to a node."""
    see: tuple[str, ...] = ()
    """Checks and families that measure what the fix sends the reader to. Where they have run, the fix says what they
    found at the culprit (preflight/results/already_measured.py)."""
    cleared: str = ""
    """The fix where the first of these has run, and none that has run has found anything there; "" keeps `fix`."""

    def fail(self, message: str, **details: Any) -> "Finding":
        """The job cannot run or computes wrongly. For `details` see `finding`."""
        return self.finding(Severity.FAIL, message, **details)

    def warn(self, message: str, **details: Any) -> "Finding":
        """The job is slower or at risk."""
        return self.finding(Severity.WARN, message, **details)

    def info(self, message: str, **details: Any) -> "Finding":
        """Worth knowing; does not change the verdict."""
        return self.finding(Severity.INFO, message, **details)

    def not_measured(self, message: str, **details: Any) -> "Finding":
        """A part of the check was not measured; `message` says which, and why. Unless it found something worse, the
        check is then a skip, which --strict fails on: what was not measured does not pass."""
        return replace(self.info(message, **details), not_measured=True)

    def finding(
        self,
        severity: Severity,
        message: str,
        /,
        *,
        noticed_by: tuple[int, ...] = (),
        evidence: Mapping[str, Any] | None = None,
        fix: str | None = None,
        action: Action | None = None,
        **where: Any,
    ) -> "Finding":
        """`message` is one sentence with the measured and the expected value; `where` names the culprit
        by keys of `WHERE_KEYS` (others raise TypeError); `noticed_by` are the ranks of the victims."""
        unknown = sorted(set(where) - set(WHERE_KEYS))
        if unknown:
            raise TypeError(f"a finding cannot blame {', '.join(unknown)}; known are {', '.join(WHERE_KEYS)}")
        culprit = {key: where[key] for key in WHERE_KEYS if where.get(key) is not None}
        proof = dict(evidence or {})
        text = _filled(fix or self.fix, {**proof, **culprit})
        action = action or self.action
        if severity is Severity.INFO or (action in TO_A_NODE and not culprit):
            action = Action.NONE
        cleared = "" if fix else _filled(self.cleared, {**proof, **culprit})
        who = ranges.to_text(noticed_by)
        return Finding(severity, self, message, culprit, who, proof, text, action, cleared=cleared)


def _filled(fix: str, known: Mapping[str, Any]) -> str:
    """Fills in each `{name}` that is known; the others stay, as do the braces of awk and shell lines."""
    return re.sub(r"\{(\w+)\}", lambda match: str(known.get(match[1], match[0])), fix)


@dataclass(frozen=True)
class Finding:
    """Something found: made by `Code.fail`, `Code.warn`, `Code.info` and `Code.not_measured`."""

    severity: Severity
    code: Code
    message: str
    where: dict[str, Any]
    noticed_by: str
    evidence: dict[str, Any]
    fix: str
    action: Action
    not_measured: bool = False
    """Whether it says that a part of the check was not measured."""
    cleared: str = ""
    """Of its code; "" where the finding has a fix of its own."""


class Page(Protocol):
    """The page that outlives a worker (see preflight/engine/breadcrumb.py)."""

    def doing(self, what: str, where: Mapping[str, Any]) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Context:
    """What `measure` is given."""

    check: str
    job: Job
    rank: int
    local_rank: int
    members: tuple[int, ...]
    """The ranks that take part, ascending. A rank's number in the process group is its index here."""
    environ: Mapping[str, str]
    """The environment as the launcher gave it, before preflight touched anything."""
    deadline_s: float
    """Seconds that `measure` may take; after it the worker is killed."""
    page: Page
    make_group: Callable[[], "torch.distributed.ProcessGroup"]
    make_store: Callable[[], "torch._C._distributed_c10d.Store"]
    endpoint: tuple[str, int] | None = None
    """Host and port at which the ranks meet, as the launcher gave them or preflight chose them; None without a
    launcher."""
    options: Mapping[Option[Any], Any] = field(default_factory=dict)
    make_part: "Callable[[tuple[int, ...]], torch.distributed.ProcessGroup] | None" = None
    read_nccl_log: Callable[[], str] = str
    level: Level = Level.STANDARD
    """The run's level, decided by rank 0 and the same on all ranks. It is standard unless the user gives another, also
    with `--only`."""
    run_folder: str = ""
    """A private folder of this run on this node, removed at its end even if this worker is killed; "" on gloo."""

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.options.get(option, option.default)
        return value

    @property
    def group_rank(self) -> int:
        """This rank's number in the process group."""
        return self.members.index(self.rank)

    def doing(self, what: str, /, **where: Any) -> None:
        """Notes what is being done: the report shows it if this worker hangs or dies."""
        self.page.doing(what, where)

    @contextmanager
    def collective(self, operation: str, shape: str = "") -> Iterator[None]:
        """Marks the time inside a collective, so that a hang shows who entered it and who never did.

        On an exception it stays marked: the exception came from inside the collective.
        """
        self.page.enter(operation, shape)
        yield
        self.page.leave()

    def process_group(self) -> "torch.distributed.ProcessGroup":
        """The world group over the members, made at the first call and kept while this worker lives."""
        return self.make_group()

    def part(self, ranks: tuple[int, ...]) -> "torch.distributed.ProcessGroup":
        """A process group over these ranks, which must include this one. All members call it together, each for the
        part of the world that it is in: no member may be left out, and parts do not overlap (NCCL splits the world's
        communicator, which all ranks must do at once). Created once and kept, like the world's group."""
        self.make_group()
        assert self.make_part is not None, "a context without an engine has no parts"
        return self.make_part(ranks)

    def part_of_group(self, places: tuple[int, ...]) -> "torch.distributed.ProcessGroup":
        """The same by numbers in the process group, which are not the job's where a rank has been lost."""
        return self.part(tuple(self.members[place] for place in places))

    def nccl_log(self) -> str:
        """What NCCL has written in this worker so far (NCCL_DEBUG=INFO; at most 1 MiB, the first half and the last);
        "" without NCCL."""
        return self.read_nccl_log()

    def store(self) -> "torch._C._distributed_c10d.Store":
        """A client of the run's store, with keys for this one measurement only; it times out before the deadline.
        Lets ranks exchange data without a collective. Raises Skip where a run without torch has no store."""
        return self.make_store()

    @property
    def device(self) -> "torch.device":
        """This rank's GPU on nccl, the CPU on gloo. Raises Skip where nccl has no GPU here."""
        import torch

        if self.job.backend == "nccl":
            gpus = torch.cuda.device_count()
            if not gpus:
                raise Skip("torch sees no GPU on this rank")
            return torch.device("cuda", self.local_rank % gpus)
        return torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Run:
    """What `judge` is given beside the facts of its own check."""

    job: Job
    members: tuple[int, ...]
    """The ranks that were asked to measure."""
    outcomes: Mapping[int, Outcome]
    """How `measure` ended, for every one of them."""
    options: Mapping[Option[Any], Any] = field(default_factory=dict)
    facts_of: Callable[[str], Mapping[int, Any]] = lambda _: {}
    groups: tuple[Group, ...] = ()
    """The nodes that belong together, as far as the checks before this one know."""

    earlier: tuple[Figure, ...] = ()
    """The check's figures in the run of `--baseline REPORT`, each the median of those that measured it. Empty if no run
    was named, or it has other ranks or another backend. They are compared after `judge`, which need not do it."""

    def facts(self, check: str) -> Mapping[int, Any]:
        """The facts of a check, by rank: its own, or one that its plan reads."""
        return self.facts_of(check)

    def baseline(self, check: str) -> Mapping[int, Any]:  # noqa: ARG002 -- as it was
        """Always empty: the facts of an earlier run are not kept, its figures are `earlier`."""
        return {}

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.options.get(option, option.default)
        return value


def __getattr__(name: str) -> Any:
    """What only some checks need is imported on first use: a quick run has none of them."""
    if name in ("UserCode", "UserError"):
        from preflight.sdk import user_code

        return getattr(user_code, name)
    if name == "pairs":
        return importlib.import_module("preflight.sdk.pairs")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
