"""Counters and ports that change between two looks at a tree of /sys."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Outcome
from preflight.checks.net import rdma_errors
from preflight.checks.net.shared import hca_counters
from tests import running
from tests.checks.net.made_hcas import (
    Card,
    cards,
    is_as_told,
    is_told,
    needs_mounts,
    read,
    read_again,
    roce,
    run_with,
    told,
    write,
)

PORT = "sys/class/infiniband/mlx5_1/ports/1"
BEFORE = {
    "symbol_error": 7, "link_downed": 3, "local_ack_timeout_err": 3, "port_rcv_errors": 0, "packet_seq_err": 0,
    "link_error_recovery": 0, "local_link_integrity_errors": 0, "excessive_buffer_overrun_errors": 0,
}  # fmt: skip
RUN_S = 30.0


def change(root: Path, changes: Mapping[str, str]) -> None:
    """Files of the second card's port."""
    for name, text in changes.items():
        folder = "" if name == "state" else "hw_counters/" if name.endswith("_err") else "counters/"
        assert (root / PORT / folder / name).exists()
        (root / PORT / folder / name).write_text(f"{text}\n")


def judged(
    root: Path, changes: Mapping[str, str], *, made_: list[Card] | None = None,
    environ: Mapping[str, str] | None = None, backend: str = "nccl", run_s: float = RUN_S, nodes: int = 2,
) -> list[dict[str, Any]]:  # fmt: skip
    """Of the second of some nodes, whose second card changes."""
    write(root, made_ or cards(3, {1: {"counters": BEFORE}}))
    before, sound = read(root, **(environ or {})), read_again(root)
    change(root, changes)
    after = {rank: {**(read_again(root) if rank == nodes - 1 else sound), "run_s": run_s} for rank in range(nodes)}
    return testing.judge(
        rdma_errors, after, nodes={f"node-{rank}": [rank] for rank in after}, backend=backend,
        reads={"net.rdma": dict.fromkeys(after, before)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"link_downed": "4"}, ["warn link node-1 mlx5_1"]),
        ({"link_downed": "2"}, []),
        ({"link_error_recovery": "1"}, ["warn link node-1 mlx5_1"]),
        ({"local_link_integrity_errors": "1"}, ["warn link node-1 mlx5_1"]),
        ({"excessive_buffer_overrun_errors": "1"}, ["warn link node-1 mlx5_1"]),
        ({"symbol_error": "31"}, []),
        ({"symbol_error": "32"}, ["warn link node-1 mlx5_1"]),
        ({"port_rcv_errors": "25"}, ["warn link node-1 mlx5_1"]),
        ({"symbol_error": "0", "link_downed": "0"}, []),
        ({"link_downed": "N/A"}, []),
        ({"local_ack_timeout_err": "9"}, ["info retransmits node-1 mlx5_1"]),
        ({"packet_seq_err": "9", "link_downed": "4"}, ["warn link node-1 mlx5_1", "info retransmits node-1 mlx5_1"]),
        ({"state": "1: DOWN"}, ["fail went_down node-1 mlx5_1"]),
        ({"state": "2: INIT"}, ["fail went_down node-1 mlx5_1"]),
        ({"state": ""}, []),
    ],
    ids=str,
)
def test_what_changed_in_the_run(changes: Mapping[str, str], found: list[str], tmp_path: Path) -> None:
    assert told(judged(tmp_path, changes)) == found


def test_a_long_run_may_have_more_wrong_bits(tmp_path: Path) -> None:
    assert told(judged(tmp_path / "long", {"symbol_error": "100"}, run_s=600)) == []
    assert told(judged(tmp_path / "short", {"symbol_error": "100"}, run_s=100)) == ["warn link node-1 mlx5_1"]


def test_a_device_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "one", cards(2))
    write(tmp_path / "two", cards(1))
    write(tmp_path / "three", [])
    before, after = read(tmp_path / "one"), [read_again(tmp_path / name) for name in ("one", "two", "three")]
    facts = dict(enumerate(after))
    found = testing.judge(
        rdma_errors, facts, nodes={f"node-{rank}": [rank] for rank in facts}, backend="nccl",
        reads={"net.rdma": dict.fromkeys(facts, before)},
    )  # fmt: skip
    assert told(found) == ["fail went_down node-1 mlx5_1", "fail went_down node-2"]
    is_as_told("rdma_vanished", found[:1])


def test_a_device_stops_answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_errors, "PATIENCE_S", 0.5)
    root = write(tmp_path, cards(2))
    before, sound = read(root), read_again(root)
    state = root / PORT / "state"
    state.unlink()
    os.mkfifo(state)
    facts = {0: sound, 1: read_again(root)}
    state.write_text("4: ACTIVE\n")  # the thread ends
    found = testing.judge(
        rdma_errors, facts, nodes={"node-0": [0], "node-1": [1]}, backend="nccl",
        reads={"net.rdma": dict.fromkeys(facts, before)},
    )  # fmt: skip
    assert told(found) == ["fail went_down node-1 mlx5_1"]
    assert found[0]["message"].startswith("mlx5_1 is silent (no answer within ")


WORSE = {"link_downed": "4", "state": "1: DOWN"}


def test_what_nccl_does_not_use_is_worth_knowing(tmp_path: Path) -> None:
    on_gloo = judged(tmp_path / "gloo", WORSE, backend="gloo")
    left_out = judged(tmp_path / "left_out", WORSE, environ={"NCCL_IB_HCA": "^mlx5_1"})
    was_down = judged(tmp_path / "was_down", {}, made_=cards(2, {1: {"state": "1: DOWN"}}))
    assert told(on_gloo) == told(left_out) == ["info went_down node-1 mlx5_1", "info link node-1 mlx5_1"]
    assert was_down == []
    own = {"NCCL_IB_HCA": "^mlx5_1"}
    assert judged(tmp_path / "resent", {"local_ack_timeout_err": "9"}, environ=own) == []


def test_on_one_node_and_on_other_makes_it_is_milder(tmp_path: Path) -> None:
    alone = judged(tmp_path / "alone", WORSE, nodes=1)
    other = judged(tmp_path / "other", WORSE, made_=roce(2, {1: {"counters": BEFORE}}, vendor="0x14e4"))
    assert [finding["severity"] for finding in alone] == ["warn", "warn"]
    assert told(other) == ["warn went_down node-1 mlx5_1", "info link node-1 mlx5_1"]


def test_a_full_counter_is_told(tmp_path: Path) -> None:
    full = judged(tmp_path, {}, made_=cards(2, {1: {"counters": {"symbol_error": 65535}}}))
    assert (
        told(full) == ["info counter_saturated mlx5_1"] and "symbol_error (65,535) on both nodes" in full[0]["message"]
    )
    reset = "There: perfquery -x -C mlx5_1 -P 1; reset its counters: perfquery -R -C mlx5_1 -P 1"
    assert full[0]["fix"] == reset
    (on_ethernet,) = judged(tmp_path / "roce", {}, made_=roce(2, {1: {"counters": {"symbol_error": 65535}}}))
    assert "perfquery" not in on_ethernet["fix"] and "mlxfwreset -d mlx5_1" in on_ethernet["fix"]


def test_a_link_that_went_down_so_often_that_no_more_is_seen(tmp_path: Path) -> None:
    """It may have gone down in this run, too: the counter stays."""
    often = {1: {"counters": {"link_downed": 255, "link_error_recovery": 255}}}
    (finding,) = judged(tmp_path / "mlx5", {}, made_=cards(2, often))
    assert (
        told([finding]) == ["warn counter_saturated mlx5_1"]
        and "s link_downed (255) and link_error_recovery (255) on" in finding["message"]
    )
    other = judged(tmp_path / "other", {}, made_=cards(2, often, vendor="0x14e4"))
    assert told(other) == ["info counter_saturated mlx5_1"]


def test_a_counter_that_rises_to_its_end_is_told_once(tmp_path: Path) -> None:
    assert told(judged(tmp_path / "broken", {"link_downed": "255"})) == ["warn link node-1 mlx5_1"]
    both = judged(tmp_path / "both", {"link_downed": "255", "local_link_integrity_errors": "15", "symbol_error": "32"})
    assert told(both) == ["warn link node-1 mlx5_1"]
    few = judged(tmp_path / "few", {"symbol_error": "65535"}, run_s=1e9)
    assert told(few) == ["info counter_saturated node-1 mlx5_1"]


def test_who_sends_again_is_named_only_alone(tmp_path: Path) -> None:
    root = write(tmp_path, cards(3, {1: {"counters": BEFORE}}))
    before = read(root)
    change(root, {"local_ack_timeout_err": "80"})
    facts = {rank: read_again(root) for rank in range(5)}
    (finding,) = testing.judge(
        rdma_errors, facts, nodes={f"node-{rank}": [rank] for rank in facts}, backend="nccl",
        reads={"net.rdma": dict.fromkeys(facts, before)},
    )  # fmt: skip
    assert told([finding]) == ["info retransmits"] and "rdma statistic show link mlx5_1/1," in finding["fix"]
    words = "5 of 15 ports resent packets during the run (mlx5_1 of node-0: local_ack_timeout_err 3 to 80; mlx5"
    assert finding["message"].startswith(words)


def test_a_node_of_which_nothing_was_read_at_the_start_or_the_end(tmp_path: Path) -> None:
    root = write(tmp_path, cards(2))
    facts, before = {0: read_again(root), 1: read_again(root)}, {0: read(root)}
    outcomes = {rank: Outcome("measured") for rank in facts}
    assert testing.judge(rdma_errors, facts, backend="nccl", reads={"net.rdma": before}, outcomes=outcomes) == []
    both = {0: before[0], 1: before[0]}
    assert testing.judge(rdma_errors, {0: facts[0]}, backend="nccl", reads={"net.rdma": both}) == []


def test_every_counter_that_stops_is_one_that_is_kept() -> None:
    assert set(hca_counters.FULL) == {*hca_counters.BROKEN, *hca_counters.WRONG_BITS}


@needs_mounts
def test_a_link_gets_worse_in_a_real_run(tmp_path: Path) -> None:
    """And what else there is to tell of counters: one that has stopped long ago, and packets that are sent again."""
    node = cards(3, {0: {"counters": BEFORE}, 1: {"counters": BEFORE}}, verbs="unknown")
    fourth = cards(4, verbs="unknown")[3]
    often = replace(fourth, counters={"link_downed": 255})
    folder = "/sys/class/infiniband"
    worse = (
        f"{folder}/mlx5_1/ports/1/counters/symbol_error=5000007\n{folder}/mlx5_1/ports/1/counters/link_downed=4\n"
        f"{folder}/mlx5_2/ports/1/state=1: DOWN\n{folder}/mlx5_0/ports/1/hw_counters/local_ack_timeout_err=9"
    )
    only = ("--only", "net.rdma_errors,plugin.worse_link", "--plugin", str(running.PLUGINS / "worse_link.py"))
    finished = run_with(tmp_path, only, [*node, fourth], [*node, often], environ={"TEST_WORSE": worse})
    is_told("rdma_errors rdma_resent rdma_full", finished)
    assert finished.check("net.rdma")["status"] == "pass", finished.told()
