"""Judging on made-up facts; real runs stand in test_gpu_faults.py."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.gpu import pcie
from preflight.checks.gpu.pcie import slots
from preflight.checks.gpu.shared import nvml_survey, pci
from preflight.checks.gpu.shared.pci import most_a_minute
from preflight.planning import registry
from tests import made
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_gpus import on_nodes
from tests.large import timed

Facts = dict[int, dict[str, Any]]
DAY = 86400.0
COMPUTE, DISPLAY, BRIDGE = "0x030200 0x10de 0x2330", "0x030000 0x10de 0x2684", "0x060400 0x1000 0xc030"


def link(**more: Any) -> dict[str, Any]:
    return {
        "width": 16, "width_max": 16, "generation": 5, "generation_max": 5, "generation_gpu_max": 5, "pstate": 0,
        "virtual": False, "replays": 0, "errors": {"correctable": 0, "fatal": 0, "non_fatal": 0}, **more,
    }  # fmt: skip


def end(bus: str, kind: str = BRIDGE, **more: Any) -> dict[str, Any]:
    most = {"width": 16, "width_max": 16, "generation": 5, "generation_max": 5}
    return {"bus": bus, "kind": kind, **most, **more}


def path(gpu: int, kind: str = COMPUTE) -> list[dict[str, Any]]:
    """Two GPUs share a switch."""
    switch = gpu // 2
    buses = [f"0000:0{switch}:1{gpu}.0", f"0000:0{switch}:00.0", f"0000:00:0{switch}.0"]
    return [end(f"0000:{16 + gpu:02x}:00.0", kind), *map(end, buses)]


def node_of(number: int, gpus: int = 8) -> dict[str, Any]:
    uuids = [f"GPU-{number}-{gpu}" for gpu in range(gpus)]
    look = made_gpus.look({uuid: link() for uuid in uuids})
    return {"look": look, "paths": {uuid: path(gpu) for gpu, uuid in enumerate(uuids)}, "up_s": DAY}


def facts_of(nodes: int, gpus: int = 8) -> Facts:
    """One rank a node."""
    return {number: node_of(number, gpus) for number in range(nodes)}


def change(facts: Facts, gpu: int, node: int = 0, slot: dict[str, Any] | None = None, **more: Any) -> None:
    uuid = f"GPU-{node}-{gpu}"
    of_rank = next(of_rank for of_rank in facts.values() if uuid in of_rank["paths"])
    of_rank["look"]["gpus"][uuid].update(more)
    of_rank["paths"][uuid][1].update(slot or {})


def judged(facts: Facts) -> list[dict[str, Any]]:
    nodes = len(facts)
    gpus = len(facts[0]["look"]["gpus"])
    reads = {"gpu.inventory": made_gpus.inventory(*[1] * nodes, gpus=gpus)}
    return testing.judge(pcie, facts, nodes=on_nodes(*[1] * nodes), backend="nccl", reads=reads)


def every(facts: Facts, slot: dict[str, Any] | None = None, **more: Any) -> None:
    for at, of_rank in facts.items():
        for gpu in range(len(of_rank["paths"])):
            change(facts, gpu, at, slot, **more)


def _no_sysfs(facts: Facts) -> None:
    """As in many virtual machines: no bridges, and no answers."""
    for of_rank in facts.values():
        for uuid, ends in of_rank["paths"].items():
            nothing = dict.fromkeys(("width", "width_max", "generation", "generation_max"))
            of_rank["paths"][uuid] = [{**ends[0], **nothing}]


def _pulled(facts: Facts) -> None:
    """Half save power."""
    for gpu in range(4):
        change(facts, gpu, generation=1, pstate=8)


SOUND: dict[str, Callable[[Facts], None]] = {
    "as made": lambda _: None,
    "no sysfs": _no_sysfs,
    "half of them save power": _pulled,
    "cards of generation 6 in slots of 5": lambda facts: every(facts, generation_gpu_max=6),
    "a virtual machine's own idea of a slot": lambda facts: every(facts, slot={"width_max": 1, "generation_max": 1}),
    "states unknown, all alike": lambda facts: every(facts, pstate=None, generation=1),
    "no counters": lambda facts: every(facts, replays=None, errors={}),
    "nothing known": lambda facts: every(facts, width=None, generation=None, width_max=None, generation_max=None),
    "non-fatal errors of all": lambda facts: every(facts, errors={"non_fatal": 1}),
    "some replays": lambda facts: change(facts, 3, replays=1000),
    "many replays in a day, on all": lambda facts: every(facts, replays=40_000),
}


@pytest.mark.parametrize("change_", SOUND.values(), ids=SOUND)
@pytest.mark.parametrize("nodes", [1, 3])
def test_sound_links_give_no_finding(change_: Callable[[Facts], None], nodes: int) -> None:
    facts = facts_of(nodes)
    change_(facts)
    assert judged(facts) == []


def _consumer(facts: Facts, **slot: Any) -> None:
    """Two cards in a board that shares 16 lanes between them; it may not know that."""
    every(facts, width=8, slot=slot)
    for of_rank in facts.values():
        for ends in of_rank["paths"].values():
            ends[0]["kind"] = DISPLAY


def _one_narrow_display(facts: Facts) -> None:
    _consumer(facts)
    change(facts, 0, width=16)


def _uplink(facts: Facts, switch: int, **more: Any) -> None:
    for gpu in (2 * switch, 2 * switch + 1):
        facts[0]["paths"][f"GPU-0-{gpu}"][2].update(more)


def _all_uplinks(facts: Facts) -> None:
    for switch in range(4):
        _uplink(facts, switch, width=8)


def _slow_in_unknown_state(facts: Facts) -> None:
    every(facts, pstate=None)
    change(facts, 3, generation=1)


GPU_3 = {"node": "node-0", "gpu": 3}
FOUND: dict[str, tuple[Callable[[Facts], None], list[str], dict[str, Any], str]] = {
    "degraded": (lambda facts: change(facts, 3, width=8), ["warn width"], GPU_3,
                 "the PCIe link runs at 8 lanes, expected 16 lanes: both ends support that"),
    "degraded, with sysfs only": (lambda facts: change(facts, 3, width=8, width_max=None), ["warn width"], GPU_3,
                                  "expected 16 lanes: both"),
    "narrow slot": (lambda facts: change(facts, 3, slot={"width_max": 8}, width=8), ["warn width"], GPU_3,
                    "runs at 8 lanes, expected 16 lanes as on 7 of 8 GPUs of the node"),
    "all are degraded": (lambda facts: every(facts, width=8), ["warn width"] * 8, GPU_3, "runs at 8 lanes"),
    "all are degraded, in slots that a virtual machine made up": (
        lambda facts: every(facts, {"width_max": 1}, width=8), ["warn width"] * 8, GPU_3, "expected 16 lanes"),
    "all slots are narrow": (lambda facts: every(facts, width=8, slot={"width_max": 8}), ["info width"],
                             {"node": "node-0"}, "the slots of GPUs 0-7 have 8 lanes, expected 16"),
    "a board with shared lanes": (_consumer, ["info width"] * 8, GPU_3, "runs at 8 lanes"),
    "one of them has more": (_one_narrow_display, ["warn width"] * 7, GPU_3, "expected 16 lanes"),
    "a board that tells it": (lambda facts: _consumer(facts, width_max=8), ["info width"], {"node": "node-0"},
                              "have 8 lanes"),
    "slow in P0": (lambda facts: change(facts, 3, generation=3), ["warn generation"], GPU_3,
                   "runs at generation 3, expected generation 5: both ends support that"),
    "slow slot": (lambda facts: change(facts, 3, generation=3, generation_max=3), ["warn generation"], GPU_3,
                  "runs at generation 3, expected generation 5 as on 7 of 8 GPUs of the node"),
    "slow, in an unknown state": (_slow_in_unknown_state,
                                  ["warn generation"], GPU_3, "generation 1, expected generation 5 as on 7 of 8"),
    "uplink is narrow": (lambda facts: _uplink(facts, 1, width=8), ["warn uplink"],
                         {"node": "node-0", "device": "0000:01:00.0"},
                         "the link of the PCIe switch above GPUs 2-3 runs at 8 lanes, expected 16 lanes"),
    "uplink is slow": (lambda facts: _uplink(facts, 0, generation=1), ["warn uplink"], {"device": "0000:00:00.0"},
                       "above GPUs 0-1 runs at generation 1, expected generation 5"),
    "all uplinks alike": (_all_uplinks, ["info uplink"] * 4, {}, "runs at 8 lanes"),
    "replays unlike siblings": (lambda facts: change(facts, 3, replays=2000), ["warn replays"], GPU_3,
                                "2,000 PCIe replays since the driver was loaded, expected about 0 as on its siblings"),
    "replays of all": (lambda facts: every(facts, replays=50_000), ["warn replays"] * 8, GPU_3,
                       "expected at most 31 per minute, in 1,440 minutes since the node booted"),
    "fatal": (lambda facts: change(facts, 3, errors={"fatal": 1}), ["warn errors"], GPU_3, "1 fatal PCIe error since"),
    "fatal, on all": (lambda facts: every(facts, errors={"fatal": 1}), ["info errors"] * 8, GPU_3, "1 fatal"),
    "non-fatal": (lambda facts: change(facts, 3, errors={"non_fatal": 2}), ["info errors"], GPU_3, "2 non-fatal PCIe"),
}  # fmt: skip


@pytest.mark.parametrize(("change_", "finds", "where", "says"), FOUND.values(), ids=FOUND)
def test_the_link_is_named(
    change_: Callable[[Facts], None], finds: list[str], where: dict[str, Any], says: str
) -> None:
    facts = facts_of(1)
    change_(facts)
    found = judged(facts)
    assert [f"{finding['severity']} {finding['code'].removeprefix('gpu.pcie.')}" for finding in found] == finds, found
    (named,) = [finding for finding in found if where.items() <= finding["where"].items()][:1]
    assert says in named["message"] and "{" not in named["fix"], named


def test_every_code_is_tested() -> None:
    tested = {finds[0].split()[1] for _, finds, *_ in FOUND.values()}
    assert {*tested, "no_answer"} == set(registry.load(registry.sources()["gpu.pcie"]).codes)


def test_of_512_nodes_one_with_slower_slots_and_one_slower_gpu() -> None:
    facts: Facts = {8 * number: of_rank for number, of_rank in facts_of(512).items()}
    for gpu in range(8):
        change(facts, gpu, 77, {"width_max": 8}, width=8)
    change(facts, 5, 300, width=4)
    empty = {"look": made_gpus.look({}), "paths": {}, "up_s": DAY}
    facts = {rank: facts.get(rank, empty) for rank in range(8 * 512)}
    inventory = made_gpus.inventory(*[8] * 512)
    run = Run(made.job(*[8] * 512), tuple(facts), {}, facts_of=lambda _: inventory)
    with timed("gpu.pcie, 512 nodes of which two are odd"):
        found = list(pcie.judge(facts, run))
    told = {
        (finding.where["node"], finding.where.get("gpu")): finding.message
        for finding in found
        if finding.severity == "warn"
    }
    assert set(told) == {("node-77", None), ("node-300", 5)}
    text = "the GPUs' PCIe links run at 8 lanes, expected 16 lanes as on 511 of 512 nodes"
    assert told["node-77", None] == text


def test_a_node_whose_links_are_all_degraded_is_not_told_again_as_a_node() -> None:
    facts = facts_of(3)
    for gpu in range(8):
        change(facts, gpu, width=8)
    assert [finding["where"]["gpu"] for finding in judged(facts)] == list(range(8))


def test_a_gpu_that_has_just_woken_up_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [link(generation=1), link(), link()]

    class Session:
        def look(self, *_: object) -> dict[str, Any]:
            return made_gpus.look({"GPU-0-0": answers.pop(0)})

        def seen(self, _: object) -> dict[str, Any]:
            return {"gpus": made_gpus.handles(0, 1)}

    monkeypatch.setattr(nvml_survey, "session", Session)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    facts = pcie.measure(None)  # type: ignore[arg-type]
    assert facts["look"]["gpus"]["GPU-0-0"]["generation"] == 5 and len(answers) == 1


def test_a_return_form_gets_what_it_asks_for() -> None:
    facts = facts_of(1)
    change(facts, 3, width=8)
    (found,) = judged(facts)
    assert {"bus", "slot", "board", "module", "vbios", "inforom"} <= set(found["evidence"])
    assert found["evidence"]["slot"] == "0000:01:13.0" and found["where"]["serial"]


def test_the_summary_tells_of_power_saving() -> None:
    facts = facts_of(1)
    run = Run(made.job(1), (0,), {}, facts_of=lambda _: made_gpus.inventory(1, gpus=8))
    assert pcie.summarize(facts, run) == "8 links, 16 lanes, generation 5"  # type: ignore[arg-type]
    every(facts, pstate=8, generation=1)
    assert pcie.summarize(facts, run).endswith("they save power")  # type: ignore[arg-type]


@pytest.mark.parametrize(("generation", "a_minute"), [(3, 7.68), (4, 15.36), (5, 30.72), (6, 61.44)])
def test_the_limit_of_replays_is_that_of_dcgm(generation: int, a_minute: float) -> None:
    assert most_a_minute(link(generation_max=generation)) == pytest.approx(a_minute)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speed", "width", "known"),
    [
        ("16.0 GT/s PCIe", "16", (4, 16)),
        ("8 GT/s", "8", (3, 8)),
        ("Unknown", "255", (None, None)),
        ("", "", (None, None)),
    ],
)
def test_sysfs_is_read_as_kernels_write_it(
    speed: str, width: str, known: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"max_link_speed": speed, "max_link_width": width}
    monkeypatch.setattr(pci, "text", lambda _, name: files.get(name, ""))
    (end_,) = slots.path_of("0000:ff:1f.7")
    assert (end_["generation_max"], end_["width_max"]) == known
