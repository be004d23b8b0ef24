"""What an H200 gave (torch 2.11, NCCL 2.28.9 and 2.32.3, driver 580, a virtual machine with one GPU; names, UUIDs and
serials are made up): two ranks as one node of NCCL 2.32, three hangs, and what sound and failed starts print."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from preflight.check import Job, Node, Outcome, Run
from preflight.checks.comm import init
from preflight.checks.comm.init.init_causes import VERSIONS
from preflight.core import facts
from preflight.core.facts import FactsStore
from preflight.core.rank_ranges import from_text
from preflight.nccl import ras_snapshot
from preflight.planning import registry
from preflight.results import judging
from tests import running

FIXTURES = Path(__file__).parent / "fixtures"
FACTS = json.loads((FIXTURES / "h200_two_ranks.json").read_text())
SHARED = "gpu.inventory.shared_gpu"
EXPECTED = {"gpu.nvlink": ["gpu.nvlink.inactive"], "gpu.inventory": [SHARED], "gpu.health": ["gpu.health.process"]}
"""An info; the fault that two ranks on one GPU are; the other items of the lease, which were at work beside it."""
NODES = (Node("node-a", 0, (0, 1), ("127.0.0.1",)),)


@pytest.mark.parametrize("check", FACTS)
def test_two_ranks_of_one_node_are_sound_but_for_the_gpu_that_they_share(check: str) -> None:
    store = FactsStore()
    for name, measured in FACTS.items():
        for ranks, values in measured:
            store.add(name, list(from_text(ranks)), facts.to_text(values))
    outcomes = {rank: Outcome("measured", 1.0) for rank in (0, 1)}
    job = Job("env", 2, "nccl", NODES)
    answer = judging.call_judge(registry.sources()[check], job, outcomes, store, {})
    assert "error" not in answer, answer
    assert [finding["code"] for finding in answer["findings"]] == EXPECTED.get(check, []), answer["findings"]


def explained(path: Path) -> dict[str, Any]:
    words = running.preflight("explain", str(path), "--json", "-")
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=running.HUNG_S)
    return dict(json.loads(said.stdout)["checks"][0])


@pytest.mark.parametrize("deed", ["skipping", "exited", "other_collective"])
def test_a_rank_that_has_left_a_job_that_waits_for_its_gpu_is_named(deed: str, tmp_path: Path) -> None:
    """On a GPU the others wait where they need the sum: their stacks show no collective, torch's recorder does."""
    folder = shutil.copytree(FIXTURES / "hangs" / deed, tmp_path / deed)
    (first, *_) = explained(folder)["findings"]
    assert (first["code"], first["where"].get("rank"), first["noticed_by"]) == ("explain.collective_mismatch", 1, "0,2")
    assert first["message"].startswith("rank 1 finished the script while others waited: ranks 0,2 inside all_reduce")


def test_a_rank_that_has_left_is_not_named_where_the_others_do_not_wait_for_it(tmp_path: Path) -> None:
    """They wait in a group of their own."""
    folder = shutil.copytree(FIXTURES / "hangs" / "skipping", tmp_path / "job")
    for path in (folder / "recorded").iterdir():
        dump = json.loads(path.read_text())
        for config in dump["pg_config"].values():
            config["ranks"] = "[0, 2]"
        for entry in dump["entries"]:
            entry["process_group"] = ["0", "pair"]
        path.write_text(json.dumps(dump))
    assert all(found["where"].get("rank") != 1 for found in explained(folder)["findings"])


def test_a_transport_that_nccl_only_looked_for_is_no_failure() -> None:
    assert explained(FIXTURES / "jobs" / "rma_probe.log")["findings"] == []


def test_versions_too_far_apart_to_understand_each_other_are_named() -> None:
    """2.28.9 says only "Message truncated", 2.32.3 nothing: each log begins with its own version."""
    logs = {rank: (FIXTURES / "jobs" / f"versions.rank-{rank}.nccl.log").read_text() for rank in (0, 1)}
    outcomes = {rank: Outcome("timed_out", 17.0, nccl_log=log) for rank, log in logs.items()}
    nodes = (Node("node-a", 0, (0,), ()), Node("node-b", 1, (1,), ()))
    (found,) = init.judge({}, Run(Job("env", 2, "nccl", nodes), (0, 1), outcomes))
    assert found.code is VERSIONS and found.where == {}
    assert found.message == "NCCL is '2.28.9' on rank 0, '2.32.3' on rank 1, expected one version"


def test_equal_versions_are_no_reason_for_a_failed_start() -> None:
    log = (FIXTURES / "jobs" / "versions.rank-0.nccl.log").read_text()
    outcomes = {rank: Outcome("timed_out", 17.0, nccl_log=log) for rank in (0, 1)}
    nodes = (Node("node-a", 0, (0,), ()), Node("node-b", 1, (1,), ()))
    assert list(init.judge({}, Run(Job("env", 2, "nccl", nodes), (0, 1), outcomes))) == []


def test_ras_of_2_32_is_read() -> None:
    snapshot = ras_snapshot.parse((FIXTURES / "nccl_2.32" / "ras_json.txt").read_text().rpartition("OK\n")[2])
    assert snapshot and snapshot["version"] == "2.32.3", snapshot
    assert snapshot["communicators"][0]["size"] == 2 and snapshot["communicators"][0]["counts"]["AllReduce"]


def test_two_cards_of_a_kind_gave_the_same_bits() -> None:
    """What a lone card may be judged by one day."""
    head, *rows = [
        line.split("\t")
        for line in (FIXTURES.parent / "digests.tsv").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert head[:2] == ["card", "driver"] and len(rows) == 14 and len({row[5] for row in rows}) == 14
    assert {row[7] for row in rows} == {"2"}
