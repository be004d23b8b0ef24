"""What the checks draw for report.html, from facts with a fault and without: the page draws it, and names who is odd.
(What real facts draw: tests/test_sound.py.)"""

import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from preflight.check import Job, Node, Run
from preflight.checks.comm import all_reduce, nodes, pairs, rails
from preflight.checks.comm.shared import expected
from preflight.checks.gpu import compute, health, nvlink, pcie, topology
from preflight.checks.train import alone, checkpoint, ddp
from preflight.checks.train.shared import parity
from preflight.results import fields, plot_fields
from preflight.results.page import plotted
from preflight.sdk import gpu_clocks
from tests.checks.comm import made_links, test_verdict
from tests.checks.gpu import made_gpus, made_topology, test_compute, test_health, test_nvlink, test_pcie
from tests.checks.train import test_alone, test_checkpoint, test_curves


def drawn(module: ModuleType, facts: Mapping[int, Any], job: Job, earlier: Any = (), **of: Any) -> list[dict[str, Any]]:
    """As the report holds them; each of them has been drawn. `earlier`: the baseline's figures; `of`: other facts."""
    run = Run(job, tuple(facts), {}, {}, lambda check: of.get(check, {}), earlier=tuple(earlier))
    made = [plot.to_json() for plot in module.plot(facts, run)]
    fields.items(json.loads(json.dumps(made)), "plots", plot_fields.plot)
    shown, _ = plotted.figures([(module.__name__, made)])
    assert [figure["title"] for figure in shown] == [plot["title"] for plot in made]
    return made


def test_bandwidth_has_the_band_of_all_ranks_and_the_baseline() -> None:
    facts = test_verdict.sound(4)
    facts[2]["sizes"][2]["seconds"] = 0.1
    job = Job("env", 4, "gloo", ())
    chart, latency = drawn(all_reduce, facts, job, all_reduce.record(test_verdict.sound(1)[0], job))
    lines = {series["name"]: series["points"] for series in chart["series"]}
    assert set(lines) == {
        "fp32, all ranks", "bf16, all ranks", "baseline fp32, median rank", "baseline bf16, median rank",
    }  # fmt: skip
    size, least, middle, most = lines["fp32, all ranks"][-1]
    assert least == pytest.approx(most / 10, rel=0.01) and middle == most
    assert [point for point in lines["baseline fp32, median rank"] if point[0] == size] == [[size, most]]
    assert latency["subjects"][3] == ["", "rank 3"] and latency["strips"][0]["odd"] == []


def test_a_rank_alone_has_no_bandwidth() -> None:
    assert [plot["kind"] for plot in drawn(all_reduce, test_verdict.sound(1), Job("env", 1, "gloo", ()))] == ["strips"]


def test_the_slow_node_is_outlined_with_each_partner_and_no_other() -> None:
    def slow(start: int, end: int, _rail: int) -> float:
        return 0.2 if 5 in (start, end) else 1.0

    job = made_links.job(8, 2)
    [heat] = drawn(pairs, made_links.of_pairs(8, 2, slow), job)
    assert heat["slow_cells"] == 14 and all("node-5" in cell[:2] for cell in heat["slow"])
    [sound] = drawn(pairs, made_links.of_pairs(8, 2), job)
    assert sound["slow"] == [] and sound["binned"] == 1


def test_a_rail_is_a_column() -> None:
    [heat] = drawn(
        rails, made_links.of_rails(4, 4, lambda _a, _b, rail: 0.2 if rail == 3 else 1.0), made_links.job(4, 4)
    )
    assert {cell[1] for cell in heat["slow"]} == {"local rank 3"} and heat["slow_cells"] == 4


def test_a_slow_gpu_stands_apart_on_its_strip_alone() -> None:
    facts = test_compute.sound(8)
    name = next(iter(facts[3]["speeds"]))
    facts[3]["speeds"][name] *= 0.5
    [strips] = drawn(compute, facts, Job("env", 8, "nccl", (Node("node-0", 0, tuple(range(8))),)))
    assert {strip["name"]: strip["odd"] for strip in strips["strips"] if strip["odd"]} == {name: [3]}


def test_one_drawing_for_each_kind_of_node() -> None:
    facts, links = made_topology.wired(8, 8)
    both = tuple(Node(name, n, tuple(its)) for n, (name, its) in enumerate(made_gpus.on_nodes(8, 8).items()))
    of = {"gpu.inventory": made_gpus.inventory(8, 8), "gpu.nvlink": links}
    table, wiring = drawn(topology, facts, Job("torchrun", 16, "nccl", both), **of)
    assert table["title"].startswith("node-0 and 1 other like it: ") and table["screen"] == "always"
    assert wiring["nodes"] == ["node-0", "node-1"] and len(wiring["devices"]) > 8 and wiring["odd"] == []
    made_topology.no_p2p(facts, links)
    kinds = drawn(topology, facts, Job("torchrun", 16, "nccl", both), **of)
    wirings = [kind for kind in kinds if kind["kind"] == "wiring"]
    assert [(kind["nodes"], len(kind["odd"])) for kind in wirings] == [(["node-0"], 0), (["node-1"], 1)]


def test_a_drifting_variant_leaves_the_spread() -> None:
    facts = test_curves.facts(2)
    facts[1]["variants"]["clip"]["curve"] = test_curves.curve(4.0 + 1 / 100, times=1.01)
    trainings, losses, off = drawn(ddp, facts, Job("env", 2, "gloo", ()))
    far = {series["name"]: max(point[1] for point in series["points"]) for series in off["series"]}
    assert far.pop("as far as is allowed") == 8.0
    assert far.pop("clip") > 8.0 and set(far.values()) == {0.0} and len(losses["series"]) == len(far) + 2
    assert trainings["rows"][0][0] == "plain" and parity.variants_in(facts)[0] == "plain"


def test_a_narrow_pcie_link_is_named_on_its_strip_alone() -> None:
    facts = test_pcie.facts_of(2, 4)
    of = {"gpu.inventory": made_gpus.inventory(1, 1, gpus=4)}
    two = tuple(Node(f"node-{n}", n, (n,)) for n in range(2))
    [sound] = drawn(pcie, facts, Job("torchrun", 2, "nccl", two), **of)
    assert [strip["odd"] for strip in sound["strips"]] == [[], [], []] and len(sound["subjects"]) == 8
    test_pcie.change(facts, 2, 1, width=4)
    [strips] = drawn(pcie, facts, Job("torchrun", 2, "nccl", two), **of)
    lanes = strips["strips"][0]
    assert strips["subjects"][6] == ["node-1", "gpu 2"] and (lanes["values"][6], lanes["odd"]) == (4, [6])
    assert [strip["odd"] for strip in strips["strips"][1:]] == [[], []]


def test_a_gpu_with_a_dead_nvlink_is_named_and_one_without_links_draws_nothing() -> None:
    links = [test_nvlink.switched() for _ in range(4)]
    job = Job("torchrun", 1, "nccl", (Node("node-0", 0, (0,)),))
    inventory = {0: made_gpus.rank_of(0, 0, 4)}
    for handle in inventory[0]["seen"]["gpus"].values():
        handle["name"] = test_nvlink.H100
    [sound] = drawn(nvlink, {0: test_nvlink.node(links)}, job, **{"gpu.inventory": inventory})
    assert [strip["odd"] for strip in sound["strips"]] == [[], [], []]
    links[3] = test_nvlink.down(links[3], 7)
    [strips] = drawn(nvlink, {0: test_nvlink.node(links)}, job, **{"gpu.inventory": inventory})
    up, speed, errors = strips["strips"]
    assert (up["values"], up["odd"]) == ([18, 18, 18, 17], [3])
    assert (speed["odd"], errors["odd"]) == ([], []) and speed["values"][0] == pytest.approx(26.56)
    assert drawn(nvlink, {0: test_nvlink.node([[]] * 4)}, job, **{"gpu.inventory": inventory}) == []


def test_a_node_that_is_slow_alone_is_named() -> None:
    job = made_links.job(4, 2)
    facts = made_links.of_nodes(4, 2, lambda start, _end: 0.2 if start // 2 == 3 else 1.0)
    strips, _ = drawn(nodes, facts, job)
    [strip] = strips["strips"]
    assert strips["subjects"][3] == ["node-3", "alone"] and strip["odd"] == [3]
    assert strip["values"][3] == pytest.approx(0.2 * strip["values"][0], rel=0.01)
    strips, _ = drawn(nodes, made_links.of_nodes(4, 2), job)
    assert strips["strips"][0]["odd"] == []


def test_the_ranks_of_a_node_that_writes_slowly_are_named() -> None:
    run = test_checkpoint._run(3, 2)
    folders = test_checkpoint._folder({0: 100, 1: 100, 2: 10})
    alone_rates = {"rank": 4, "slow": 10e6, "usual": 100e6}
    facts = {rank: {"folder": own, "alone": alone_rates} for rank, own in folders.items()}
    [strips] = drawn(checkpoint, facts, run.job)
    [written] = strips["strips"]  # nothing was read
    assert written["odd"] == [4, 5] and written["values"] == [50, 50, 50, 50, 5, 5]
    for own in facts.values():
        own["alone"] = None
    assert drawn(checkpoint, facts, run.job)[0]["strips"][0]["odd"] == []


def test_a_rank_that_trains_wrongly_alone_has_its_own_curve() -> None:
    facts = test_alone.sound(8)
    [chart] = drawn(alone, facts, Job("env", 8, "gloo", ()))
    assert [series["name"] for series in chart["series"]] == ["all ranks"]
    test_alone.bend(facts[5]["whole"], "losses", 2, 1.5)
    test_alone.bend(facts[6]["whole"], "losses", 3, "nan")
    [chart] = drawn(alone, facts, Job("env", 8, "gloo", ()))
    curves = {series["name"]: series["points"] for series in chart["series"]}
    assert set(curves) == {"all ranks", "rank 5", "rank 6"} and len(curves["rank 6"]) == 3
    step, least, middle, most = curves["all ranks"][2]
    assert least == middle and most == pytest.approx(1.5 * middle) and curves["rank 5"][2] == [step, most]


def test_what_is_published_stands_beside_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    known = expected.ExpectedBusbw(20.0, (90.0, 110.0), "a table")
    monkeypatch.setattr(expected, "busbw", lambda *_: known)
    chart, _ = drawn(all_reduce, test_verdict.sound(4), Job("env", 4, "gloo", ()))
    lines = {series["name"]: series["points"] for series in chart["series"] if series["role"] == "expected"}
    assert {name: {point[1] for point in points} for name, points in lines.items()} == {
        "least expected": {20.0}, "usual, from": {90.0}, "usual, to": {110.0},
    }  # fmt: skip
    sizes = [point[0] for series in chart["series"] if not series["role"] for point in series["points"]]
    assert [point[0] for point in lines["least expected"]] == [min(sizes), max(sizes)] and "a table" in chart["note"]


def test_one_slow_link_of_two_nodes_is_their_cell_and_makes_no_partner_slow() -> None:
    def slow(start: int, end: int, rail: int) -> float:
        return 0.2 if (start, end, rail) == (0, 1, 1) else 1.0

    job = made_links.job(4, 2)
    [heat] = drawn(pairs, made_links.of_pairs(4, 2, slow), job)
    assert [cell[:2] for cell in heat["slow"]] == [["node-0", "node-1"]]
    [rail] = drawn(rails, made_links.of_rails(4, 2, slow), job)
    assert rail["slow"] == []


def test_a_device_has_the_number_of_its_gpu() -> None:
    facts = test_compute.sound(2)
    for rank, own in facts.items():
        own["uuid"] = f"GPU-0-{1 - rank}"
    job = Job("env", 2, "nccl", (Node("node-0", 0, (0, 1)),))
    [strips] = drawn(compute, facts, job, **{"gpu.inventory": made_gpus.inventory(2)})
    assert strips["subjects"] == [["node-0", "gpu 1"], ["node-0", "gpu 0"]]


def test_the_loss_is_the_ranks_mean_and_memory_goes_from_least_to_most() -> None:
    trainings, losses, _ = drawn(ddp, test_curves.facts(2), Job("env", 2, "gloo", ()))
    assert losses["series"][0]["points"][0] == [0, 4.005]  # 4.0 and 4.01
    assert trainings["rows"][0][-1] == "3.0-4.0"


def test_a_hot_gpu_and_a_throttled_one_are_named_each_on_its_strip() -> None:
    facts, of = test_health.facts_of(4), {"gpu.inventory": made_gpus.inventory(4)}
    job = Job("env", 4, "nccl", (Node("node-0", 0, (0, 1, 2, 3)),))
    [sound] = drawn(health, facts, job, **of)
    assert [strip["odd"] for strip in sound["strips"]] == [[], [], [], []]
    assert set(sound["strips"][3]["values"]) == {(test_health.healthy()["power_limit_mw"] or 0) / 1000}
    test_health.change(facts, 0, "GPU-0-1", {"temperature_margin": 0})
    test_health.change(facts, 0, "GPU-0-2", {"throttle": next(iter(gpu_clocks.SLOWED))})
    [strips] = drawn(health, facts, job, **of)
    assert [strip["odd"] for strip in strips["strips"]] == [[1], [2], [], []]
