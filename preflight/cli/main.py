"""The command line. Imports no torch: `list`, `describe` and `--level quick` never need it."""

import argparse
import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from preflight import errors
from preflight.check import Level
from preflight.cli import catalog, surroundings
from preflight.cli.arguments import COMMANDS, STARTING, parser
from preflight.errors import CannotWork, UsageError
from preflight.planning import node_kinds, plan, registry
from preflight.planning.plan import CheckSelection, Request
from preflight.planning.policy import Policy
from preflight.planning.registry import SHORT_FOR, Check, Source
from preflight.results import console, report
from preflight.results.destinations import Output
from preflight.sinks import arguments as delivering
from preflight.sinks.arguments import Sinks

DEADLINES_S = {Level.QUICK: 60.0, Level.STANDARD: 120.0, Level.FULL: 900.0}
STDOUT_REFUSES = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
DRIVER_S = 60.0
"""Alone, for the start of a GPU driver, which takes seconds per GPU without persistence mode."""


def main(arguments: list[str], translate: Callable[[list[str]], list[str]] = list) -> NoReturn:
    """The command, to its exit. `translate` makes the arguments of `preflight` out of those of another command; its
    UsageError is said as one of this command."""
    try:
        surroundings.need_a_folder()
        code = _dispatch(translate(arguments))
        sys.stdout.flush()
    except Exception as error:
        code = _told(error)
    sys.exit(code)


def _told(error: Exception) -> int:
    """Says in a sentence why the command ends so, on stderr if that takes it. The exit code."""
    if isinstance(error, OSError) and error.filename is None and error.errno in STDOUT_REFUSES:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return 0
        error = UsageError(f"stdout: cannot be written ({error.strerror})", everywhere=False)
    if not isinstance(error, UsageError | CannotWork):
        Output().complain(
            f"a fault of preflight itself; please report it:\n{''.join(traceback.format_exception(error))}"
        )
        return 3
    from preflight.engine import shutdown

    if isinstance(error, CannotWork):
        _complain(str(error))
        shutdown.write_verdict(3, f"preflight: ERROR: {error}")
        return 3
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if rank == "0" or not error.everywhere:
        _complain(f"{'' if rank == '0' else f'rank {rank}: '}{error}")
    shutdown.write_verdict(2, str(error))
    return 2


def _complain(text: str) -> None:
    """As Output().complain does, but where sys.stderr leads: for whoever calls main() from Python."""
    try:
        if sys.stderr is not sys.__stderr__:
            sys.stderr.write(f"preflight: {text}\n")
        else:
            Output().complain(text)
    except OSError:
        pass


def _dispatch(arguments: list[str]) -> int:
    named = bool(arguments) and arguments[0] in COMMANDS
    if arguments and not named and not arguments[0].startswith("-"):
        hint = errors.near_misses(arguments[0], COMMANDS)
        raise UsageError(f"{arguments[0]}: there is no such command{hint}")
    words = arguments if named or arguments[:1] in (["-h"], ["--help"], ["--version"]) else ["run", *arguments]
    options, unknown = parser().parse_known_args(words)
    if unknown:
        raise UsageError(_no_such_option(unknown[0], options.command))
    if options.command in STARTING:
        surroundings.need_what_processes_need()
    options.words = arguments
    commands = {
        "run": _run, "rendezvous": _rendezvous, "checkpoint": _checkpoint, "explain": _explain, "debug": _debug,
        "gate": _gate, "hook": _hook, "nodes": _nodes, "pick": _pick, "diff": _diff, "history": _history,
        "profile": _profile,
        "list": catalog.list_checks, "describe": catalog.describe_code, "show": _show, "completion": _completion,
    }  # fmt: skip
    return commands[options.command](options)


def _no_such_option(word: str, command: str) -> str:
    flag = word.partition("=")[0]
    others = [other for other in COMMANDS if flag in _flags(other)]
    hint = f"; it is one of {' and '.join(others)}" if others else errors.near_misses(word, _flags(command))
    return f"{word}: {command} has no such option{hint}"


def _flags(command: str) -> list[str]:
    known: Any = parser()._subparsers
    return [flag for flag in known._group_actions[0].choices[command]._option_string_actions if flag.startswith("--")]


def _words(lists: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for text in lists for word in text.split(",") if word.strip())


def settings(texts: list[str], sources: Mapping[str, Source]) -> dict[str, str]:
    """`--set` texts by name. Raises UsageError; what belongs to a plugin is looked at when it is loaded."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = registry.SETTINGS_BY_OTHER_NAMES.get(name, name)
        id_ = name.rpartition(".")[0]
        if not equals:
            raise UsageError(f"--set {text}: ID.OPTION=VALUE is expected")
        if id_ not in sources:
            raise UsageError(f"--set {name}: there is no check {id_ or name}{registry.hint(id_ or name, sources)}")
        found[name] = value
    for source in sources.values():
        if source.kind == "builtin" and any(name.rpartition(".")[0] == source.id for name in found):
            registry.unknown_settings(registry.load(source), found)
    return found


def _configured(options: argparse.Namespace) -> tuple[Policy | None, dict[str, Source]]:
    """(its policy, None without `--config`; all checks). What the file says becomes the default of the options."""
    if not options.config:
        return None, registry.sources(options.plugin)
    from preflight.planning import config

    said = config.read(options.config)
    options.plugin = [*said.plugins, *options.plugin]
    sources = registry.sources(options.plugin)
    try:
        policy = Policy(said.severity, said.waivers)
        config.check_codes(policy.codes, sources)
        settings([f"{name}={value}" for name, value in said.options.items()], sources)
    except UsageError as error:
        raise UsageError(f"{options.config}: {str(error).removeprefix('--set ')}") from None
    options.set = [*(f"{name}={value}" for name, value in said.options.items()), *options.set]
    for name in ("level", "deadline", "report", "backend", "baseline", "strict", "only", "skip"):
        if not getattr(options, name, True):
            setattr(options, name, getattr(said, name))
    return policy, sources


def _run(options: argparse.Namespace) -> int:
    from preflight.engine import baseline, identity, local_launch

    if options.all and options.level not in (None, "full"):
        raise UsageError(f"--all is --level full: not together with --level {options.level}")
    if options.facts and not options.json:
        raise UsageError("--facts puts the facts into the report of --json FILE, which is not given")
    policy, sources = _configured(options)
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
    earlier = baseline.read(options.baseline) if options.baseline and not sinks.baseline and not here.rank else None
    kinds = node_kinds.read(options.profile) if options.profile and not here.rank else ()
    request = Request(selection, texts, sources, options.backend or "auto", policy or Policy(), earlier, kinds)
    alone = here.launcher == "local"
    named = [sources[id_] for id_ in plan.expand(selection.only, sources, "--only")]
    plugins = [source for source in named if source.kind != "builtin"]
    quick = level is Level.QUICK and all(_has_level(source, level) for source in named)
    quick = quick and all(alone and _is_quick_plugin(plugin, sources) for plugin in plugins)  # else it may need torch
    if alone and not quick:
        refused = Output(options.json, options.report).refusal(time.time())
        if refused:
            raise UsageError(refused)
        return local_launch.launch(options.words, options.deadline or DEADLINES_S[level])
    return _supervise(options, request, sinks, needs_torch=not quick, alone=alone and not plugins)


def _of_level(only: tuple[str, ...], level: Level, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """With `--level` a family is what it has of that level; a check that is named by its id stays."""
    kept = {id_ for id_ in plan.expand(only, sources, "--only") if id_ in only or _has_level(sources[id_], level)}
    if only and not kept:
        raise UsageError(f"--only {','.join(only)}: has no check of --level {level}")
    return tuple(sorted(kept))


def _has_level(source: Source, level: Level) -> bool:
    if source.kind != "builtin":
        return True
    its = registry.load(source).plan
    return level.includes(plan.first_level(its.level, its.given))


def _is_quick_plugin(source: Source, sources: Mapping[str, Source]) -> bool:
    """Asked in a child. One that cannot be loaded needs no torch either."""

    def tell(check: Check) -> str:
        wanted = (*check.plan.needs, *check.plan.reads, *check.plan.uses)
        others = [sources[id_] for id_ in wanted if id_ in sources]
        quick = check.plan.level is Level.QUICK and all(_has_level(other, Level.QUICK) for other in others)
        return "quick" if quick else "slow"

    told, is_sound = catalog.told_of(source, tell)
    return not is_sound or told == "quick"


def _supervise(
    options: argparse.Namespace, request: Request, sinks: Sinks, *, needs_torch: bool, alone: bool
) -> NoReturn:
    from preflight.engine import supervisor

    starts_driver = alone and os.path.exists("/proc/driver/nvidia")
    default = DEADLINES_S[request.selection.level] + DRIVER_S * starts_driver
    task = supervisor.RunOptions(
        request=request,
        command=[word.replace(options.post, delivering.shown(options.post)) for word in options.words]
        if options.post
        else options.words,
        deadline_s=options.deadline or default,
        strict=options.strict,
        output=Output(options.json, options.report, options.facts),
        needs_torch=needs_torch,
        sinks=sinks,
    )
    supervisor.run(task)


def _rendezvous(options: argparse.Namespace) -> int:
    from preflight.rendezvous import arguments, command

    command.run(arguments.request(options))


def _checkpoint(options: argparse.Namespace) -> int:
    from preflight.checkpoint import arguments, command

    return command.run(arguments.request(options))


def _explain(options: argparse.Namespace) -> int:
    from preflight.explain import command

    return command.run(options)


def _debug(options: argparse.Namespace) -> int:
    from preflight.debug import arguments, command

    return command.run(arguments.request(options))


def _diff(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_diff(options, registry.sources(options.plugin))


def _history(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_history(options)


def _profile(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_profile(options, registry.sources())


def _completion(options: argparse.Namespace) -> int:
    from preflight.cli import completion

    print(completion.script(options.shell))
    return 0


def _gate(options: argparse.Namespace) -> int:
    from preflight.cluster import arguments, gate

    return gate.run(arguments.gate_request(options))


def _hook(options: argparse.Namespace) -> int:
    from preflight.cluster import hook

    return hook.run(options.name)


def _nodes(options: argparse.Namespace) -> int:
    from preflight.cluster import nodes

    return nodes.run(options)


def _pick(options: argparse.Namespace) -> int:
    from preflight.cluster import arguments, pick

    return pick.run(arguments.pick_request(options))


def _show(options: argparse.Namespace) -> int:
    shown, path = report.load(options.report)
    with report.whole(path):
        return _show_report(options, shown, path)


def _show_report(options: argparse.Namespace, shown: report.Report, path: str) -> int:
    from preflight.core.facts import FactsStore
    from preflight.results import progress, rejudge

    policy, sources = _configured(options)
    texts = settings(options.set, sources)
    if options.judge:
        book = report.facts_beside(path)
        for name in rejudge.withheld(shown, texts):
            why = "is a secret, which no report holds: its default is used"
            sys.stderr.write(f"preflight: {name} {why}; give it with --set {name}=VALUE\n")
        shown = rejudge.judge_again(shown, book, sources, texts, policy)
    elif texts or policy:
        raise UsageError("--set and --config change nothing without --judge")
    if options.json:
        output = Output(options.json)
        failed = output.print_json(shown, FactsStore())
        failed = failed or output.write(shown, FactsStore(), "report.json")["failed"]
        if failed:
            raise UsageError(f"--json {options.json}: {failed}")
    if options.html:
        _write_page(options.html, shown)
    lines = [*(console.check_line(check) for check in shown["checks"]), *console.ending(shown, [])]
    if "explained" in shown:
        from preflight.explain import console as explained

        lines = explained.lines(shown)
    elif "checkpoint" in shown:
        from preflight.checkpoint import console as of_checkpoint

        lines = of_checkpoint.lines(shown)
    progress.show(lines, sys.stderr if options.json == "-" else sys.stdout)
    return int(shown["exit_code"])


def _write_page(path: str, shown: report.Report) -> None:
    from preflight.results.page import whole

    report.write_asked("--html", path, whole.html(shown))
