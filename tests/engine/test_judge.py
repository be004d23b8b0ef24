"""Built-in checks are judged by one process, one after the other, and by a new one after any trouble."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, os, signal, sys, time
from preflight.check import After, Group, Job, Level, Node, Outcome, Plan, Scope
from preflight.core.answer import Returned
from preflight.core.facts import FactsStore
from preflight.engine.event_loop import EventLoop
from preflight.engine.judge import JudgeProcess
from preflight.planning.registry import Source, Spec
from preflight.results import judging

judged = []

def judge(source, job, outcomes, book, settings, groups):
    deed, _, when = settings.get(source.id, "").partition(" ")
    if deed and (when != "later" or judged):
        {"die": lambda: os.kill(os.getpid(), signal.SIGSEGV), "hang": lambda: time.sleep(60.0),
         "raise": lambda: None}[deed]()
        return {"error": "KeyError: 'free'", "stack": ""}
    judged.append(source.id)
    return {"pid": os.getpid(), "judged": [*judged], "facts": book.of(source.id), "read": book.of("a.read"),
            "kinds": [its.kind for its in outcomes.values()], "groups": [[g.name, *g.nodes] for g in groups]}

judging.call_judge, judging.deadline_s = judge, lambda ranks: 5.0
ranks, deeds, checks = json.loads(sys.argv[1])
loop, book = EventLoop(100.0), FactsStore()
judge_process = JudgeProcess(loop, Job("env", ranks, "gloo", (Node("n", 0, (*range(ranks),)),)), book, deeds)
told = []
for check in checks:
    for rank in range(ranks):
        book.add(check, [rank], json.dumps({"of": check, "rank": rank}))
    source = Source(check, "file" if check.startswith("plugin") else "builtin", "there")
    spec = Spec(source, "", Plan(Scope.RANK, Level.QUICK, after={"a.read": After.READS}))
    outcomes = {rank: Outcome("measured", 1.0) for rank in range(ranks)}
    answer = judge_process.ask(spec, outcomes, [Group("rack 7", ("n",))])
    told.append(answer.value if isinstance(answer, Returned) else {"failure": str(answer.kind)})
loop.end_children()
print(json.dumps(told))
"""


def judged(*checks: str, ranks: int = 2, **deeds: str) -> list[dict[str, Any]]:
    """What is told of each check. `deeds` by the name after "env.": what its judge() does, "later": only in a process
    that has judged before."""
    order = json.dumps([ranks, {f"env.{name}": deed for name, deed in deeds.items()}, checks])
    done = subprocess.run([sys.executable, "-c", SCRIPT, order], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


def test_the_process_stays_and_gets_what_has_come_since() -> None:
    first, read, last = judged("env.first", "a.read", "env.last")
    assert first["pid"] == read["pid"] == last["pid"] and last["judged"] == ["env.first", "a.read", "env.last"]
    assert first["read"] == {} and last["read"]["1"] == {"of": "a.read", "rank": 1}
    assert last["facts"] == {str(rank): {"of": "env.last", "rank": rank} for rank in range(2)}
    assert last["kinds"] == ["measured"] * 2 and last["groups"] == [["rack 7", "n"]]


def test_in_a_large_world_each_check_gets_a_fork() -> None:
    first, last = judged("env.first", "env.last", ranks=65)
    assert first["pid"] != last["pid"] and last["judged"] == ["env.last"] and len(last["facts"]) == 65


def test_a_plugin_is_judged_apart() -> None:
    first, plugin, last = judged("env.first", "plugin.mine", "env.last")
    assert first["pid"] == last["pid"] != plugin["pid"] and last["judged"] == ["env.first", "env.last"]


@pytest.mark.parametrize("deed", ["die", "raise", "hang"])
def test_what_an_earlier_judge_may_have_left_harms_no_check(deed: str) -> None:
    first, second, third = judged("env.first", "env.second", "env.third", second=f"{deed} later")
    assert second["judged"] == ["env.second"] and second["pid"] != first["pid"]
    assert third["pid"] == second["pid"]


@pytest.mark.parametrize(("deed", "told"), [("die", {"failure": "crashed"}), ("raise", {"error": "KeyError: 'free'"})])
def test_a_broken_judge_is_told_and_the_next_check_gets_a_new_process(deed: str, told: dict[str, str]) -> None:
    first, broken, last = judged("env.first", "env.broken", "env.last", broken=deed)
    assert told.items() <= broken.items()
    assert last["judged"] == ["env.last"] and last["pid"] != first["pid"]
