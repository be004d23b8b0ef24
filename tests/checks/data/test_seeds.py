"""What data.seeds says of made-up ranks. What its facts are made of is tested in test_draws.py and test_generators.py,
on real ranks in test_on_ranks.py."""

from collections.abc import Mapping
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.data import seeds
from preflight.checks.data.seeds.rng_draws import Draws, FirstDraws, Named
from preflight.checks.data.seeds.seed_vote import Seeded

INIT = Named(name="seed_worker", file="train.py", line=12)
DATASET = Named(name="Crops", file="data.py", line=3)


def torch_seeded(seed: int, *, changed: bool = True, drawn: str = "") -> Seeded:
    return Seeded(seed=seed, state=f"{seed}{drawn}", changed=changed, undrawn=False)


def seeded(state: str, *, changed: bool = True, undrawn: bool = True) -> Seeded:
    return Seeded(seed=None, state=state, changed=changed, undrawn=undrawn)


def not_seeded(rank: int) -> dict[str, Seeded]:
    """As in new processes."""
    python, numpy = seeded(f"p{rank}", changed=False), seeded(f"n{rank}", changed=False, undrawn=False)
    return {"torch": torch_seeded(1000 + rank, changed=False), "Python": python, "NumPy": numpy}


def draws(
    rank: int, drawn: Mapping[str, str], workers: int = 2, *, epochs: int = 2, init: Named | None = None,
    name: str = "", seed: int | None = None, unseen: str = "",
) -> Draws:  # fmt: skip
    """`drawn`: by generator the state, in which {r}, {e} and {w} are rank, epoch and worker."""
    numbers = range(workers) if workers else [-1]
    looks = [
        FirstDraws(
            epoch=epoch, worker=worker, drawn={key: _filled(text, rank, epoch, worker) for key, text in drawn.items()}
        )
        for epoch in range(epochs)
        for worker in numbers
    ]
    return Draws(name=name, workers=workers, epochs=epochs, init=init, dataset=DATASET, seed=seed, unseen=unseen,
                 looks=[] if unseen else looks)  # fmt: skip


def _filled(text: str, rank: int, epoch: int, worker: int) -> str:
    sum_ = text.replace("{r+w}", str(rank + worker))
    return sum_.replace("{r}", f"r{rank}").replace("{e}", f"e{epoch}").replace("{w}", f"w{worker}")


def facts(world: int, *loaders: Any, **libraries: Any) -> dict[int, seeds.Facts]:
    """`loaders`: arguments of `draws`, or functions of the rank. `libraries`: functions of the rank."""
    return {
        rank: seeds.Facts(
            function="train.data:loaders",
            libraries={**not_seeded(rank), **{name: of(rank) for name, of in libraries.items()}},
            loaders=[make(rank) for make in loaders],
        )
        for rank in range(world)
    }


def only(drawn: Mapping[str, str], workers: int = 2, **more: Any) -> Any:
    return lambda rank: draws(rank, drawn, workers, **more)


def found(its: Mapping[int, seeds.Facts], **more: Any) -> list[dict[str, Any]]:
    return testing.judge(seeds, its, **more)


def warned(its: Mapping[int, seeds.Facts], **more: Any) -> list[dict[str, Any]]:
    return [finding for finding in found(its, **more) if finding["severity"] != "info"]


def slugs(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["code"].removeprefix("data.seeds.") for finding in findings]


def summary(its: Mapping[int, seeds.Facts]) -> str:
    ranks = tuple(its)
    return seeds.summarize(its, Run(Job("env", len(ranks), "gloo", (Node("node-0", 0, ranks),)), ranks, {}))


EACH_ITS_OWN = "{r}{e}{w}"


@pytest.mark.parametrize("world", [1, 4])
def test_each_worker_may_draw_from_its_own_state(world: int) -> None:
    its = facts(world, only({"torch": EACH_ITS_OWN, "Crops.rng": EACH_ITS_OWN}))
    assert warned(its) == []
    assert summary(its).endswith(f"; {world} x 2 DataLoader workers draw differently in 2 epochs")


def test_where_nothing_is_drawn_nothing_repeats() -> None:
    its = facts(4, only({}), torch=lambda _: torch_seeded(42))
    assert slugs(found(its)) == ["dropout_repeats"]
    said = "torch seeded 42, Python and NumPy not seeded on 4 ranks; no sample draws random numbers"
    assert summary(its) == said


def test_workers_that_are_seeded_alike_are_told_with_the_line_and_once() -> None:
    its = facts(3, only({"NumPy": "1", "Python": "1"}, 4, init=INIT))
    (told,) = warned(its)
    assert told["code"] == "data.seeds.workers_repeat"
    assert told["message"] == (
        "workers draw the same from NumPy and Python on ranks 0-2 in both epochs, and as other ranks do: worker 1 of "
        "rank 0 starts like its worker 0 (1 state at 4 starts of workers, expected 4); seed_worker() (train.py:12) "
        "seeds them"
    )
    assert told["where"] == {"file": "train.py", "line": 12} and "torch.initial_seed()" in told["fix"]
    assert summary(its).endswith("3 x 4 DataLoader workers draw the same (epochs, ranks, workers)")


def test_a_generator_that_is_copied_to_workers_is_named_with_its_class() -> None:
    (told,) = warned(facts(2, only({"Crops.rng": "{r}"}), torch=lambda rank: torch_seeded(rank)))
    assert told["code"] == "data.seeds.workers_repeat" and told["where"] == {"file": "data.py", "line": 3}
    assert "draw the same from Crops.rng on ranks 0-1 in both epochs: worker 1" in told["message"]
    assert told["message"].endswith("it is made with Crops (data.py:3) and copied to each worker")
    assert told["fix"].startswith("Make Crops.rng in worker_init_fn")


def test_a_copied_generator_and_a_seeded_library_are_two_causes() -> None:
    own, library = warned(facts(2, only({"Crops.rng": "1", "Python": "1"}, init=INIT)))
    assert (own["where"]["file"], library["where"]["file"]) == ("data.py", "train.py")


def test_workers_of_one_rank_are_told_with_it() -> None:
    (told,) = warned(facts(3, lambda rank: draws(rank, {"torch": EACH_ITS_OWN if rank != 1 else "{e}"}, init=INIT)))
    assert (told["code"], told["where"]["rank"]) == ("data.seeds.workers_repeat", 1)


def test_a_seed_by_the_workers_number_repeats_on_ranks_and_in_epochs() -> None:
    ranks, epochs = warned(facts(2, only({"Python": "{w}"}, init=INIT)))
    assert (ranks["code"], epochs["code"]) == ("data.seeds.ranks_repeat", "data.seeds.epochs_repeat")
    assert (
        "worker 0 of rank 1 starts like worker 0 of rank 0 (2 states at 4 starts of workers, expected 4)"
        in ranks["message"]
    )
    assert "worker 0 of rank 0 starts epoch 1 as it started epoch 0 (4 states" not in epochs["message"]
    assert "worker 0 of rank 0 starts epoch 1 as it started epoch 0 (2 states at 8 starts" in epochs["message"]
    assert ranks["where"] == epochs["where"] == {"file": "train.py", "line": 12}


def test_ranks_whose_torch_is_seeded_alike_repeat_and_no_line_is_blamed() -> None:
    (told,) = warned(facts(4, only({"torch": "{e}{w}", "NumPy": "{e}{w}"}, init=INIT)))
    assert told["code"] == "data.seeds.ranks_repeat" and told["where"] == {}
    assert told["message"].endswith(
        "(2 states at 8 starts of workers, expected 8); workers are seeded from torch's generator"
    )
    assert "generator=torch.Generator().manual_seed(seed + rank)" in told["fix"]
    (by_its_own,) = warned(facts(4, only({"torch": "{e}{w}"}, seed=7)))
    assert by_its_own["message"].endswith("; workers are seeded from the loader's generator, seeded 7")


def test_ranks_that_share_a_part_of_their_workers_seeds_repeat() -> None:
    (told,) = warned(facts(2, only({"torch": "{e}{r+w}"}, 4)))
    assert (
        "worker 0 of rank 1 starts like worker 1 of rank 0 (5 states at 8 starts of workers, expected 8)"
        in told["message"]
    )


def test_without_workers_the_ranks_themselves_repeat() -> None:
    (told,) = warned(facts(3, only({"Python": "1"}, 0, epochs=1)))
    assert told["code"] == "data.seeds.ranks_repeat" and told["fix"].startswith("Once the model is built")
    assert "draw the same from Python on ranks 0-2: rank 1 starts like rank 0 (1 state on 3 ranks" in told["message"]
    (own,) = warned(facts(3, only({"Crops.rng": "1"}, 0, epochs=1)))
    assert own["fix"] == "Also seed Crops.rng by rank." and "copied" not in own["message"]


def read(orders: list[str], name: str = "", *, given: bool = True) -> dict[str, Any]:
    """Facts of data.sampler: what the ranks have read."""
    return {
        "data.sampler": {
            rank: {"given": given, "readings": [{"name": name, "epochs": [{"order": order}]}]}
            for rank, order in enumerate(orders)
        }
    }


def test_ranks_that_read_the_same_samples_should_draw_alike() -> None:
    """They share a model (tensor parallelism)."""
    pairs = facts(4, lambda rank: draws(rank // 2, {"torch": EACH_ITS_OWN}))
    assert warned(pairs, reads=read(["a", "a", "b", "b"])) == []
    assert slugs(warned(pairs, reads=read(["a", "b", "c", "d"]))) == ["ranks_repeat"]
    assert slugs(warned(pairs, reads=read(["a", "a", "b", "b"], given=False))) == ["ranks_repeat"]
    (told,) = warned(facts(4, only({"torch": "{e}{w}"})), reads=read(["a", "a", "b", "b"]))
    assert (
        "worker 0 of rank 2 starts like worker 0 of rank 0 (2 states at 4 starts of workers, expected 4)"
        in told["message"]
    )


def test_each_of_several_loaders_is_told_by_its_name() -> None:
    its = facts(2, only({"torch": "{e}{w}"}, name="train"), only({}, name="val"), only({"torch": "{r}{w}"}, name="2"))
    ranks, epochs = warned(its)
    assert ranks["message"].startswith("train: ranks draw") and epochs["message"].startswith("loader 2: epochs draw")
    assert "; train: 2 x 2 DataLoader workers draw the same (ranks); val: no sample draws" in summary(its)


def test_what_was_not_seen_is_said() -> None:
    its = facts(2, lambda rank: draws(rank, {"torch": EACH_ITS_OWN}, unseen="train.py:9: ValueError" if rank else ""))
    (told,) = [finding for finding in found(its) if finding["code"] == "data.seeds.not_seen"]
    assert told["message"] == "nothing was seen on rank 1: train.py:9: ValueError" and told["where"]["rank"] == 1
    assert told["not_measured"]
    assert summary(its).endswith("what is drawn was not seen")


# Seeds on all ranks


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("by_rank", [0, 1])
def test_seeds_may_be_alike_or_unlike_on_all(world: int, by_rank: int) -> None:
    its = facts(
        world, torch=lambda rank: torch_seeded(42 + by_rank * rank), Python=lambda rank: seeded(f"{by_rank * rank}")
    )
    assert warned(its) == []
    info = "weights_differ" if by_rank else "dropout_repeats"
    assert slugs(found(its)) == ([info] if world > 1 else [])


@pytest.mark.parametrize(
    ("libraries", "says"),
    [
        (
            {"torch": lambda rank: torch_seeded(7 if rank == 1 else 42)},
            "torch is seeded 7 on rank 1, expected 42 as on 3",
        ),
        (
            {"torch": lambda rank: torch_seeded(9, changed=False) if rank == 1 else torch_seeded(42)},
            "torch is not seeded on rank 1, expected it as on 3 of 4 ranks",
        ),
        (
            {"torch": lambda rank: torch_seeded(42) if rank == 1 else torch_seeded(rank, changed=False)},
            "torch is seeded on rank 1, and not on ranks 0,2-3",
        ),
        (
            {"NumPy": lambda rank: seeded("b" if rank == 1 else "a")},
            "NumPy is seeded differently on rank 1 than on 3 of 4 ranks, expected the same",
        ),
        (
            {"Python": lambda rank: seeded("a", undrawn=False) if rank != 1 else seeded("p", changed=False)},
            "Python is not seeded on rank 1",
        ),
        (
            {name: lambda rank: torch_seeded(7 if rank == 1 else 42) for name in ("torch", "Python")},
            "torch is seeded 7 on rank 1, expected 42 as on 3 of 4 ranks; Python is seeded 7",
        ),
    ],
)
def test_a_rank_that_is_seeded_otherwise_is_named(libraries: Any, says: str) -> None:
    told, *infos = found(facts(4, **libraries))
    assert infos == []
    assert (told["severity"], told["code"], told["where"]["rank"]) == ("warn", "data.seeds.some_differ", 1)
    assert says in told["message"]


def test_of_two_ranks_nobody_is_odd() -> None:
    its = facts(2, torch=lambda rank: torch_seeded(42) if rank else torch_seeded(5, changed=False))
    (told,) = warned(its)
    assert told["message"] == "torch is seeded on rank 1, and not on rank 0" and told["where"] == {}


def test_a_rank_that_has_drawn_more_since_is_no_warning() -> None:
    """Which is not known of Python's, whose seed cannot be asked."""
    its = facts(4, Python=lambda rank: seeded("more" if rank == 0 else "a", undrawn=rank != 0))
    (told,) = found(its)
    assert (told["severity"], told["code"]) == ("info", "data.seeds.some_differ")
    assert told["message"].endswith("on rank 0 than on 3 of 4 ranks, or has drawn differently since")
    (info,) = found(facts(4, torch=lambda rank: torch_seeded(42, drawn="+" if rank == 0 else "")))
    assert "torch is seeded 42 on 4 ranks, but has drawn differently since, so weights" in info["message"]


def test_draws_of_a_generator_that_nobody_has_seeded_are_silent() -> None:
    its = facts(4, Python=lambda rank: seeded(f"d{rank}", changed=rank == 0, undrawn=False))
    assert found(its) == []


def test_what_weights_will_be_is_told() -> None:
    assert found(facts(2)) == []  # it may be seeded later
    (info,) = found(facts(2, torch=lambda rank: torch_seeded(42 + rank)))
    assert "(42 on rank 0, 43 on rank 1), so weights initialized then differ between 2 ranks" in info["message"]


def test_dropout_is_drawn_on_the_gpu_where_there_is_one() -> None:
    its = facts(2, torch=lambda _: torch_seeded(42), CUDA=lambda rank: torch_seeded(rank))
    assert found(its) == []
    its = facts(2, torch=lambda _: torch_seeded(42), CUDA=lambda _: torch_seeded(42))
    assert slugs(found(its)) == ["dropout_repeats"]


def test_many_ranks_are_judged_in_a_few_sentences() -> None:
    (told,) = warned(facts(256, only({"torch": "{e}{w}", "Python": "{e}{w}", "NumPy": "{e}{w}"}, 8)))
    assert "ranks draw the same from NumPy, Python and torch on ranks 0-255" in told["message"]
    assert "(8 states at 2,048 starts of workers, expected 2,048)" in told["message"]
