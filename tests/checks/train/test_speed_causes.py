"""train.speed: why a rank is late, as far as the run has seen it."""

import gzip
import json
from pathlib import Path
from typing import Any

from preflight.checks.train import speed as check
from preflight.testing import judge
from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.checks.train.test_speed import facts, series
from tests.standin import machines

LATE = series(0.03, 0.0, backward=0.22)
GPU = "NVIDIA H100 80GB HBM3"


def on_cpu(*throttled: float, wait: float = 0.2, rounds: int = 3, **more: Any) -> Any:
    """Of ranks that compute alike and wait so long, but for those that are throttled in half of the periods."""
    ranks = [series(wait=0.01 if share >= 0.5 else wait) for share in throttled]
    made = facts(*ranks, rounds=rounds, **more)
    for rank, share in enumerate(throttled):
        made[rank]["strategies"]["ddp/plain"]["throttled"] = share
    return made


def test_a_rank_that_its_quota_stops_is_named_with_what_it_costs() -> None:
    made = on_cpu(0.0, 0.8, 0.1)
    made[1]["quota"] = 0.25
    (found,) = judge(check, made)
    assert (found["code"], found["where"]["rank"], found["noticed_by"]) == ("train.speed.straggler", 1, "0,2")
    assert found["message"] == (
        "the CPU quota of 0.25 of a core of its cgroup is used up: throttled in 80% of periods, expected to have the "
        "core that it computes on: under ddp/plain ranks 0,2 compute 30 ms per step and wait 200 ms for it, and 87% of "
        "each step is lost"
    )
    assert found["fix"].startswith("Raise its CPU quota: cpu.max") and found["evidence"]["cause"] == "quota"


def test_quotas_that_cost_nothing_that_all_have_or_that_are_seldom_used_up_are_sound() -> None:
    assert judge(check, on_cpu(0.0, 0.8, 0.0, wait=0.012)) == []
    assert judge(check, on_cpu(0.8, 0.8, 0.8)) == judge(check, on_cpu(0.4, 0.4, 0.8)) == []
    assert judge(check, on_cpu(0.0, 0.4, 0.0)) == []


def test_others_must_wait_in_every_round() -> None:
    made = on_cpu(0.0, 0.8)
    made[0]["strategies"]["ddp/plain"]["rounds"][1] = series(wait=0.005)
    assert judge(check, made) == []


def test_a_rank_that_computes_late_is_told_once_with_its_quota() -> None:
    made = facts(series(wait=0.2), LATE, rounds=3)
    made[1]["strategies"]["ddp/plain"]["throttled"] = 0.9
    (found,) = judge(check, made)
    assert found["message"].endswith("is lost; the CPU quota of its cgroup is used up: throttled in 90% of periods")


def test_a_slow_clock_is_the_cause_of_the_rank_that_has_it() -> None:
    made = facts(series(wait=0.2), LATE, series(wait=0.2), rounds=3, clock_mhz=3400.0)
    (found,) = judge(check, made)
    assert "MHz" not in found["message"] and found["fix"].startswith("On its node: top")
    made[1]["clock_mhz"] = 1200.0
    (found,) = judge(check, made)
    assert found["message"].endswith("; its core runs at 1,200 MHz, those of the others at 3,400 MHz")
    assert "cpupower" in found["fix"] and found["evidence"]["mhz"] == 1200
    made[1]["clock_mhz"], made[0]["clock_mhz"] = None, 900.0
    assert "MHz" not in judge(check, made)[0]["message"]


@needs_machines
def test_what_nvml_says_of_a_throttled_gpu_is_told_with_the_rank_that_is_late(tmp_path: Path) -> None:
    machine = machines.load("h100_nvswitch", tmp_path / "machine", {"gpu.1.reasons": 0x44})
    finished = in_machine.run(machine, tmp_path, "--level", "quick", "--only", "gpu.health")
    assert {found["code"] for found in finished.findings()} == {"gpu.health.throttled"}, finished.told()
    lines = gzip.decompress((tmp_path / "facts.jsonl.gz").read_bytes()).splitlines()
    seen = {line["check"]: line["facts"] for line in map(json.loads, lines)}
    made = facts(series(wait=0.2), LATE, series(wait=0.2), rounds=3, device=GPU)
    inventory = {rank: {**seen["gpu.inventory"], "local_rank": rank} for rank in made}
    reads = {"gpu.inventory": inventory, "gpu.health": {0: seen["gpu.health"]}}
    (found,) = judge(check, made, reads=reads)
    assert "; GPU 1 was throttled before the run: HW Thermal Slowdown, SM clock " in found["message"]
    assert found["evidence"]["gpu"] == 1 and found["fix"].startswith("See gpu.health; nvidia-smi -q -d PERFORMANCE")
    inventory[1]["local_rank"] = 2
    assert "GPU" not in judge(check, made, reads=reads)[0]["message"], "that of another rank"
