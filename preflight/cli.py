"""The command line. Imports no torch: `list`, `describe` and `--level quick` never need it."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from preflight import __version__, console, plan, registry, report
from preflight.check import Level
from preflight.plan import LONGEST_S, SHORTEST_S, Request, Selection
from preflight.policy import Policy
from preflight.registry import Check, Source, UsageError
from preflight.rendezvous import arguments

COMMANDS = ("run", "rendezvous", "list", "describe", "show")
DEADLINES_S = {Level.QUICK: 60.0, Level.STANDARD: 120.0, Level.FULL: 900.0}
ALONE_QUICK_S, DRIVER_S = 5.0, 60.0
"""Without a launcher; and for the start of a GPU driver, which takes seconds a GPU without persistence mode."""
PLUGIN_S = 20.0
SHORT_FOR = {"code": "env.software.code"}
"""`--code DIR` is `--set env.software.code=DIR`."""


class _Parser(argparse.ArgumentParser):
    """One sentence and exit code 2, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: list[str]) -> NoReturn:
    """The command, to its exit."""
    try:
        _need_a_folder()
        code = _dispatch(arguments)
    except UsageError as error:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        if rank == "0" or not error.everywhere:
            sys.stderr.write(f"preflight: {'' if rank == '0' else f'rank {rank}: '}{error}\n")
        from preflight import ending

        ending.write_verdict(2, str(error))
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
        hint = registry.near_misses(arguments[0], COMMANDS)
        raise UsageError(f"{arguments[0]}: there is no such command{hint}")
    words = arguments if named or arguments[:1] in (["-h"], ["--help"], ["--version"]) else ["run", *arguments]
    options, unknown = parser().parse_known_args(words)
    if unknown:
        raise UsageError(
            f"{unknown[0]}: there is no such option{registry.near_misses(unknown[0], _flags(options.command))}"
        )
    commands = {"run": _run, "rendezvous": _rendezvous, "list": _list, "describe": _describe, "show": _show}
    return commands[options.command](options)


def parser() -> argparse.ArgumentParser:
    """The whole surface."""
    top = _Parser(
        prog="preflight",
        description="Tells before training starts whether this machine or cluster can run a distributed PyTorch job.",
        epilog="In a job's own launcher: torchrun [...] -m preflight --all. Without a command: run. "
        "Exit codes: 0 no failure, 1 a failure was found, 2 usage, 3 preflight could not finish its own work.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"preflight {__version__}")
    commands = top.add_subparsers(dest="command", parser_class=_Parser, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run the checks (the default)", allow_abbrev=False))
    meet = commands.add_parser("rendezvous", help="before torchrun: do the nodes meet?", allow_abbrev=False)
    arguments.add_to(meet, _seconds)
    listed = commands.add_parser("list", help="list the checks", allow_abbrev=False)
    described = commands.add_parser("describe", help="explain a check or a code", allow_abbrev=False)
    described.add_argument("what", metavar="CHECK_OR_CODE")
    shown = commands.add_parser("show", help="print a saved report again", allow_abbrev=False)
    shown.add_argument("report", metavar="REPORT", help="report.json, or the folder that --report wrote")
    shown.add_argument("--judge", action="store_true", help="judge its facts anew")
    shown.add_argument("--json", metavar="FILE", help="also write the report (- is stdout)")
    _add_settings(shown)
    for command in (listed, described, shown):
        _add_plugins(command)
    return top


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--level", choices=[str(level) for level in Level], help="how much to check (standard)")
    run.add_argument("--all", action="store_true", help="the same as --level full")
    run.add_argument(
        "--only",
        action="append",
        type=_named,
        default=[],
        metavar="ID_OR_FAMILY,..",
        help="these checks, and what they need",
    )
    run.add_argument(
        "--skip", action="append", type=_named, default=[], metavar="ID_OR_FAMILY,..", help="not these checks"
    )
    run.add_argument("--json", type=_named, metavar="FILE", help="write the report (- is stdout)")
    run.add_argument("--facts", action="store_true", help="with the facts in it")
    run.add_argument("--report", type=_named, metavar="DIR", help="write the report, its facts and all its readers")
    run.add_argument("--strict", action="store_true", help="warnings and skips are failures, too")
    run.add_argument(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="seconds for the whole run (quick 60, or alone 5 and 60 for a GPU driver; standard 120, full 900)",
    )
    run.add_argument("--backend", choices=["auto", "nccl", "gloo"], help="auto: nccl where torch can use a GPU")
    run.add_argument(
        "--code", type=_named, metavar="DIR", help="the training code, to be equal on all nodes (else its git commit)"
    )
    _add_settings(run)
    _add_plugins(run)


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=_named, metavar="FILE", help="settings and waivers, in TOML (docs/config.md)")
    command.add_argument("--set", action="append", default=[], metavar="ID.OPTION=VALUE", help="an option of a check")


def _add_plugins(command: argparse.ArgumentParser) -> None:
    command.add_argument("--plugin", action="append", default=[], metavar="MODULE_OR_FILE", help="a check of your own")


def _named(text: str) -> str:
    """An unset variable of a script must not take an option away in silence."""
    if not text.strip(" ,"):
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from {SHORTEST_S:.0f} to {LONGEST_S:.0f}")
    return seconds


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
            raise UsageError(
                f"--set {name}: there is no check {id_ or name}{registry.near_misses(id_ or name, sources)}"
            )
        found[name] = value
    for source in sources.values():
        if source.kind == "builtin" and any(name.rpartition(".")[0] == source.id for name in found):
            registry.unknown_settings(registry.load(source), found)
    return found


def _configured(options: argparse.Namespace) -> tuple[Policy | None, dict[str, Source]]:
    """(its policy, None without `--config`; all checks). What the file says becomes the default of the options."""
    if not options.config:
        return None, registry.sources(options.plugin)
    from preflight import config

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
    for name in ("level", "deadline", "report", "backend", "strict", "only", "skip"):
        if not getattr(options, name, True):
            setattr(options, name, getattr(said, name))
    return policy, sources


def _run(options: argparse.Namespace) -> int:
    from preflight import launch, local

    if options.all and options.level not in (None, "full"):
        raise UsageError(f"--all is --level full: not together with --level {options.level}")
    if options.facts and not options.json:
        raise UsageError("--facts puts the facts into the report of --json FILE, which is not given")
    policy, sources = _configured(options)
    options.set += [f"{name}={getattr(options, flag)}" for flag, name in SHORT_FOR.items() if getattr(options, flag)]
    level = Level.FULL if options.all else Level(options.level or "standard")
    only = _words(options.only)
    selection = Selection(level, only, _words(options.skip), ids=tuple(word for word in only if "." in word))
    for words, option in ((selection.only, "--only"), (selection.skip, "--skip")):
        plan.expand(words, sources, option)
    if options.level:
        selection = replace(selection, only=_of_level(selection.only, level, sources))
    texts = settings(options.set, sources)
    request = Request(selection, texts, sources, options.backend or "auto", policy or Policy())
    here = launch.from_environ(os.environ)
    quick = level is Level.QUICK and _is_quick(selection, sources)
    if here.launcher == "local" and not quick:
        refused = report_refusal(options)
        if refused:
            raise UsageError(refused)
        return local.launch(sys.argv[1:], options.deadline or DEADLINES_S[level])
    return _supervise(options, request, needs_torch=not quick, alone=here.launcher == "local")


def _of_level(only: tuple[str, ...], level: Level, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """With `--level` a family is what it has of that level; a check that is named by its id stays."""
    kept = {id_ for id_ in plan.expand(only, sources, "--only") if id_ in only or _has_level(sources[id_], level)}
    if only and not kept:
        raise UsageError(f"--only {','.join(only)}: has no check of --level {level}")
    return tuple(sorted(kept))


def _has_level(source: Source, level: Level) -> bool:
    return source.kind != "builtin" or level.includes(registry.load(source).plan.level)


def _is_quick(selection: Selection, sources: Mapping[str, Source]) -> bool:
    """Whether no torch is needed. Of a plugin that is not known before it is imported."""
    named = [sources[id_] for id_ in plan.expand(selection.only, sources, "--only")]
    return all(one.kind == "builtin" and _has_level(one, Level.QUICK) for one in named)


def report_refusal(options: argparse.Namespace) -> str:
    """Before ranks are started: why the report could not be written, or ""."""
    from preflight.writers import Output

    return Output(options.json, options.report).refusal(time.time())


def _supervise(options: argparse.Namespace, request: Request, *, needs_torch: bool, alone: bool) -> NoReturn:
    from preflight import supervisor
    from preflight.writers import Output

    alone_s = ALONE_QUICK_S + DRIVER_S * os.path.exists("/proc/driver/nvidia")
    default = alone_s if alone else DEADLINES_S[request.selection.level]
    task = supervisor.Task(
        request=request,
        command=sys.argv[1:],
        deadline_s=options.deadline or default,
        strict=options.strict,
        output=Output(options.json, options.report, options.facts),
        needs_torch=needs_torch,
    )
    supervisor.run(task)


def _rendezvous(options: argparse.Namespace) -> int:
    from preflight.rendezvous import command

    command.run(arguments.request(options))


def _list(options: argparse.Namespace) -> int:
    for source in registry.sources(options.plugin).values():
        print(_told(source, lambda check: f"{check.id:<22} {check.plan.level:<9} {check.plan.scope:<6} {check.title}"))
    return 0


def _describe(options: argparse.Namespace) -> int:
    from preflight import describe
    from preflight.result import RUN

    sources, what = registry.sources(options.plugin), registry.RENAMED.get(options.what, options.what)
    if what.startswith("preflight.rendezvous"):
        from preflight.rendezvous import codes

        print(codes.page(what))
        return 0
    if what.startswith(RUN):
        print(describe.run_page())
        return 0
    family = [id_ for id_ in sources if id_.partition(".")[0] == what]
    id_ = what if what in sources else what.rpartition(".")[0]
    if id_ not in sources and not family:
        hint = registry.near_misses(what, sources)
        raise UsageError(f"{what}: there is no such check or code{hint}")
    for one in family or [id_]:
        print(_told(sources[one], lambda check: describe.page(check, check.id if family else what)))
    return 0


def _told(source: Source, tell: Callable[[Check], str]) -> str:
    """What a check's module says of it. A plugin is imported in a child: it may hang."""
    if source.kind == "builtin":
        return tell(registry.load(source))
    from preflight.control import Control

    def work() -> dict[str, str]:
        try:
            return {"told": tell(registry.load(source))}
        except UsageError as error:
            return {"usage": str(error)}
        except Exception as error:
            return {"told": f"{source.id:<22} cannot be loaded: {type(error).__name__}: {error}"}

    answer, why = Control(PLUGIN_S).ask("plugin", work, PLUGIN_S)
    if answer is None:
        return f"{source.id:<22} cannot be loaded: its import {why.partition(chr(10))[0]}"
    if "usage" in answer:
        raise UsageError(answer["usage"])
    return str(answer["told"])


def _show(options: argparse.Namespace) -> int:
    shown, path = report.load(options.report)
    try:
        return _show_report(options, shown, path)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise UsageError(f"{path}: is no whole report ({type(error).__name__}: {error})") from None


def _show_report(options: argparse.Namespace, shown: report.Report, path: str) -> int:
    from preflight import offline, screen
    from preflight.facts import Book

    policy, sources = _configured(options)
    texts = settings(options.set, sources)
    if options.judge:
        book = _facts_beside(path)
        shown = offline.judge_again(shown, book, sources, texts, policy)
    elif texts or policy:
        raise UsageError("--set and --config change nothing without --judge")
    if options.json:
        from preflight.writers import Output

        output = Output(options.json)
        output.print_json(shown, Book())
        failed = output.write(shown, Book(), "report.json")["failed"]
        if failed:
            raise UsageError(f"--json {options.json}: {failed}")
    lines = [*(console.check_line(check) for check in shown["checks"]), *console.ending(shown, [])]
    screen.show(lines, sys.stderr if options.json == "-" else sys.stdout)
    if shown["exit_code"] not in (0, 1, 2, 3):
        raise ValueError(f"its exit code is {shown['exit_code']!r}")
    return int(shown["exit_code"])


def _facts_beside(path: str) -> Any:
    folder, name = os.path.split(path)
    candidates = ["facts.jsonl.gz", report.facts_path(name)]
    found = next((c for c in candidates if os.path.isfile(os.path.join(folder, c))), None)
    if found is None:
        raise UsageError(f"{path}: no facts lie beside it ({' or '.join(candidates)}), so it cannot be judged anew")
    return report.read_facts(os.path.join(folder, found))
