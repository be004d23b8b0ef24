"""Where checks come from, and what their modules declare."""

from __future__ import annotations  # `preflight list` imports nothing of what checks are made of

import importlib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from preflight.errors import BrokenCheck, UsageError, near_misses
from preflight.planning import entry_points

if TYPE_CHECKING:
    from preflight.check import Asked, Code, Job, Level, Option, Plan

T = TypeVar("T")
BUILT_IN = (
    "env.launch", "env.variables", "env.software",
    "node.limits", "node.clock", "node.kernel", "node.storage", "node.leftovers",
    "gpu.inventory", "gpu.health", "gpu.pcie", "gpu.nvlink", "gpu.topology",
    "net.interfaces", "net.rdma", "net.efa", "net.rendezvous", "net.mesh",
    "gpu.compute",
    "comm.init", "comm.transports", "comm.all_reduce", "comm.all_gather", "comm.reduce_scatter", "comm.all_to_all",
    "comm.broadcast", "comm.send_recv", "comm.rails", "comm.nodes", "comm.pairs", "comm.paths",
    "train.alone", "train.ddp", "train.fsdp2", "train.fsdp", "train.tp", "train.pp", "train.hybrid", "train.compile",
    "train.expert",
    "net.rdma_errors", "net.interface_errors",
    "data.sampler", "data.seeds", "data.resume",
    "train.model",
    "train.speed",
    "train.checkpoint",
    "gpu.released",
)  # fmt: skip
"""The order in which they run: cheap before expensive, local before global."""

SETTINGS_BY_OTHER_NAMES = {"train.model.batch": "train.speed.batch"}
"""Users set the batch beside the model; the memory that it takes is measured together with the speed."""
SHORT_FOR = {
    "env.software.code": ("--code", "DIR"),
    "data.sampler.data": ("--data", "MODULE:FUNCTION"),
    "data.seeds.data": ("--data", "MODULE:FUNCTION"),
    "data.resume.data": ("--data", "MODULE:FUNCTION"),
    "train.model.model": ("--model", "MODULE:NAME"),
    "train.speed.model": ("--model", "MODULE:NAME"),
    "train.checkpoint.dir": ("--checkpoint", "DIR"),
}
"""Settings that have an option of `run` of their own, and what that is followed by."""


@dataclass(frozen=True)
class Source:
    """A check's id and where its module is. Plain data, since it is sent to the workers."""

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

    @property
    def old_names(self) -> tuple[str, ...]:
        """What to write instead of each old name in its PLAN."""
        from preflight.core.plan import OLD_NAMES

        return tuple(f"PLAN.{name} is now {OLD_NAMES[name]}" for name in self.module.PLAN.old)

    def code_id(self, code: Code) -> str:
        """The full id of one of this check's codes. Raises BrokenCheck for a code of another module."""
        for slug, own in self.codes.items():
            if own is code:
                return f"{self.id}.{slug}"
        raise BrokenCheck(f"judge() used a Code that is not a constant of the module: {code.meaning}")

    def values(self, settings: Mapping[str, str]) -> dict[Option[Any], Any]:
        """Typed option values from `--set` texts (those of all checks; only its own are read)."""
        return {
            option: parse_option(f"{self.id}.{name}", option, settings[f"{self.id}.{name}"])
            for name, option in self.options.items()
            if f"{self.id}.{name}" in settings
        }


@dataclass(frozen=True)
class Spec:
    """What the planner knows about a check, without its module."""

    source: Source
    title: str
    plan: Plan
    """For this job and its settings: nothing in it is left to a function."""
    left_out: str = ""
    """Why it is left out, unless it was asked for by its id: what the user has to give."""
    old_names: tuple[str, ...] = ()
    """Warnings for its author."""

    @property
    def id(self) -> str:
        return self.source.id

    @property
    def deadline_s(self) -> float:
        assert isinstance(self.plan.deadline_s, float), "spec_of() has computed it"
        return self.plan.deadline_s

    @property
    def level(self) -> Level:
        assert not callable(self.plan.level), "spec_of() has computed it"
        return self.plan.level

    @property
    def fresh(self) -> bool:
        return self.plan.fresh is True

    def to_json(self) -> dict[str, object]:
        data = asdict(self)
        data["plan"]["after"] = {id_: kind.value for id_, kind in self.plan.after.items()}
        return data

    @staticmethod
    def from_json(data: dict[str, Any]) -> Spec:
        """The reverse of `to_json`, after its trip over a channel."""
        from preflight.check import After, Level, Plan, Scope

        plan = data["plan"]
        enums = {"scope": Scope(plan["scope"]), "level": Level(plan["level"])}
        after = {id_: After(kind) for id_, kind in plan["after"].items()}
        known = {"source": Source(**data["source"]), "plan": Plan(**{**plan, **enums, "after": after})}
        return Spec(**{**data, **known, "old_names": tuple(data["old_names"])})


def sources(plugins: Iterable[str] = ()) -> dict[str, Source]:
    """All known checks by id; imports none of them. Raises UsageError for a plugin that does not exist."""
    found = {id_: Source(id_, "builtin", f"preflight.checks.{id_}") for id_ in BUILT_IN}
    for name, target in _entry_points():
        found.setdefault(name, Source(name, "entry_point", target))
    for argument in plugins:
        source = plugin_source(argument)
        if source.id in found and found[source.id] != source:
            raise UsageError(f"--plugin {argument}: there is a check {source.id} already; give the file another name")
        found[source.id] = source
    return found


def _entry_points() -> Iterable[tuple[str, str]]:
    """What pip leaves of a broken installation (~orch-2.0.dist-info) may break it; torch's import as well."""
    try:
        return entry_points.found()
    except Exception as error:
        from preflight.core.exceptions import in_one_line

        why = f"({in_one_line(error)}); look for a broken .dist-info folder (pip check)"
        raise UsageError(f"the installed packages cannot be listed {why}", everywhere=False) from None


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
    """Imports a check. A supervisor imports built-in checks only. Raises what the import raises, and BrokenCheck."""
    return describe(source, import_module(source))


def load_error(source: Source, error: Exception) -> str:
    """Why it cannot be loaded, with the line in its file."""
    from preflight.core.exceptions import in_one_line, place_of

    return str(error) if isinstance(error, BrokenCheck) else f"{in_one_line(error)}{place_of(error, own_path(source))}"


def with_plugin(source: Source) -> str:
    """What to add to a command so that it finds the check: " --plugin FILE"; "" if it is installed."""
    return f" --plugin {source.target}" if source.kind in ("file", "module") else ""


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown check: near misses, or how to name a plugin."""
    listed = list(known)
    if word.partition(".")[0] == "plugin" and not any(id_.startswith("plugin.") for id_ in listed):
        return "; name its file with --plugin FILE"
    return near_misses(word, listed)


def import_module(source: Source) -> ModuleType:
    """Raises whatever the module raises, and BrokenCheck."""
    if source.kind == "file":
        from importlib.util import module_from_spec, spec_from_file_location

        name = f"preflight_plugin_{source.id.rpartition('.')[2]}"
        spec = spec_from_file_location(name, source.target)
        if spec is None or spec.loader is None:
            raise BrokenCheck(f"{source.target} is not a Python file")
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    if source.kind == "module" and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the user's own code: only in a child of its own
    return importlib.import_module(source.target.partition(":")[0])


def own_path(source: Source) -> str:
    """The file of a check, or its folder if it is a package: lines there are its author's. "" for a module that is not
    imported."""
    if source.kind == "file":
        return source.target
    path = getattr(sys.modules.get(source.target.partition(":")[0]), "__file__", None) or ""
    return os.path.dirname(path) if os.path.basename(path) == "__init__.py" else path


def describe(source: Source, module: ModuleType) -> Check:
    """Reads the plan, the options and the codes off a module. Raises BrokenCheck."""
    from preflight.check import Code, Option
    from preflight.core.finding import OWN_SLUGS
    from preflight.core.renamed_codes import RENAMED_UNDER_EVERY_CHECK
    from preflight.planning import validation

    options, codes = _constants(module, Option), _constants(module, Code)
    plan = validation.valid_plan(module, options)
    for function in ("measure", "judge"):
        if not callable(getattr(module, function, None)):
            raise BrokenCheck(f"it has no function {function}()")
    taken = sorted(set(codes) & {*OWN_SLUGS, *RENAMED_UNDER_EVERY_CHECK})
    if taken:
        where = validation.line_of(module, taken[0].upper())
        raise BrokenCheck(f"the code {taken[0]} belongs to the engine; rename it{where}")
    return Check(source, module, plan, options, codes)


def _constants(module: ModuleType, kind: type[T]) -> dict[str, T]:
    """The constants of type `kind` in the module and its `PARTS`, by name in lower case."""
    parts = getattr(module, "PARTS", ())
    if not isinstance(parts, tuple) or not all(isinstance(part, ModuleType) for part in parts):
        raise BrokenCheck(f"PARTS is {parts!r}, expected a tuple of modules")
    found: dict[str, T] = {}
    for part in (module, *parts):
        for name, value in vars(part).items():
            if name.isupper() and isinstance(value, kind) and found.setdefault(name.lower(), value) is not value:
                raise BrokenCheck(f"two of its PARTS define a different {name}: rename one")
    return found


def spec_of(check: Check, job: Job, settings: Mapping[str, str]) -> Spec:
    """What the planner needs, for this job and what the user has set. Raises BrokenCheck for a computed field of the
    wrong type, and what the plan's functions raise."""
    from preflight.check import Asked, Level
    from preflight.planning import validation

    set_by_user = frozenset(name for name in check.options if settings.get(f"{check.id}.{name}", "").strip())
    plan, asked = check.plan, Asked(job.backend, check.options, set_by_user)
    level, fresh = validation.level(plan, asked), validation.fresh(plan, replace(asked, unset=[]))
    computed = plan.deadline_s(job) if callable(plan.deadline_s) else None
    deadline = validation.seconds("deadline_s", plan.deadline_s if computed is None else computed)
    estimate = plan.estimate_s if computed is None else min(plan.estimate_s, deadline)  # this job may need less
    resolved = replace(plan, deadline_s=deadline, estimate_s=estimate, level=level or Level.FULL, fresh=fresh)
    left_out = "" if level else _why_left_out(check, asked)
    return Spec(check.source, check.title, resolved, left_out, check.old_names)


def _why_left_out(check: Check, asked: Asked) -> str:
    missing = [how_to_set(f"{check.id}.{name}") for name in asked.unset]
    return f"give {' and '.join(missing)}" if missing else f"there is nothing to check on {asked.backend}"


def how_to_set(name: str) -> str:
    """How the command line sets an option: "--model MODULE:NAME" or "--set ID.OPTION=VALUE"."""
    return " ".join(SHORT_FOR.get(name, ("--set", f"{name}=VALUE")))


def parse_option(name: str, option: Option[Any], text: str) -> Any:
    """Raises UsageError, which speaks of the command line's own option for it, where there is one."""
    given = f"{SHORT_FOR[name][0]} {text}" if name in SHORT_FOR else f"--set {name}={text}"
    try:
        value = _boolean(text) if option.type is bool else option.type(text)
    except (ValueError, TypeError, OverflowError) as error:
        is_plain = isinstance(option.type, type) and option.type is not bool
        why = f"not a valid {getattr(option.type, '__name__', '')}" if is_plain else str(error)
        raise UsageError(f"{given}: {why}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{given}: expected a finite number")
    return value


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise ValueError("expected true or false")


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
