"""Speeds of GPUs without siblings, against what their own memory and link can do; made-up facts."""

from typing import Any

import pytest

from preflight import testing
from preflight.checks.gpu import compute
from tests.checks.gpu import made_gpus

KIND = {
    "type": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "units": 132, "driver": "550.54.15",
    "torch": "2.6.0", "cuda": "12.4", "cudnn": "90100", "blas": "12.4.5", "threads": 1, "settings": [],
}  # fmt: skip
SPEEDS = {"device copy": 2973.0, "H2D copy": 55.0, "D2H copy": 55.0}
LINK: dict[str, Any] = {"width": 16, "width_max": 16, "generation": 5, "generation_max": 5, "virtual": False}


def judged(
    speeds: dict[str, float], *, world: int = 1, port: str = "0000:00:01.{}", bits: int | None = 5120, **link: Any
) -> list[str]:
    """ "warn below_own 0": severity, code and rank. `port`: of the host, above each GPU. `link`: changes of it."""
    uuids = [f"GPU-{rank}" for rank in range(world)]
    facts: dict[int, Any] = {
        rank: {"kind": KIND, "uuid": uuid, "speeds": SPEEDS | speeds, "wrong": [], "repeats": {}, "not_measured": [],
               "error": None}
        for rank, uuid in enumerate(uuids)
    }  # fmt: skip
    paths = {uuid: [{"bus": f"0000:0{n}:00.0"}, {"bus": port.format(n)}] for n, uuid in enumerate(uuids)}
    pcie = {"look": made_gpus.look({uuid: {**LINK, **link} for uuid in uuids}), "paths": paths}
    health = {
        "look": made_gpus.look({uuid: {"clocks": {"memory_max": 2619}, "memory_bus_bits": bits} for uuid in uuids})
    }
    reads: dict[str, Any] = {"gpu.pcie": {0: pcie}, "gpu.health": {0: health}, "gpu.inventory": {}}
    found = testing.judge(compute, facts, nodes={"node-0": range(world)}, backend="nccl", reads=reads)
    return [f"{each['severity']} {each['code'].removeprefix('gpu.compute.')} {each['where']['rank']}" for each in found]


@pytest.mark.parametrize(
    ("speeds", "link"),
    [
        ({"device copy": 2973.0, "H2D copy": 55.0, "D2H copy": 55.0}, {}),
        ({"H2D copy": 12.3, "D2H copy": 13.0}, {"generation_max": 3}),
        ({"H2D copy": 3.1, "D2H copy": 3.2}, {"generation_max": 3, "width": 4}),
        ({"H2D copy": 5.0}, {"virtual": True}), ({"H2D copy": 5.0}, {"width": None}),
        ({"device copy": 200.0}, {"bits": None}),
    ],
    ids=["H100", "generation 3", "a slot of the chipset", "a made-up link", "link unknown", "memory unknown"],
)  # fmt: skip
def test_a_sound_card_is_near_its_own_limits(speeds: dict[str, float], link: dict[str, Any]) -> None:
    assert judged(speeds, **link) == []


@pytest.mark.parametrize(
    ("speeds", "found"),
    [
        ({"device copy": 1900.0}, ["warn below_own 0"]), ({"device copy": 900.0}, ["fail below_own 0"]),
        ({"H2D copy": 24.0}, ["warn below_own 0"]), ({"D2H copy": 3.0}, ["fail below_own 0"]),
    ],
    ids=["memory", "memory, far", "link", "link, far"],
)  # fmt: skip
def test_a_card_far_below_its_own_limits_is_named(speeds: dict[str, float], found: list[str]) -> None:
    assert judged(speeds) == found


def test_gpus_below_one_port_share_it() -> None:
    speeds = {"H2D copy": 24.0, "D2H copy": 24.0}
    assert judged(speeds, world=2, port="0000:00:01.0") == []
    assert judged(speeds, world=2) == ["warn below_own 0"] * 2 + ["warn below_own 1"] * 2


def test_where_there_are_siblings_they_decide() -> None:
    assert judged({"H2D copy": 24.0}, world=4) == []
