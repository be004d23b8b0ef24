"""Where checks come from, and what their modules say of themselves."""

import difflib
import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from preflight.check import Code, Job, Level, Option, Plan, Scope

BUILT_IN = (
    "env.launch",
    "env.variables",
    "env.software",
    "node.limits",
    "node.clock",
    "node.kernel",
    "node.storage",
    "gpu.inventory",
    "gpu.health",
    "gpu.pcie",
    "gpu.nvlink",
    "gpu.topology",
    "net.interfaces",
    "net.rdma",
    "net.rendezvous",
    "net.mesh",
    "gpu.compute",
    "comm.init",
    "comm.transports",
    "comm.all_reduce",
    "comm.all_gather",
    "comm.reduce_scatter",
    "comm.all_to_all",
    "comm.broadcast",
    "comm.send_recv",
    "comm.rails",
    "comm.nodes",
    "comm.pairs",
    "train.alone",
    "train.ddp",
    "train.fsdp2",
    "train.fsdp",
    "net.rdma_errors",
    "data.sampler",
    "data.seeds",
    "train.model",
    "gpu.released",
)
"""Cheap to dear, and local to global: the order in which they run."""

RENAMED = {
    "env.launch.shared_gpu": "gpu.inventory.shared_gpu",
    "env.launch.no_gpu": "gpu.inventory.no_gpu",
    "train.ddp.wrong_alone": "train.alone.wrong_alone",
}
"""Codes by their old names: configurations and `describe` still understand these."""
SHORT_FOR = {
    "env.software.code": ("--code", "DIR"),
    "data.sampler.data": ("--data", "MODULE:FUNCTION"),
    "data.seeds.data": ("--data", "MODULE:FUNCTION"),
    "train.model.model": ("--model", "MODULE:FUNCTION"),
}
"""Settings that have an option of `run` of their own, and what that is followed by."""
NAMING_OPTIONS = ("given", "fresh_with")
"""Fields of a plan that name options of the check."""
ENTRY_POINTS = "preflight.checks"
CLOSE = 0.1
"""Names that are less like a word than the likest by so much (difflib's ratio) are no near misses."""
LISTED = 60
"""Names that an error message may list."""
OWN_SLUGS = {
    "timed_out": "It did not end within its deadline, and was killed.",
    "crashed": "Its process ended while it measured.",
    "lost": "Nothing more was heard of the rank.",
    "raised": "It raised an exception.",
    "bad_facts": "What `measure` returned is not JSON, holds NaN or is too large.",
    "out_of_step": "A rank left out a collective that the others entered, or entered another one.",
}
"""The engine's codes, under every check."""


class UsageError(Exception):
    """The user asked for something that is not there. Its text is one clear sentence; exit code 2."""

    def __init__(self, text: str, *, everywhere: bool = True) -> None:
        """`everywhere`: all ranks see the same, since they have the same command line; one of them says it."""
        super().__init__(text)
        self.everywhere = everywhere


class BrokenCheck(Exception):  # noqa: N818 -- says what is broken
    """A module that is no check. Its text says what it lacks."""


def near_misses(word: str, known: Iterable[str]) -> str:
    """ "; did you mean x or y?", or a list of what there is, where it is short."""
    listed = sorted(known)
    likeness = {one: difflib.SequenceMatcher(None, one, word).ratio() for one in listed}
    near = max(likeness.values(), default=0.0) - CLOSE
    close = [one for one in sorted(listed, key=lambda one: -likeness[one]) if likeness[one] >= max(0.5, near)][:3]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known are {', '.join(listed)}" if 0 < len(listed) <= LISTED else ""


@dataclass(frozen=True)
class Source:
    """A check's id and where its module is. Plain data: it travels to the workers."""

    id: str
    kind: str
    """builtin, entry_point, module or file."""
    target: str = ""


@dataclass(frozen=True)
class Check:
    """A loaded check."""

    source: Source
    module: ModuleType
    plan: Plan
    options: dict[str, Option[Any]]
    codes: dict[str, Code]

    @property
    def id(self) -> str:
        return self.source.id

    @property
    def title(self) -> str:
        """The first line of the module's docstring."""
        return ((self.module.__doc__ or "").strip().splitlines() or [self.id])[0]

    def code_id(self, code: Code) -> str:
        """The full id of one of this check's codes. Raises BrokenCheck for a code of another module."""
        for slug, own in self.codes.items():
            if own is code:
                return f"{self.id}.{slug}"
        raise BrokenCheck(f"judge() used a Code that is no constant of the module: {code.meaning}")

    def values(self, settings: Mapping[str, str]) -> dict[Option[Any], Any]:
        """Typed option values out of `--set` texts (all checks' texts; only its own are read)."""
        return {
            option: parse_option(f"{self.id}.{name}", option, settings[f"{self.id}.{name}"])
            for name, option in self.options.items()
            if f"{self.id}.{name}" in settings
        }


@dataclass(frozen=True)
class Spec:
    """What the planner knows of a check, without its module."""

    source: Source
    title: str
    scope: Scope
    level: Level
    deadline_s: float
    estimate_s: float
    needs: tuple[str, ...]
    reads: tuple[str, ...]
    uses: tuple[str, ...]
    when: tuple[str, ...]
    unless: tuple[str, ...]
    facts_version: int
    fresh: bool = False
    last: bool = False
    judges_failures: bool = False
    baseline: bool = False
    given: tuple[str, ...] = ()
    fresh_with: tuple[str, ...] = ()
    aside: bool = False

    @property
    def id(self) -> str:
        return self.source.id

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Spec":
        """The reverse of `to_json`, after its trip over a channel."""
        lists = {name: tuple(data[name]) for name in ("needs", "reads", "uses", "when", "unless", *NAMING_OPTIONS)}
        enums = {"scope": Scope(data["scope"]), "level": Level(data["level"])}
        return Spec(**{**data, **lists, **enums, "source": Source(**data["source"])})


def sources(plugins: Iterable[str] = ()) -> dict[str, Source]:
    """All checks there are, by id, none of them imported. Raises UsageError for a plugin that is not there."""
    found = {id_: Source(id_, "builtin", f"preflight.checks.{id_}") for id_ in BUILT_IN}
    for entry in _entry_points():
        found.setdefault(entry.name, Source(entry.name, "entry_point", entry.value))
    for argument in plugins:
        source = plugin_source(argument)
        if source.id in found and found[source.id] != source:
            raise UsageError(f"--plugin {argument}: there is a check {source.id} already; give the file another name")
        found[source.id] = source
    return found


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    """What pip leaves of a broken installation (~orch-2.0.dist-info) may break it; torch's import as well."""
    try:
        return importlib.metadata.entry_points(group=ENTRY_POINTS)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        text = f"the installed packages cannot be listed ({why}); look for a broken .dist-info folder (pip check)"
        raise UsageError(text, everywhere=False) from None


def plugin_source(argument: str) -> Source:
    """`--plugin MODULE_OR_FILE`. Raises UsageError."""
    if argument.endswith(".py") or os.sep in argument:
        if not os.path.isfile(argument):
            raise UsageError(f"--plugin {argument}: there is no such file")
        stem = os.path.basename(argument).removesuffix(".py")
        return Source(f"plugin.{re.sub(r'[^0-9A-Za-z_]', '_', stem)}", "file", os.path.abspath(argument))
    if not re.fullmatch(r"\w+(\.\w+)*", argument):
        raise UsageError(f"--plugin {argument}: neither a module's name nor a .py file")
    return Source(f"plugin.{argument.rpartition('.')[2]}", "module", argument)


def load(source: Source) -> Check:
    """Imports a check. Only built-in ones are ever imported by a supervisor. Raises what the import raises,
    and BrokenCheck."""
    return describe(source, import_module(source))


def import_module(source: Source) -> ModuleType:
    """Raises whatever the module raises, and BrokenCheck."""
    if source.kind == "file":
        name = f"preflight_plugin_{source.id.rpartition('.')[2]}"
        spec = importlib.util.spec_from_file_location(name, source.target)
        if spec is None or spec.loader is None:
            raise BrokenCheck(f"{source.target} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    if source.kind == "module" and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the user's own code: only in a child that is his alone
    return importlib.import_module(source.target.partition(":")[0])


def describe(source: Source, module: ModuleType) -> Check:
    """Reads the plan, the options and the codes off a module. Raises BrokenCheck."""
    plan = getattr(module, "PLAN", None)
    if not isinstance(plan, Plan):
        raise BrokenCheck("it has no PLAN = Plan(...)")
    for function in ("measure", "judge"):
        if not callable(getattr(module, function, None)):
            raise BrokenCheck(f"it has no function {function}()")
    constants = {name.lower(): value for name, value in vars(module).items() if name.isupper()}
    options = {name: value for name, value in constants.items() if isinstance(value, Option)}
    codes = {name: value for name, value in constants.items() if isinstance(value, Code)}
    taken = sorted(set(codes) & set(OWN_SLUGS))
    if taken:
        raise BrokenCheck(f"the code {taken[0]} belongs to the engine; rename it")
    return Check(source, module, plan, options, codes)


def spec_of(check: Check, job: Job) -> Spec:
    """What the planner needs, for this job."""
    plan = check.plan
    deadline = plan.deadline_s(job) if callable(plan.deadline_s) else plan.deadline_s
    for name, seconds in (("deadline_s", deadline), ("estimate_s", plan.estimate_s)):
        if not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
            raise BrokenCheck(f"PLAN.{name} is {seconds!r}, not a number of seconds")
    for name in ("fresh", "last", "judges_failures", "baseline", "aside"):
        if not isinstance(getattr(plan, name), bool):
            raise BrokenCheck(f"PLAN.{name} is {getattr(plan, name)!r}, neither True nor False")
    for field in NAMING_OPTIONS:
        for name in getattr(plan, field):
            if name not in check.options:
                hint = near_misses(name, check.options)
                raise BrokenCheck(f"PLAN.{field} names {name}, which is no option of it{hint}")
    return Spec(
        check.source, check.title, plan.scope, plan.level, float(deadline), float(plan.estimate_s),
        tuple(plan.needs), tuple(plan.reads), tuple(plan.uses), tuple(plan.when), tuple(plan.unless),
        plan.facts_version, plan.fresh, plan.last, plan.judges_failures, plan.baseline,
        tuple(plan.given), tuple(plan.fresh_with), plan.aside,
    )  # fmt: skip


def how_to_set(name: str) -> str:
    """The words of the command line: "--model MODULE:FUNCTION" or "--set ID.OPTION=VALUE"."""
    return " ".join(SHORT_FOR.get(name, ("--set", f"{name}=VALUE")))


def parse_option(name: str, option: Option[Any], text: str) -> Any:
    """Raises UsageError."""
    try:
        value = _boolean(text) if option.type is bool else option.type(text)
    except (ValueError, TypeError, OverflowError) as error:
        why = f"not a valid {option.type.__name__}" if isinstance(option.type, type) else str(error)
        raise UsageError(f"--set {name}={text}: {why}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--set {name}={text}: a finite number is expected")
    return value


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise ValueError("true or false is expected")


def unknown_codes(check: Check, codes: Iterable[str]) -> None:
    """Raises UsageError for a code that this check does not have."""
    for code in codes:
        if code.rpartition(".")[0] == check.id and code.rpartition(".")[2] not in check.codes:
            known = [f"{check.id}.{slug}" for slug in check.codes]
            raise UsageError(f"{code}: there is no such code{near_misses(code, known)}")


def unknown_settings(check: Check, settings: Mapping[str, str]) -> None:
    """Raises UsageError for a `--set` of an option that this check does not have, or of a wrong type."""
    for name in settings:
        family_and_name, _, option = name.rpartition(".")
        if family_and_name == check.id and option not in check.options:
            known = {f"{check.id}.{own}" for own in check.options}
            hint = near_misses(name, known) or f"; {check.id} has no options"
            raise UsageError(f"--set {name}: there is no such option{hint}")
    check.values(settings)
