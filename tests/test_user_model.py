"""A check that must be given something, and a user's code in it, on real ranks."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import running

PLUGIN = ("--plugin", str(running.PLUGINS / "own_model.py"))
MODEL = """import os, torch
def build():
    print("built")
    return forward
def forward(rank):
    if rank == int(os.environ.get("TEST_LEAVES", "-1")):
        os._exit(7)
    torch.distributed.all_reduce(torch.ones(1))
    assert rank != int(os.environ.get("TEST_WRONG", "-1")), "hidden size 65 is no multiple of 4 heads"
"""


def given(folder: Path) -> list[str]:
    (folder / "model.py").write_text(MODEL)
    return [*PLUGIN, "--set", "plugin.own_model.model=model.py:build"]


@pytest.mark.more
def test_an_error_in_it_has_its_line_and_the_level_is_rank_0s(tmp_path: Path) -> None:
    """Rank 0 runs standard, rank 1 was told `--all`: the check is of level full, but it was given what it asks for."""
    ranks = running.plain_ranks(2, None, TEST_WRONG="1")
    words = [*given(tmp_path), "--skip", "env,node,net,comm,gpu,train,data", "--deadline", "60"]
    told = ["--json", "-", "--facts"]
    other = subprocess.Popen(running.preflight("--all", *words), env=ranks[1], cwd=tmp_path, stdout=subprocess.DEVNULL)
    done = running.run_to_end(running.preflight(*words, *told), ranks[0], tmp_path)
    assert other.wait(running.HUNG_S) == done.returncode == 1, done
    (check,) = json.loads(done.stdout)["checks"]
    (finding,) = check["findings"]
    assert finding["message"] == (
        "model.py:9 in forward(): AssertionError: hidden size 65 is no multiple of 4 heads"
    ), done
    assert {"rank": 1, "file": "model.py", "line": 9}.items() <= finding["where"].items()
    assert {group["facts"]["level"] for group in check["facts"]} == {"standard"}


def test_what_another_ranks_death_raises_in_it_is_no_fault_of_it(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for rank, env in enumerate(running.plain_ranks(2, None, TEST_LEAVES="1")):
        words = ["--only", "plugin.own_model", *given(tmp_path), "--deadline", "60", "--report", str(tmp_path)]
        run.start_rank(rank, words, env)
    finished = run.finish()
    (finding,) = finished.findings()
    assert (finding["code"], finding["where"]["rank"]) == ("plugin.own_model.crashed", 1), finished.told()
    assert finding["noticed_by"] == "0", finished.told()


def test_asked_for_by_its_id_it_says_what_to_give(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(1), *PLUGIN, "--only", "env.launch,plugin.own_model")
    told = "give --set plugin.own_model.model=VALUE"
    assert finished.check("plugin.own_model")["skipped"] == told, finished.told()
