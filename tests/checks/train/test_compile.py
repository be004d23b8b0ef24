"""train.compile: what it says of compilers that do nothing, and what it leaves of the environment."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from preflight.checks.train import compile as check
from preflight.testing import judge
from preflight.train_smoke.strategies import compile as compiled
from tests import running
from tests.checks.train.made_trainings import sound
from tests.faults.row import briefly_alone, sick

OFF = "TORCHDYNAMO_DISABLE=1"


def facts(graphs: Mapping[int, Mapping[str, int]], off: Mapping[int, str] = {}) -> dict[int, Any]:
    """Of ranks that train rightly."""
    return {
        rank: {**own, "backend": "aot_eager", "graphs": dict(graphs[rank]), "off": [off[rank]] if rank in off else []}
        for rank, own in sound(len(graphs), "ddp", "fsdp2").items()
    }


BOTH = {"ddp": 4, "fsdp2": 1}
NONE = {"ddp": 0, "fsdp2": 0}


def test_nothing_is_said_where_all_have_compiled() -> None:
    made = facts(dict.fromkeys(range(3), BOTH))
    assert judge(check, made) == []
    assert check.summarize(made, None).endswith("; 5 graphs by aot_eager")  # type: ignore[arg-type]


def test_a_rank_that_has_compiled_nothing_is_named() -> None:
    (found,) = judge(check, facts({0: BOTH, 1: NONE, 2: BOTH}, {1: OFF}))
    assert (found["code"], found["severity"], found["where"]["rank"]) == ("train.compile.not_compiled", "warn", 1)
    assert "no graph of ddp and fsdp2, expected at least one: TORCHDYNAMO_DISABLE=1 is set" in found["message"]
    assert found["evidence"]["elsewhere"] == BOTH


def test_where_nobody_compiles_it_is_one_finding() -> None:
    (found,) = judge(check, facts({rank: {"ddp": 0, "fsdp2": 1} for rank in range(3)}))
    assert "rank" not in found["where"] and found["message"].endswith("of ddp, expected at least one (on all 3 ranks)")


def test_an_unknown_backend_is_refused_in_one_sentence() -> None:
    assert check.BACKEND.type("inductor") == "inductor"
    with pytest.raises(ValueError, match="'triton' is not a known backend; known are aot_eager, inductor"):
        check.BACKEND.type("triton")


def test_a_cpu_is_not_asked_for_generated_code() -> None:
    assert compiled.usual_backend(torch.device("cpu")) == "aot_eager"


@pytest.mark.parametrize("before", [{}, {"TORCHINDUCTOR_CACHE_DIR": "/of/the/user"}])
@pytest.mark.parametrize("fails", [False, True])
def test_the_users_environment_is_as_it_was(
    before: dict[str, str], fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in compiled.CACHES:
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    environ, folder = dict(os.environ), tempfile.gettempdir()
    try:
        with compiled.at_work("aot_eager", str(tmp_path)):
            caches = os.environ["TORCHINDUCTOR_CACHE_DIR"]
            assert Path(caches).parent == tmp_path and tempfile.gettempdir() == caches
            Path(caches, "generated.py").touch()
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert (dict(os.environ), tempfile.gettempdir(), [*tmp_path.iterdir()]) == (environ, folder, [])


def test_why_it_cannot_run_is_told_in_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.why_not() == ""

    def too_new(*_: Any, **_more: Any) -> None:
        raise RuntimeError("Python 3.15+ not yet supported\nsee more")

    monkeypatch.setattr(torch, "compile", too_new)
    assert compiled.why_not() == "Python 3.15+ not yet supported"


# Real ranks


def _run(folder: Path, world: int, *words: str, limit_s: float = 60, environ: Mapping[str, str]) -> running.Finished:
    ranks = [briefly_alone({**env, **environ}) for env in running.plain_ranks(world)]
    return running.run_ranks(folder, ranks, "--only", "train.compile", *words, deadline_s=limit_s)


def test_where_one_rank_cannot_compile_all_skip_and_say_why(tmp_path: Path) -> None:
    finished = _run(tmp_path, 2, environ=sick("cannot_compile@1"))
    outcomes = finished.check("train.compile")["outcomes"]
    assert finished.report["verdict"] == "pass" and len(outcomes) == 2, finished.told()
    here, there = (outcome["reason"] for outcome in outcomes)
    assert here.startswith("torch.compile can run here (torch 2.") and here.endswith("but not on 1 other rank")
    assert there.startswith("torch.compile cannot run: Python 3.15+ not yet supported for torch.compile (torch 2.")


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.more), pytest.param(4, marks=pytest.mark.more)])
def test_sound_ranks_are_sound_compiled_and_leave_nothing(world: int, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("TMPDIR", "HOME")}
    for folder in folders.values():
        Path(folder).mkdir()
    finished = _run(tmp_path, world, environ=folders)
    assert finished.findings() == [] and finished.left_over == [], finished.told()
    says = finished.check("train.compile")["summary"]
    assert says.startswith(f"ddp, fsdp2 on {world} ranks: ") and says.endswith("; 5 graphs by aot_eager"), says
    assert [path for folder in folders.values() for path in Path(folder).rglob("*")] == []


@pytest.mark.more
def test_inductor_generates_sound_code_and_leaves_nothing(tmp_path: Path) -> None:
    """For a CPU, by a C++ compiler, which takes a minute: what is generated for GPUs no test here can run."""
    folders = {name: str(tmp_path / name) for name in ("TMPDIR", "HOME")}
    for folder in folders.values():
        Path(folder).mkdir()
    finished = _run(tmp_path, 1, "--set", "train.compile.backend=inductor", limit_s=400, environ=folders)
    assert finished.findings() == [] and finished.left_over == [], finished.told()
    assert finished.check("train.compile")["summary"].endswith("; 5 graphs by inductor"), finished.told()
    assert [path for folder in folders.values() for path in Path(folder).rglob("*")] == []
