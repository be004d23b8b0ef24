"""`torchrun ... -m preflight.train_smoke --strategy NAME`: the checks of strategies, with all or some variants.

It is `preflight run` with different options, so it ends like that: never later than its deadline, naming the culprit.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

from preflight.cli import main as preflight_command
from preflight.cli.arguments import Parser
from preflight.errors import UsageError, near_misses
from preflight.train_smoke.trainer.names import ON_REQUEST, STRATEGIES
from preflight.train_smoke.user import names as user_names

ALL_LEVELS = ("--level", "--all")
NOT_HERE = ("--only", "--skip")


def translated(arguments: list[str], variants: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The arguments of `preflight` for these of `preflight.train_smoke`. `variants`: by strategy and name, in words.

    Raises UsageError; SystemExit after `--list` and `--help`.
    """
    parser = _parser()
    options, more = parser.parse_known_args(arguments)
    if options.list:
        _print(variants)
        parser.exit()
    given = [word.partition("=")[0] for word in more]
    for word in NOT_HERE:
        if word in given:
            parser.error(f"{word}: --strategy says what is run here; preflight run has {word}")
    level = [] if set(ALL_LEVELS) & set(given) else ["--all"]
    if options.model:
        return ["run", *level, *_with_model(options.model, options.strategy), *more]
    return ["run", *level, *_chosen(options.strategy, variants), *more]


def main() -> NoReturn:
    preflight_command.main(sys.argv[1:], lambda arguments: translated(arguments, STRATEGIES))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="preflight.train_smoke",
        description="Does each strategy train like one process? All other options are those of preflight run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--strategy", metavar="NAME", help="strategies or variants, comma-separated: tp,fsdp2/offload (all)"
    )
    parser.add_argument("--list", action="store_true", help="list the strategies and their variants")
    parser.add_argument(
        "--model", metavar="MODULE:NAME", help="your own model instead of a small transformer (also with tp, pp)"
    )
    return parser


def _print(variants: Mapping[str, Mapping[str, str]]) -> None:
    for strategy, its in variants.items():
        for variant, words in its.items():
            print(f"{f'{strategy}/{variant}':<24} {words}")


def _chosen(names: str | None, variants: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The checks of these strategies, and their variants if some are named. Raises UsageError."""
    if names is None:
        return ["--only", ",".join(f"train.{strategy}" for strategy in variants), *_all_of(variants)]
    chosen: dict[str, list[str]] = {}
    for name in _words(names):
        strategy, slash, variant = name.partition("/")
        if strategy not in variants or (slash and variant not in variants[strategy]):
            raise UsageError(f"--strategy {names}: {name!r} is not a strategy{_meant(name, variants)}")
        chosen.setdefault(strategy, []).extend([variant] if slash else variants[strategy])
    settings: list[str] = []
    for strategy, its in chosen.items():
        if set(its) != set(variants[strategy]):
            settings += ["--set", f"train.{strategy}.variants={','.join(dict.fromkeys(its))}"]
        else:
            settings += _all_of([strategy])
    return ["--only", ",".join(f"train.{strategy}" for strategy in chosen), *settings]


def _all_of(strategies: Iterable[str]) -> list[str]:
    """Options that add the variants which a check leaves out by default."""
    return [word for name in strategies if name in ON_REQUEST for word in ("--set", f"train.{name}.variants=all")]


def _words(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _meant(name: str, variants: Mapping[str, Mapping[str, str]]) -> str:
    """Near misses; else only the strategies, since their variants would be too many to read."""
    known = [f"{strategy}/{variant}" for strategy in variants for variant in variants[strategy]]
    near = near_misses(name.lower(), [*variants, *known])
    return near if name and near.startswith("; did you mean") else near_misses("", variants)


def _with_model(model: str, strategies: str | None) -> list[str]:
    """Raises UsageError."""
    if strategies is not None:
        _chosen(strategies, user_names.VARIANTS)
    some = ["--set", f"train.model.strategies={','.join(_words(strategies))}"] if strategies else []
    return ["--only", "train.model", "--model", model, *some]
