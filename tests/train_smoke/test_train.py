"""The smoke trainer alone, and under DDP in a world of one. Larger worlds: tests/checks/train/test_ddp.py."""

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from preflight.train_smoke import compare, model, train
from preflight.train_smoke.compare import LEAST

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _ready() -> Iterator[None]:
    train.import_dynamo()
    with train.plain_arithmetic():
        yield


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    store = dist.HashStore()  # type: ignore[attr-defined]  # not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert dist.group.WORLD
    yield dist.group.WORLD
    dist.destroy_process_group()


# The batch


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 31, 32, 100])
def test_the_mean_over_the_ranks_is_that_over_the_batch(ranks: int) -> None:
    """Also where sequences occur on several ranks, and not equally often."""
    network = model.new(CPU)
    batches = [train.batch_for(rank, ranks, CPU) for rank in range(ranks)]
    mean = sum(train._loss(network, batch.own).item() for batch in batches) / ranks
    for batch in (batches[0], batches[-1]):
        assert train._loss(network, batch.whole).item() == pytest.approx(mean, rel=1e-6)
        assert sum(train._loss(network, part).item() for part in batch.parts) == pytest.approx(mean, rel=1e-6)
        assert len(batch.whole.tokens) == sum(len(part.tokens) for part in batch.parts) <= 62
        assert torch.equal(batch.parts[-1].tokens, batch.own.tokens)


def test_31_ranks_have_sequences_of_their_own() -> None:
    rows = [tuple(row.tolist()) for rank in range(40) for row in train.batch_for(rank, 40, CPU).own.tokens]
    assert len(set(rows[:62])) == 62
    assert rows[62:] == rows[: 2 * 9]


def test_a_batch_of_8192_ranks_is_no_larger() -> None:
    batch = train.batch_for(8191, 8192, CPU)
    assert len(batch.whole.tokens) == 62
    assert float(batch.whole.weights.sum()) == pytest.approx(1.0)


# Training alone


def test_it_learns_and_repeats_itself() -> None:
    batch = train.batch_for(0, 2, CPU)
    once, again = (train.train([batch.whole], CPU) for _ in range(2))
    assert once.curve == again.curve
    losses = [loss for loss in once.curve["losses"] if isinstance(loss, float)]
    assert len(losses) == train.STEPS and losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("ranks", [2, 5, 31])
def test_the_batch_in_parts_trains_like_the_whole(ranks: int) -> None:
    batch = train.batch_for(1, ranks, CPU)
    whole, in_parts = train.train([batch.whole], CPU), train.train(batch.parts, CPU)
    spread = compare.spread(in_parts.curve, whole.curve, train.furthest_end(in_parts, whole))
    assert 0 < spread.curves < LEAST.curves and 0 < spread.parameters < LEAST.parameters
    assert in_parts.curve["losses"] != whole.curve["losses"]
    first = train.furthest_gradient(in_parts, whole)["off"]
    assert isinstance(first, float) and 0 < first < 1e-4


def test_the_own_gradient_is_that_of_the_own_part_alone() -> None:
    batch = train.batch_for(1, 3, CPU)
    in_parts, own = train.train(batch.parts, CPU).curve, train.train([batch.own], CPU).curve
    for quantity in ("losses", "own_norms", "own_prints"):
        assert in_parts[quantity][0] == pytest.approx(own[quantity][0], rel=1e-5, abs=1e-6)
    assert own["own_norms"] == pytest.approx(own["norms"], rel=1e-6)


def test_a_gradient_that_is_no_number_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.Transformer.forward
    monkeypatch.setattr(model.Transformer, "forward", lambda self, tokens: forward(self, tokens) * float("inf"))
    batch = train.batch_for(0, 1, CPU)
    trained = train.train([batch.whole], CPU)
    assert {*trained.curve["losses"], *trained.curve["norms"]} == {"nan"}
    assert train.furthest_end(trained, trained)["off"] == "nan"


# What it leaves


def test_randomness_and_settings_stay_as_they_were() -> None:
    torch.manual_seed(77)
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    with contextlib.suppress(KeyError), train.plain_arithmetic():
        assert torch.get_float32_matmul_precision() == "highest" and torch.get_num_threads() == 1
        train.train([train.batch_for(0, 1, CPU).whole], CPU)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_float32_matmul_precision() == "high" and torch.get_num_threads() == 2
    assert torch.get_default_dtype() == torch.float32 and gc.isenabled()
    torch.set_float32_matmul_precision("highest")


def test_a_world_of_one_under_ddp_trains_as_alone_and_leaves_nothing(group: dist.ProcessGroup) -> None:
    batch = train.batch_for(0, 1, CPU)
    made: list[weakref.ref[nn.Module]] = []

    def strategy(plain: nn.Module, mark: train.Mark) -> nn.Module:
        wrapped = train.ddp(group)(plain, mark)
        assert isinstance(wrapped, DistributedDataParallel)
        made.extend([weakref.ref(plain), weakref.ref(wrapped)])
        return wrapped

    gc.disable()  # what only the garbage collector frees would keep a GPU's memory for a while
    try:
        under, alone = train.train([batch.own], CPU, strategy), train.train([batch.whole], CPU)
        assert [left() for left in made] == [None, None]
    finally:
        gc.enable()
    assert under.curve == alone.curve
    assert threading.active_count() == 1


# Where it waits for others


def test_marks_are_set_where_a_rank_waits_for_others_only(group: dist.ProcessGroup) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def mark(operation: str, step: str) -> Iterator[None]:
        seen.append(f"{operation} {step}".strip())
        yield
        seen.append("left")

    def strategy(plain: nn.Module, mark: train.Mark) -> nn.Module:
        wrapped = train.ddp(group)(plain, mark)
        assert isinstance(plain, model.Transformer)
        for parameter in (plain.head.weight, plain.tokens.weight, plain.positions.weight):  # the first and the last
            parameter.register_hook(lambda _: seen.append("own"))  # type: ignore[no-untyped-call]
        return wrapped

    train.train([train.batch_for(0, 1, CPU).own], CPU, strategy, mark)
    steps = [
        word
        for step in range(train.STEPS)
        for word in (f"DDP forward step {step}", "left", *["own"] * 3, f"DDP all-reduce step {step}", "left")
    ]
    assert seen == ["DDP start", "left", *steps]


def test_an_exception_of_the_own_backward_pass_is_not_from_a_collective(group: dist.ProcessGroup) -> None:
    """So that the rank is not taken for a victim."""
    inside: list[str] = []

    @contextlib.contextmanager
    def mark(operation: str, _step: str) -> Iterator[None]:
        inside.append(operation)
        yield
        inside.pop()

    def strategy(plain: nn.Module, mark: train.Mark) -> nn.Module:
        wrapped = train.ddp(group)(plain, mark)
        next(plain.parameters()).register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
        return wrapped

    with pytest.raises(ZeroDivisionError):
        train.train([train.batch_for(0, 1, CPU).own], CPU, strategy, mark)
    assert inside == []
