"""Seconds of CPU that judging the links of many nodes takes, by made-up facts: `python -m benchmarks.links`."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from preflight.check import Run
from preflight.checks.comm import nodes, pairs, rails
from tests.checks.comm.made_links import Slow, job, of_nodes, of_pairs, of_rails

WIDTH = 8
CASES: dict[str, Slow] = {
    "all sound": lambda *_: 1.0,
    "a slow node": lambda a, b, _: 0.5 if 77 in (a, b) else 1.0,
    "a half-speed pair": lambda a, b, _: 0.5 if {a, b} == {200, 201} else 1.0,
    "a slow rail": lambda _a, _b, rail: 0.5 if rail == 3 else 1.0,
    "a slow card": lambda a, b, rail: 0.5 if rail == 5 and 300 in (a, b) else 1.0,
    "a fifth of all": lambda a, b, rail: 0.2 if (a * 7 + b * 13 + rail) % 5 == 0 else 1.0,
}


def main() -> None:
    for size in (512, 1024):
        for name, slow in CASES.items():
            _time(rails, of_rails(size, WIDTH, slow, 0.04), size, name)
            _time(pairs, of_pairs(size, WIDTH, slow, 0.04), size, name)
        _time(nodes, of_nodes(size, WIDTH, noise=0.04), size, "all sound")


def _time(module: ModuleType, facts: dict[int, Any], size: int, name: str) -> None:
    run = Run(job(size, WIDTH), tuple(facts), {})
    judged_s, found = _took(lambda: list(module.judge(facts, run)))
    drawn_s, _ = _took(lambda: [module.summarize(facts, run), list(module.draw(facts, run))])
    check = module.__name__.rpartition(".")[2]
    print(f"{size:5} nodes  {check:6} {name:18} judge {judged_s:.2f} s  draw {drawn_s:.2f} s  {len(found)} findings")


def _took(what: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    start = time.process_time()
    done = what()
    return time.process_time() - start, done


if __name__ == "__main__":
    main()
