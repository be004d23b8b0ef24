"""`preflight run`: from the command line's arguments to the run."""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NoReturn

from preflight.check import Level
from preflight.cli import catalog
from preflight.core.plan import DEPENDS_ON
from preflight.engine import baseline, identity, local_launch, supervisor
from preflight.engine.run_context import RunOptions
from preflight.errors import CannotWork, UsageError
from preflight.planning import levels, node_kinds, plan, registry
from preflight.planning.plan import DEADLINES_S, CheckSelection, Request
from preflight.planning.policy import Policy
from preflight.planning.registry import SHORT_FOR, Check, Source
from preflight.results.console import Detail
from preflight.results.destinations import Output
from preflight.sdk import paths
from preflight.sinks import arguments as delivering
from preflight.sinks.arguments import Sinks

DRIVER_S = 60.0
"""For the start of a GPU driver, which takes seconds per GPU without persistence mode."""


def _words(lists: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for text in lists for word in text.split(",") if word.strip())


def settings(texts: list[str], sources: Mapping[str, Source]) -> dict[str, str]:
    """The values of `--set` by name. Raises UsageError; a plugin's options are checked when it is loaded."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = registry.SETTINGS_BY_OTHER_NAMES.get(name, name)
        id_ = name.rpartition(".")[0]
        if not equals:
            raise UsageError(f"--set {text}: expected ID.OPTION=VALUE")
        if id_ not in sources:
            raise UsageError(f"--set {name}: there is no check {id_ or name}{registry.hint(id_ or name, sources)}")
        found[name] = value
    for source in sources.values():
        if source.kind == "builtin" and any(name.rpartition(".")[0] == source.id for name in found):
            registry.unknown_settings(registry.load(source), found)
    return found


def _touch(plugins: list[str]) -> None:
    """In another process, before this one looks at them. Raises UsageError for one that does not answer."""
    for plugin in plugins:
        if plugin.endswith(".py") or os.sep in plugin:
            paths.ask(f"--plugin {plugin}", partial(os.path.isfile, plugin))


def configured(options: argparse.Namespace) -> tuple[Policy | None, dict[str, Source]]:
    """(policy of `--config`, None without it; all checks). What the file says becomes the default of the options."""
    options.renamed = {}
    if not options.config:
        _touch(options.plugin)
        return None, registry.sources(options.plugin)
    from preflight.planning import config

    site = config.read(options.config)
    options.plugin = [*site.plugins, *options.plugin]
    _touch(options.plugin)
    sources = registry.sources(options.plugin)
    try:
        policy = Policy(site.severity, site.waivers)
        config.check_codes(policy.codes, sources)
        settings([f"{name}={value}" for name, value in site.options.items()], sources)
    except UsageError as error:
        raise UsageError(f"{options.config}: {str(error).removeprefix('--set ')}") from None
    options.renamed = site.renamed
    options.set = [*(f"{name}={value}" for name, value in site.options.items()), *options.set]
    for name in ("level", "deadline", "report", "backend", "baseline", "strict", "only", "skip"):
        if not getattr(options, name, True):
            setattr(options, name, getattr(site, name))
    return policy, sources


def say_new_names(options: argparse.Namespace) -> None:
    """A line for each code that `--config` calls by an old name."""
    for old, today in options.renamed.items():
        Output().complain(f"{options.config}: {old} is now {today}")


def run(options: argparse.Namespace) -> int:
    if options.all and options.level not in (None, "full"):
        raise UsageError(f"--all is --level full: not together with --level {options.level}")
    if options.facts and not options.json:
        raise UsageError("--facts adds the facts to the report of --json FILE, which is not given")
    policy, sources = configured(options)
    short = {name: getattr(options, flag.removeprefix("--")) for name, (flag, _) in SHORT_FOR.items()}
    options.set += [f"{name}={value}" for name, value in short.items() if value]
    level = Level.FULL if options.all else Level(options.level or "standard")
    only = _words(options.only)
    selection = CheckSelection(level, only, _words(options.skip), ids=tuple(word for word in only if "." in word))
    for words, option in ((selection.only, "--only"), (selection.skip, "--skip")):
        plan.expand(words, sources, option)
    texts = settings(options.set, sources)
    if options.level:
        selection = replace(selection, only=_of_level(selection.only, level, sources))
    here = identity.from_environ(os.environ)
    sinks = delivering.sinks(options)
    earlier = "" if sinks.baseline else options.baseline or ""
    if earlier and not here.rank:
        baseline.refuse_unreadable(earlier)
    kinds = node_kinds.read(options.profile) if options.profile and not here.rank else ()
    request = Request(
        selection, texts, sources, options.backend or "auto", policy or Policy(), earlier, kinds, options.profile or ""
    )
    alone = here.launcher == "local"
    named = [sources[id_] for id_ in plan.expand(selection.only, sources, "--only")]
    plugins = [source for source in named if source.kind != "builtin"]
    quick = level is Level.QUICK and all(_has_level(source, level) for source in named)
    quick = quick and all(alone and _is_quick_plugin(plugin, sources) for plugin in plugins)  # else it may need torch
    if alone and not quick:
        output = Output(options.json, options.report)
        before = 0.0 if earlier else time.time()  # it may be the report that is there: rank 0 reads and then removes it
        refused = output.names() and paths.ask(output.names(), lambda: output.refusal(before))
        if refused:
            raise UsageError(refused)
        return local_launch.launch(options.words, options.deadline or DEADLINES_S[level])
    if not here.rank:
        say_new_names(options)
    return _supervise(options, request, sinks, needs_torch=not quick, alone=alone and not plugins)


def _of_level(only: tuple[str, ...], level: Level, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """The ids of `only`: of a family only checks that `--level` has; a check that is named by its id stays."""
    kept = {id_ for id_ in plan.expand(only, sources, "--only") if id_ in only or _has_level(sources[id_], level)}
    if only and not kept:
        raise UsageError(f"--only {','.join(only)}: has no check of --level {level}")
    return tuple(sorted(kept))


def _has_level(source: Source, level: Level) -> bool:
    if source.kind != "builtin":
        return True
    return level.includes(levels.of(registry.load(source)).level)


def _is_quick_plugin(source: Source, sources: Mapping[str, Source]) -> bool:
    """Asked in a child. One that cannot be loaded needs no torch either."""

    def tell(check: Check) -> str:
        wanted = check.plan.ids(DEPENDS_ON)
        others = [sources[id_] for id_ in wanted if id_ in sources]
        quick = levels.of(check).level is Level.QUICK and all(_has_level(other, Level.QUICK) for other in others)
        return "quick" if quick else "slow"

    try:
        kind, is_sound = catalog.told_of(source, tell)
    except CannotWork:  # the run reports it
        return True
    return not is_sound or kind == "quick"


def _supervise(
    options: argparse.Namespace, request: Request, sinks: Sinks, *, needs_torch: bool, alone: bool
) -> NoReturn:
    starts_driver = alone and os.path.exists("/proc/driver/nvidia")
    default = DEADLINES_S[request.selection.level] + DRIVER_S * starts_driver
    task = RunOptions(
        request=request,
        command=[word.replace(options.post, delivering.shown(options.post)) for word in options.words]
        if options.post
        else options.words,
        deadline_s=options.deadline or default,
        strict=options.strict,
        output=Output(options.json, options.report, options.facts),
        needs_torch=needs_torch,
        sinks=sinks,
        detail=Detail.QUIET if options.quiet else Detail.VERBOSE if options.verbose else Detail.USUAL,
    )
    supervisor.run(task)
