"""The command line. Imports no torch: `list`, `describe` and `--level quick` never need it."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from preflight import errors
from preflight.check import Level
from preflight.cli.arguments import COMMANDS, parser
from preflight.core.answer import Failure
from preflight.core.exceptions import in_one_line
from preflight.errors import UsageError
from preflight.planning import plan, registry
from preflight.planning.plan import CheckSelection, Request
from preflight.planning.policy import Policy
from preflight.planning.registry import SHORT_FOR, Check, Source
from preflight.results import console, report
from preflight.results.destinations import Output

DEADLINES_S = {Level.QUICK: 60.0, Level.STANDARD: 120.0, Level.FULL: 900.0}
ALONE_QUICK_S, DRIVER_S = 5.0, 60.0
"""Without a launcher; and for the start of a GPU driver, which takes seconds a GPU without persistence mode."""


def main(arguments: list[str], translate: Callable[[list[str]], list[str]] = list) -> NoReturn:
    """The command, to its exit. `translate` makes the arguments of `preflight` out of those of another command; its
    UsageError is said as one of this command."""
    try:
        _need_a_folder()
        code = _dispatch(translate(arguments))
    except UsageError as error:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        if rank == "0" or not error.everywhere:
            sys.stderr.write(f"preflight: {'' if rank == '0' else f'rank {rank}: '}{error}\n")
        from preflight.engine import shutdown

        shutdown.write_verdict(2, str(error))
        code = 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception:
        sys.stderr.write(f"preflight: a fault of preflight itself; please report it:\n{traceback.format_exc()}")
        code = 3
    sys.exit(code)


def _need_a_folder() -> None:
    """torch cannot be imported without one (its MKL ends the process)."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the current folder is gone: change into one that is there", everywhere=False) from None


def _dispatch(arguments: list[str]) -> int:
    named = bool(arguments) and arguments[0] in COMMANDS
    if arguments and not named and not arguments[0].startswith("-"):
        hint = errors.near_misses(arguments[0], COMMANDS)
        raise UsageError(f"{arguments[0]}: there is no such command{hint}")
    words = arguments if named or arguments[:1] in (["-h"], ["--help"], ["--version"]) else ["run", *arguments]
    options, unknown = parser().parse_known_args(words)
    if unknown:
        raise UsageError(_no_such_option(unknown[0], options.command))
    options.words = arguments
    commands = {
        "run": _run, "rendezvous": _rendezvous, "explain": _explain, "debug": _debug, "list": _list,
        "describe": _describe, "show": _show,
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
    earlier = baseline.read(options.baseline) if options.baseline and not here.rank else None
    request = Request(selection, texts, sources, options.backend or "auto", policy or Policy(), earlier)
    alone = here.launcher == "local"
    quick = level is Level.QUICK and _is_quick(selection, sources, asks_plugins=alone)
    if alone and not quick:
        refused = Output(options.json, options.report).refusal(time.time())
        if refused:
            raise UsageError(refused)
        return local_launch.launch(options.words, options.deadline or DEADLINES_S[level])
    has_plugins = any(sources[id_].kind != "builtin" for id_ in plan.expand(selection.only, sources, "--only"))
    return _supervise(options, request, needs_torch=not quick, alone=alone and not has_plugins)


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


def _is_quick(selection: CheckSelection, sources: Mapping[str, Source], *, asks_plugins: bool) -> bool:
    """Whether no torch is needed. `asks_plugins`: else a plugin that is named may need it."""
    named = [sources[id_] for id_ in plan.expand(selection.only, sources, "--only")]
    plugins = [source for source in named if source.kind != "builtin"]
    if not all(_has_level(source, Level.QUICK) for source in named):
        return False
    return not plugins or (asks_plugins and all(_is_quick_plugin(plugin, sources) for plugin in plugins))


def _is_quick_plugin(source: Source, sources: Mapping[str, Source]) -> bool:
    """Asked in a child. One that cannot be loaded needs no torch either."""

    def tell(check: Check) -> str:
        wanted = (*check.plan.needs, *check.plan.reads, *check.plan.uses)
        others = [sources[id_] for id_ in wanted if id_ in sources]
        quick = check.plan.level is Level.QUICK and all(_has_level(other, Level.QUICK) for other in others)
        return "quick" if quick else "slow"

    told, is_sound = _told(source, tell)
    return not is_sound or told == "quick"


def _supervise(options: argparse.Namespace, request: Request, *, needs_torch: bool, alone: bool) -> NoReturn:
    from preflight.engine import supervisor

    alone_s = ALONE_QUICK_S + DRIVER_S * os.path.exists("/proc/driver/nvidia")
    default = alone_s if alone else DEADLINES_S[request.selection.level]
    task = supervisor.RunOptions(
        request=request,
        command=options.words,
        deadline_s=options.deadline or default,
        strict=options.strict,
        output=Output(options.json, options.report, options.facts),
        needs_torch=needs_torch,
    )
    supervisor.run(task)


def _rendezvous(options: argparse.Namespace) -> int:
    from preflight.rendezvous import arguments, command

    command.run(arguments.request(options))


def _explain(options: argparse.Namespace) -> int:
    from preflight.explain import command

    return command.run(options)


def _debug(options: argparse.Namespace) -> int:
    from preflight.debug import arguments, command

    return command.run(arguments.request(options))


def _list(options: argparse.Namespace) -> int:
    for source in registry.sources(options.plugin).values():
        print(_told(source, _in_the_list)[0])
    return 0


def _in_the_list(check: Check) -> str:
    given = ", ".join(registry.how_to_set(f"{check.id}.{name}") for name in check.plan.given)
    return f"{check.id:<22} {check.plan.level:<9} {check.plan.scope:<6} {check.title}{given and f' [with {given}]'}"


def _describe(options: argparse.Namespace) -> int:
    from preflight.core.finding import OWN_SLUGS, RUN
    from preflight.planning import describe

    sources, what = registry.sources(options.plugin), registry.RENAMED.get(options.what, options.what)
    if what.startswith("preflight.rendezvous"):
        from preflight.rendezvous import codes

        print(codes.page(what))
        return 0
    if what.partition(".")[0] == "explain":
        from preflight.explain import pages

        print(pages.page(what))
        return 0
    if what.startswith(RUN) or what in OWN_SLUGS:
        print(describe.own_page(what) if what in OWN_SLUGS else describe.run_page())
        return 0
    family = [id_ for id_ in sources if id_.partition(".")[0] == what]
    id_ = what if what in sources else what.rpartition(".")[0]
    if id_ not in sources and not family:
        raise UsageError(f"{what}: there is no such check or code{registry.hint(what, sources)}")
    told = [_told(sources[id_], partial(_page, what, sources)) for id_ in family or [id_]]
    print("\n".join(text for text, _ in told))
    return 0 if all(is_sound for _, is_sound in told) else 1


def _page(what: str, sources: Mapping[str, Source], check: Check) -> str:
    """Of the check, or of its code. Raises BrokenCheck where it could not run among the others."""
    from preflight.engine.membership import STRANGERS
    from preflight.planning import describe, validation

    validation.refuse_unknown_ids(check.module, check.plan, {*sources, STRANGERS})
    return describe.page(check, check.id if what == check.id.partition(".")[0] else what)


def _told(source: Source, tell: Callable[[Check], str]) -> tuple[str, bool]:
    """(what a check's module says of it, True), or (why it cannot be loaded, False)."""
    if source.kind == "builtin":
        return tell(registry.load(source)), True
    from preflight.engine import event_loop, loading

    loop = event_loop.EventLoop(loading.PLUGIN_S)
    answer = loading.ask_plugin(loop, source, lambda check: {"text": tell(check)})
    if isinstance(answer, Failure):
        return f"{source.id:<22} cannot be loaded: {answer.text}", False
    return str(answer.value["text"]), True


def _show(options: argparse.Namespace) -> int:
    shown, path = report.load(options.report)
    try:
        return _show_report(options, shown, path)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise UsageError(f"{path}: is no whole report ({in_one_line(error)})") from None


def _show_report(options: argparse.Namespace, shown: report.Report, path: str) -> int:
    from preflight.core.facts import FactsStore
    from preflight.results import progress, rejudge

    policy, sources = _configured(options)
    texts = settings(options.set, sources)
    if options.judge:
        book = report.facts_beside(path)
        shown = rejudge.judge_again(shown, book, sources, texts, policy)
    elif texts or policy:
        raise UsageError("--set and --config change nothing without --judge")
    if options.json:
        output = Output(options.json)
        output.print_json(shown, FactsStore())
        failed = output.write(shown, FactsStore(), "report.json")["failed"]
        if failed:
            raise UsageError(f"--json {options.json}: {failed}")
    lines = [*(console.check_line(check) for check in shown["checks"]), *console.ending(shown, [])]
    if "explained" in shown:
        from preflight.explain import console as explained

        lines = explained.lines(shown)
    progress.show(lines, sys.stderr if options.json == "-" else sys.stdout)
    if shown["exit_code"] not in (0, 1, 2, 3):
        raise ValueError(f"its exit code is {shown['exit_code']!r}")
    return int(shown["exit_code"])
