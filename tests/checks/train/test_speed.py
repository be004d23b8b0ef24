"""train.speed: who is late, who only waits, and what the figures mean."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from preflight.check import Job, Node, Run, plots
from preflight.checks.train import speed as check
from preflight.checks.train.speed import figures, memory_fit, stalls, stragglers
from preflight.checks.train.speed.facts import Facts
from preflight.cli.running import settings
from preflight.planning import registry
from preflight.testing import judge
from tests import running
from tests.faults.row import briefly_alone

STEPS = 12


def series(compute: float = 0.03, wait: float = 0.01, core: float = 0.0, **phases: float) -> Any:
    """Of a rank whose steps are all alike. `core`: the share of its time in which it waits for a core."""
    wall = {"data": 0.0, "forward": compute / 3, "backward": compute * 2 / 3, "wait": wait, "optimizer": 0.0, **phases}
    waits = {phase: 0.0 if phase == "wait" else seconds * core for phase, seconds in wall.items()}
    own = sum(wall[phase] - waits[phase] for phase in wall if phase != "wait")
    return {
        "steps": [sum(wall.values())] * STEPS, "own": [own] * STEPS, "phases": wall, "core_wait": waits,
        "starved": [sum(waits.values())] * STEPS, "begun": [], "first_collective": 0.01,
        "each": {phase: [wall[phase] - waits[phase]] * STEPS for phase in wall},
    }  # fmt: skip


def facts(*ranks: Any, rounds: int = 1, **more: Any) -> dict[int, Facts]:
    """Of ranks that had these series under DDP."""
    memory = {"held": 2**20, "allocated": None, "reserved": None, "resident": 2**21}
    exposed = {"step": 0.05, "collectives": 0.02, "exposed": 0.01, "count": 3}
    rest = {"loss": 2.0, "gradients": 2**20, "memory": memory, "exposed": exposed, "throttled": 0.0}
    made: Any = {
        rank: {
            "samples": 8, "tokens": 32, "flops": 10**9, "device": "CPU", "autocast": False, "cores": "0-1",
            "quota": None, "solo": series(0.02, 0.0) if rank == 0 else None, "alone": series(0.025, 0.0), "node": None,
            "strategies": {"ddp/plain": {"rounds": [own] * rounds, **rest}},
            "clock_mhz": None, "kernel": "a", "links": [], "not_timed": {}, "fit": None, "attached": {}, **more,
        }
        for rank, own in enumerate(ranks)
    }  # fmt: skip
    return made  # type: ignore[no-any-return]


def run_of(made: dict[int, Facts], **options: Any) -> Run:
    job = Job("env", len(made), "gloo", (Node("node-0", 0, tuple(made)),))
    return Run(job, tuple(made), {}, {getattr(check, name): value for name, value in options.items()})


# Stragglers


def test_equal_ranks_are_sound() -> None:
    assert judge(check, facts(series())) == judge(check, facts(*[series()] * 4)) == []


def test_who_computes_late_is_named_and_who_waits_is_not() -> None:
    late = series(0.03, 0.0, backward=0.22)
    (found,) = judge(check, facts(series(wait=0.2), late, series(wait=0.2), rounds=3))
    assert (found["code"], found["where"]["rank"], found["noticed_by"]) == ("train.speed.straggler", 1, "0,2")
    assert "late in backward: 220 ms, the others 20 ms; ranks 0,2 wait 200 ms for it" in found["message"]
    assert found["evidence"]["phase"] == "backward" and found["evidence"]["share"] == pytest.approx(0.87, abs=0.01)


def test_a_rank_that_others_have_not_waited_for_is_not_named() -> None:
    assert judge(check, facts(series(wait=0.001), series(0.1, 0.0), series(wait=0.001))) == []


def test_a_rank_must_be_late_in_each_round() -> None:
    made = facts(*[series(wait=0.2)] * 3, rounds=3)
    late = series(0.03, 0.0, data=0.2)
    for rounds in ([late, late, series()], [series(), late, late]):
        made[1]["strategies"]["ddp/plain"]["rounds"] = rounds
        assert judge(check, made) == []
    made[1]["strategies"]["ddp/plain"]["rounds"] = [late] * 3
    (found,) = judge(check, made)
    assert "late in fetching its batch: 200 ms" in found["message"]


def test_a_rank_must_be_late_in_nearly_every_step() -> None:
    """In two of three it is told as one that stands still in these."""
    late = series(0.03, 0.0, forward=0.2)
    for values, usual in ((late["own"], 0.03), (late["each"]["forward"], 0.01)):
        values[: STEPS // 3] = [usual] * (STEPS // 3)
    (found,) = judge(check, facts(series(wait=0.2), late, series(wait=0.2), rounds=3))
    assert found["code"] == "train.speed.stalls" and "in 24 of 36 steps, 190 ms each" in found["message"]


def test_a_rank_without_a_core_is_told_apart() -> None:
    (found,) = judge(check, facts(series(wait=0.3), series(0.33, 0.0, core=0.91), rounds=3))
    assert (
        found["evidence"]["starved"] is True and "waiting for a CPU core that other processes use" in found["message"]
    )


def test_a_rank_that_stands_still_wants_no_core_and_the_other_does_not_starve_beside_it() -> None:
    late = series(0.1, 0.02, core=0.6, backward=0.5)
    late["core_wait"]["backward"], late["own"] = 0.06, [0.44] * STEPS
    (found,) = judge(check, facts(series(0.2, 0.36, core=0.82), late, rounds=3))
    assert found["where"]["rank"] == 1 and found["evidence"]["starved"] is False


@pytest.mark.parametrize("others", [0.6, 0.75, 0.9])
def test_where_all_wait_for_cores_nobody_is_named(others: float) -> None:
    ranks = [series(0.1, core=others), series(0.2, 0.01, core=0.85 if others < 0.9 else 0.99), series(0.1, core=others)]
    assert judge(check, facts(*ranks)) == []


def test_where_all_wait_for_cores_a_rank_that_takes_six_times_as_long_is_named() -> None:
    """Others have 45% of a core, which is no quarter more than a third of what they would need to be told by it."""
    busy, late = series(0.2, wait=1.1, core=0.85), series(1.2, wait=0.05, core=0.975)
    (found,) = judge(check, facts(busy, late, busy, rounds=3))
    assert found["where"]["rank"] == 1 and found["evidence"]["starved"] is True
    assert "it computes 1.2 s per step, most of it waiting for a CPU core" in found["message"]
    assert judge(check, facts(busy, series(0.6, wait=0.05, core=0.95), busy, rounds=3)) == []


def test_a_throttled_gpu_is_late_by_less() -> None:
    assert stragglers.least_share(None, Job("env", 2, "nccl", ())) == 0.2
    assert stragglers.least_share(None, Job("env", 2, "gloo", ())) == 0.5
    assert stragglers.least_share(0.1, Job("env", 2, "gloo", ())) == 0.1


def test_rank_0_is_suspected_as_any_other() -> None:
    """A list that holds 0 alone is true all the same."""
    no = [[0.0] * 4] * 2
    assert stragglers.is_suspicious([0.0, 0.0], [[0.2] * 4, [0.03] * 4], no, 0.5)
    assert stragglers.is_suspicious([0.9, 0.1], [[0.03] * 4, [0.03] * 4], no, 0.5)
    assert stragglers.is_suspicious([0.6, 0.6], [[0.03] * 4, [0.03] * 4], [[0.4] * 4, [0.06] * 4], 0.5)
    assert not stragglers.is_suspicious([0.6, 0.6], [[0.03] * 4, [0.04] * 4], [[0.2] * 4, [0.06] * 4], 0.5)


def test_8192_ranks_are_judged() -> None:
    late = series(0.03, 0.0, backward=0.22)
    made = facts(*[series(wait=0.2)] * 8191, late)
    (found,) = judge(check, made)
    assert found["where"]["rank"] == 8191


# Pauses


def paused(phase: str = "data", every: int = 5, seconds: float = 1.5, first: int = 4, own: Any = None) -> Any:
    """A rank that stands still in each `every`th step."""
    made = own or series()
    for step in range(first, STEPS, every):
        made["own"][step] += seconds
        made["steps"][step] += seconds
        made["each"][phase][step] += seconds
    return made


def waiting(phase: str = "data", **how: Any) -> Any:
    """One of the others: it waits for the rank in the same step, for its optimizer in the next one."""
    made = series()
    for step in range(how.get("first", 4), STEPS, how.get("every", 5)):
        at = step + (phase == "optimizer")
        if at < STEPS:
            made["steps"][at] += how.get("seconds", 1.5)
            made["each"]["wait"][at] += how.get("seconds", 1.5)
    return made


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_rank_that_stands_still_now_and_then_is_named_with_phase_and_how_often(phase: str) -> None:
    made = facts(waiting(phase), paused(phase), waiting(phase), rounds=3)
    (found,) = judge(check, made)
    assert (found["code"], found["where"]["rank"], found["noticed_by"]) == ("train.speed.stalls", 1, "0,2")
    assert found["evidence"]["phase"] == phase and found["evidence"]["pause_s"] == 1.5
    where = stragglers.OF_PHASE[phase]
    assert f"it stands still {where} in 6 of 36 steps, 1.5 s each" in found["message"]
    assert "ranks 0,2 wait for it, and 86% of the time is lost" in found["message"]
    (strip,) = {tuple(strip["odd"]) for strip in [*check.plot(made, run_of(made))][1].to_json()["strips"]}
    assert strip == (1,)


def test_how_often_is_told_where_it_is_regular() -> None:
    how: Any = {"every": 4, "first": 3}
    (found,) = judge(check, facts(waiting(**how), paused(**how), rounds=3))
    assert "every 4 steps (9 of 36)" in found["message"]


def test_pauses_that_cost_nothing_that_come_once_or_that_all_make_are_sound() -> None:
    assert judge(check, facts(waiting(seconds=0.04), paused(seconds=0.04), rounds=3)) == [], "too short"
    assert judge(check, facts(series(), paused(), rounds=3)) == [], "nobody waited"
    assert judge(check, facts(*[paused("forward") for _ in range(3)], rounds=3)) == [], "all at once"
    once = facts(waiting(), paused(), waiting(), rounds=3)
    for own in once.values():
        own["strategies"]["ddp/plain"]["rounds"][1] = series()
    assert judge(check, once) == [], "not in each round"
    busy = [paused(seconds=0.06, every=12, own=series(0.4, core=0.9)), waiting(seconds=0.06, every=12)]
    assert judge(check, facts(busy[1], busy[0], rounds=3)) == [], (
        "3 ranks on two cores at a load of 15 had one of these"
    )


def test_a_pause_in_another_phase_each_round_is_chance() -> None:
    made = facts(*[series()] * 3, rounds=3)
    for number, phase in enumerate(("data", "forward", "backward")):
        for rank, own in enumerate((waiting(phase), paused(phase), waiting(phase))):
            made[rank]["strategies"]["ddp/plain"]["rounds"][number] = own
    assert judge(check, made) == []


def test_pauses_are_suspected_only_where_they_cost_time() -> None:
    no = [[0.0] * 4] * 2
    assert stalls.is_suspicious([[0.03] * 4, [0.03, 0.03, 0.03, 0.2]], no)
    assert not stalls.is_suspicious([[0.03] * 4, [0.03, 0.03, 0.03, 0.07]], no)
    assert not stalls.is_suspicious([[0.03] * 4, [0.03, 0.03, 0.03, 0.11]], [[0.3] * 4] * 2)
    assert not stalls.is_suspicious([[0.03, 0.5]], [[0.0] * 2])


# The loader


def test_a_job_whose_ranks_all_wait_for_their_loaders_is_bound_by_data() -> None:
    slow = series(0.04, data=0.2)
    (found,) = judge(check, facts(slow, slow, slow))
    assert (found["code"], found["severity"], found["where"]) == ("train.speed.data_bound", "warn", {})
    assert "the ranks wait 200 ms of each step of 250 ms for their next batch (80%)" in found["message"]
    assert "a step would take 50 ms if the batch were there" in found["message"]


def test_workers_that_fall_behind_give_some_batches_at_once() -> None:
    """Four of them: each fourth batch has to be waited for, and the median is 0."""
    own = [paused("data", every=4, first=3, seconds=0.4) for _ in range(2)]
    (found,) = judge(check, facts(*own))
    assert found["code"] == "train.speed.data_bound" and "wait 100 ms of each step of 140 ms" in found["message"]


def test_loaders_that_cost_little_that_only_begin_slowly_or_of_one_rank_are_sound() -> None:
    little, quick = series(0.1, data=0.03), series(0.01, data=0.005)
    assert judge(check, facts(little, little)) == judge(check, facts(quick, quick)) == []
    anew = [paused("data", every=4, first=3, seconds=0.4) for _ in range(2)]
    for own in anew:
        own["begun"] = [3, 7, 11]
    assert judge(check, facts(*anew)) == []
    assert {found["code"] for found in judge(check, facts(series(wait=0.2), series(data=0.2), rounds=3))} == {
        "train.speed.straggler"
    }


# Slower than one


def exposing(seconds: float, own: Any, cores: str = "0-7") -> dict[int, Facts]:
    """Of two ranks that communicate for so long in each step."""
    made = facts(own, own, cores=cores)
    for rank in made.values():
        seen = {"step": seconds + 0.03, "collectives": seconds, "exposed": seconds, "count": 3}
        rank["strategies"]["ddp/plain"]["exposed"] = seen  # type: ignore[typeddict-item]
    return made


def test_ranks_that_are_slower_together_than_one_of_them_are_told_with_what_helps() -> None:
    made = exposing(0.4, series(0.03, wait=0.4))
    (found,) = judge(check, made)
    assert (found["code"], found["severity"], found["where"]) == ("train.speed.slower_than_one", "warn", {})
    assert found["message"].startswith(
        "under ddp/plain 2 ranks train 1,191 tokens/s together, and one of them alone 10,240 tokens/s while the "
        "others train, too, expected more together; 93% of a step is exposed communication, for 1 MiB that each rank "
        "sends"
    )
    assert "accumulated over 17 batches" in found["fix"]
    for own in made.values():
        fast = {**own["strategies"]["ddp/plain"], "rounds": [series(0.03, wait=0.01)]}
        own["strategies"]["fsdp2/plain"] = fast  # type: ignore[assignment]
    assert judge(check, made)[0]["message"].endswith("; fsdp2/plain reaches 12,800 tokens/s")


def test_ranks_that_are_as_fast_as_one_or_share_few_cores_are_sound() -> None:
    assert judge(check, exposing(0.04, series(0.03, wait=0.02))) == []
    slower = exposing(0.06, series(0.03, wait=0.06))
    assert [found["code"] for found in judge(check, slower)] == ["train.speed.slower_than_one"]
    assert judge(check, exposing(0.01, series(0.03, wait=0.06))) == [], "not by communication"
    assert judge(check, exposing(0.06, series(0.03, wait=0.06), cores="0-1")) == [], "their exchange needs cores, too"
    assert judge(check, facts(series(0.03, wait=0.4))) == [], "one rank"


def test_containers_on_one_machine_share_its_cores() -> None:
    made, nodes = exposing(0.06, series(0.03, wait=0.06), cores="0-1"), {"host-a": (0,), "host-b": (1,)}
    assert judge(check, made, nodes=nodes) == []
    made[1]["kernel"] = "b"
    assert [found["code"] for found in judge(check, made, nodes=nodes)] == ["train.speed.slower_than_one"]


# Fewer cores


def on_nodes(*cores: str, few: Any, waited: float = 0.03, quota: float | None = None) -> list[dict[str, Any]]:
    """Two ranks on each of these nodes, bound to these cores; those of node 1 with the series `few`."""
    usual = series(0.03, wait=waited)
    made: dict[int, Facts] = {}
    for node, bound in enumerate(cores):
        own = few if node == 1 else usual
        made |= {2 * node + rank: facts(own, rounds=3, cores=bound)[0] for rank in range(2)}
    for rank in (2, 3):
        made[rank]["quota"] = quota
    nodes = {f"node-{node}": (2 * node, 2 * node + 1) for node in range(len(cores))}
    return judge(check, made, nodes=nodes)


FEW = series(0.06, wait=0.001, core=0.5)


def test_a_node_with_half_the_cores_is_named_with_what_it_costs() -> None:
    (found,) = on_nodes("0-1", "0", few=FEW)
    assert (found["code"], found["where"]) == ("train.speed.fewer_cores", {"node": "node-1"})
    assert found["noticed_by"] == "0-1" and found["severity"] == "warn"
    assert found["message"] == (
        "it has 0.5 of a core for each of its ranks, expected 1 as on other nodes: under ddp/plain they compute 60 ms "
        "per step, the others 30 ms, expected about the same; ranks 0-1 wait 30 ms for them, and 49% of each step is "
        "lost"
    )
    (found,) = on_nodes("0-7", "0-7", "0-7", few=FEW, quota=2.0)
    assert found["noticed_by"] == "0-1,4-5" and "has 1 core for each of its ranks, expected 4" in found["message"]


def test_fewer_cores_that_cost_nothing_are_sound() -> None:
    assert on_nodes("0-7", "0-3", few=series(0.03)) == on_nodes("0-7", "0-3", few=series(0.04, core=0.2)) == []
    assert on_nodes("0-1", "0", few=FEW, waited=0.001) == []


def test_waiting_for_cores_on_a_node_with_as_many_is_none_of_this() -> None:
    assert on_nodes("0-1", "0-1", few=FEW) == on_nodes("0", "0-1", few=FEW) == []


def test_one_computing_late_on_a_node_with_fewer_cores_is_a_straggler() -> None:
    found = on_nodes("0-1", "0", "0-1", few=series(0.06, 0.001))
    assert {each["code"] for each in found} == {"train.speed.straggler"}


def test_ranks_that_starve_for_want_of_cores_are_told_once() -> None:
    (found,) = on_nodes("0-1", "0", "0-1", few=series(0.3, 0.001, core=0.9), waited=0.27)
    assert found["code"] == "train.speed.fewer_cores"


# Figures


def test_efficiency_is_of_ranks_that_are_alone_on_their_nodes() -> None:
    made = facts(series(), series())
    alone = figures.solo(made, run_of(made).job)
    assert alone == {0: pytest.approx(400), 1: pytest.approx(400)}
    rate = figures.together(made, figures.last_rounds(made, "ddp/plain"))
    assert rate == pytest.approx(400) and figures.efficiency(rate, alone) == pytest.approx(0.5)


def test_the_use_of_a_known_card_is_told() -> None:
    made = facts(series(), device="NVIDIA H100 80GB HBM3", autocast=True, flops=int(989e12 * 0.02))
    assert figures.utilisation(made[0], 0.04) == pytest.approx(0.5)
    assert "; MFU 50%" in check.summarize(made, run_of(made))
    assert figures.utilisation(facts(series(), device="NVIDIA Unknown", autocast=True)[0], 0.04) is None


def test_the_line_and_the_picture() -> None:
    made = facts(series(), series())
    line = check.summarize(made, run_of(made))
    assert line == (
        "ddp/plain on 2 ranks: 12,800 tokens/s, 50% of 2 x 12,800 alone; step 40 ms (mean 40 ms, p95 40 ms, p99 40 "
        "ms); 10 ms (20%) exposed communication; 2 ranks and their exchange share 2 cores"
    )
    told = check.summarize(made, run_of(made, LR=3e-4, ACCUMULATE=2))
    assert "; 8 per rank x 2 ranks x 2 accumulation = 32 (one rank alone: 16); a learning rate of 0.0003" in told
    strategies, ranks = tables(made)
    assert [row[0] for row in strategies.rows] == ["alone", "alone, all at once", "ddp/plain"]
    assert "\n".join([*ranks.heads]).endswith("first collective after") and [row[0] for row in ranks.rows] == ["0", "1"]


def tables(made: dict[int, Facts]) -> list[plots.Table]:
    return [its for its in check.plot(made, run_of(made)) if isinstance(its, plots.Table)]


def test_throughput_is_samples_by_time_and_the_mean_stands_beside_the_median() -> None:
    """Every fourth step takes 1 s more."""
    slow = series()
    slow["steps"] = [1.04 if step % 4 == 0 else 0.04 for step in range(STEPS)]
    made = facts(slow, slow)
    assert figures.together(made, figures.last_rounds(made, "ddp/plain")) == pytest.approx(16 / 0.29)
    assert "; step 40 ms (mean 290 ms, p95 1.04 s, p99 1.04 s)" in check.summarize(made, run_of(made))
    assert ", 7% of 2 x 12,800 alone" in check.summarize(made, run_of(made))


def test_what_ranks_wait_for_each_other_is_no_communication() -> None:
    made = facts(series(), series())
    made[0]["strategies"]["ddp/plain"]["exposed"] = {"step": 0.5, "collectives": 0.4, "exposed": 0.4, "count": 3}
    told = "; 10 ms (20%) exposed communication (up to 400 ms with what ranks wait for each other)"
    assert told in check.summarize(made, run_of(made))


def test_the_loss_of_a_strategy_beside_the_first_ones() -> None:
    made = facts(series(), series())
    for rank, own in made.items():
        own["strategies"]["fsdp2/plain"] = {**own["strategies"]["ddp/plain"], "loss": 2.0 + rank * 4e-6}
    row = next(row for row in tables(made)[0].rows if row[0] == "fsdp2/plain")
    assert row[-1] == "1e-06"
    made[1]["strategies"]["fsdp2/plain"]["loss"] = None
    assert figures.loss_off(made, "fsdp2/plain", "ddp/plain") is None


def test_the_page_shows_steps_phases_and_strategies_and_names_the_late_rank() -> None:
    late = series(0.03, 0.0, backward=0.22)
    made = facts(series(wait=0.2), late, series(wait=0.2), rounds=3)
    chart, phases, exposed, side_by_side, _ranks = (plot.to_json() for plot in check.plot(made, run_of(made)))
    assert [its["name"] for its in chart["series"]] == ["ddp/plain, all ranks", "alone, all at once"]
    assert {tuple(strip["odd"]) for strip in phases["strips"]} == {(1,)} and phases["subjects"][1] == [
        "node-0",
        "rank 1",
    ]
    assert phases["strips"][2]["values"] == [20.0, 220.0, 20.0] and exposed["strips"][0]["values"] == [20.0] * 3
    assert [row[0] for row in side_by_side["rows"]] == ["alone", "alone, all at once", "ddp/plain"]
    assert side_by_side["heads"] == [
        "strategy", "tokens/s", "of alone", "mean", "p50", "p99", "exposed", "held MiB", "peak MiB", "loss off"
    ]  # fmt: skip
    sound = facts(series(), series())
    assert all(not strip["odd"] for strip in [*check.plot(sound, run_of(sound))][1].to_json()["strips"])


def test_the_rate_between_nodes_is_told_where_most_of_a_step_waits_for_it() -> None:
    made = facts(series(), series())
    job = Job("env", 2, "gloo", (Node("a", 0, (0,)), Node("b", 1, (1,))))
    assert "gradients travel" not in check.summarize(made, Run(job, (0, 1), {}, {}))
    made[0]["strategies"]["ddp/plain"]["exposed"] = {"step": 0.4, "collectives": 0.3, "exposed": 0.3, "count": 3}
    assert "gradients travel" not in check.summarize(made, Run(job, (0, 1), {}, {})), "rank 0 waits for rank 1"
    made[1]["strategies"]["ddp/plain"]["exposed"] = {"step": 0.4, "collectives": 0.02, "exposed": 0.3, "count": 3}
    assert "gradients travel" not in check.summarize(made, run_of(made)), "on one node"
    line = check.summarize(made, Run(job, (0, 1), {}, {}))
    assert "; gradients travel at 52.4 MB/s between 2 nodes" in line, "by the rank that waits least, in 20 ms"


@pytest.mark.parametrize("text", ["ddp", "", "fsdp2/offload"])
def test_an_unknown_strategy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no strategy that is timed; known are ddp/plain"):
        check.STRATEGIES.type(text)


# Memory


def fit(slope: float = 1.0, free: float = 100.0, bend: float = 0.0, rooms: Any = ()) -> dict[str, Any]:
    """Of a rank, in MiB: 10 for the model, and `slope` a row."""
    peaks = [{"rows": rows, "peak": int(2**20 * (10 + slope * rows + bend * (rows == 4)))} for rows in (2, 4, 8)]
    own = {"parameters": 2**20, "gradients": 2**20, "optimizer": 2**21, "peaks": peaks}
    left = [(place, int(mib * 2**20)) for place, mib in rooms or [("the GPU", free)]]
    return {"rooms": left, "strategies": {"ddp/plain": own, "fsdp2/plain": own}}


def fitted(rows: int, *ranks: dict[str, Any]) -> list[dict[str, Any]]:
    made = facts(*[series()] * len(ranks))
    for rank, own in enumerate(ranks):
        rooms = [(f"{place} of {rank}" if place == "the GPU" else place, left) for place, left in own["rooms"]]
        made[rank]["fit"] = {**own, "rooms": rooms}  # type: ignore[typeddict-item]
    return judge(check, made, settings={"batch": str(rows)})


def test_a_straight_line_is_extended() -> None:
    found = memory_fit.estimate(fit()["strategies"]["ddp/plain"], 100)
    assert found == (110 * 2**20, 106 * 2**20, 0.0)
    assert memory_fit.estimate(fit(bend=7.0)["strategies"]["ddp/plain"], 100).error == pytest.approx(1 / 3, abs=0.01)


def test_what_fits_is_sound_and_what_does_not_is_told_with_its_numbers() -> None:
    assert fitted(80, fit(), fit()) == fitted(99, fit(), fit()) == []
    (found,) = fitted(190, fit(), fit())
    assert (found["code"], found["severity"]) == ("train.speed.wont_fit", "fail") and "rank" not in found["where"]
    assert (
        "190 rows a rank need about 200 MiB under ddp/plain (to 0%) and 200 MiB under fsdp2/plain" in found["message"]
    )
    assert found["message"].endswith("and 100 MiB are there for each rank")


def test_a_rank_that_has_less_memory_is_named() -> None:
    (found,) = fitted(80, fit(), fit(free=50.0), fit())
    assert found["where"]["rank"] == 1 and "and 50 MiB are there for rank 1" in found["message"]


def test_a_cgroup_that_limits_it_is_told() -> None:
    own = fit(rooms=[("machine", 900), ("cgroup 1", 50)])
    (found,) = fitted(80, fit(rooms=[("machine", 900)]), own)
    assert "and 50 MiB are there for rank 1, by the limit of its cgroup" in found["message"]


def test_what_ranks_share_is_divided_and_what_a_rank_has_alone_is_not() -> None:
    """A cgroup of 100 MiB each, in one of 900 for both; then one of 100 for both."""
    alone = [fit(rooms=[("machine", 900), ("cgroup 1", 900), (f"cgroup {rank}", 100)]) for rank in (2, 3)]
    together = [fit(rooms=[("machine", 900), ("cgroup 1", 100)])] * 2
    assert fitted(80, *alone) == []
    (found,) = fitted(80, *together)
    assert "and 50 MiB are there for each rank, by the limit of a cgroup" in found["message"]
    (found,) = fitted(80, fit(rooms=[("machine", 100)]), fit(rooms=[("machine", 100)]))
    assert "and 50 MiB are there for each rank" in found["message"] and "cgroup" not in found["message"]


def test_the_batch_may_be_asked_for_where_the_model_is() -> None:
    assert settings(["train.model.batch=64"], registry.sources()) == {"train.speed.batch": "64"}


def test_an_estimate_that_may_be_too_high_by_its_error_is_not_held_against_anybody() -> None:
    assert fitted(100, fit(), fit()) == [] and fitted(130, fit(bend=7.0)) == []


# Real ranks


def _run(folder: Path, world: int, *words: str) -> running.Finished:
    ranks = [briefly_alone(env) for env in running.plain_ranks(world)]
    return running.run_ranks(folder, ranks, "--only", "train.speed", *words, deadline_s=90)


def test_sound_ranks_are_sound_and_leave_their_traces(tmp_path: Path) -> None:
    finished = _run(tmp_path, 2)
    assert finished.findings() == [] and finished.left_over == [], finished.told()
    own = finished.check("train.speed")
    assert own["summary"].startswith("ddp/plain on 2 ranks: ") and "exposed communication" in own["summary"]
    assert [plot["kind"] for plot in own["plots"]] == ["chart", "strips", "strips", "table", "table"]
    assert float(own["plots"][3]["rows"][3][-1]) < 1e-4, "FSDP2 trains as DDP does"
    traces = sorted((tmp_path / "attached").iterdir())
    assert [path.name for path in traces] == [f"train.speed.rank-{rank}.trace.json.gz" for rank in (0, 1)]
    names = {event["name"] for event in json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]}
    assert "gloo:all_reduce" in names


@pytest.mark.more
@pytest.mark.parametrize("world", [1, 3, 4])
def test_other_worlds_are_sound(world: int, tmp_path: Path) -> None:
    finished = _run(tmp_path, world, "--set", "train.speed.trace_ranks=0")
    assert finished.findings() == [] and finished.left_over == [], finished.told()


def test_a_sound_model_of_the_users_is_sound(tmp_path: Path) -> None:
    words = (
        "--set",
        "train.speed.model=tests.models.late:mlp",
        "--set",
        "train.speed.strategies=ddp/plain,fsdp2/plain",
    )
    finished = _run(tmp_path, 3, *words)
    assert finished.findings() == [], finished.told()
    assert "; 5 or 6 per rank x 3 ranks = 16" in finished.check("train.speed")["summary"], finished.told()
