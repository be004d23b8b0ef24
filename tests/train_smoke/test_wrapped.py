"""What of a model is wrapped, what a rank holds of it, and what that takes."""

import pytest
import torch
from torch import nn

from preflight.train_smoke.trainer import memory, model, wrapped
from preflight.train_smoke.trainer.wrapped import Wrapped

CPU = torch.device("cpu")


class Holder(nn.Module):
    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        for place, module in enumerate(inside):
            self.add_module(f"part{place}", module)


def linears(count: int) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


def test_the_transformers_blocks_are_wrapped() -> None:
    plain = model.new(CPU)
    assert wrapped.blocks(plain) == list(plain.blocks)


@pytest.mark.parametrize(
    ("plain", "count"),
    [
        (nn.Linear(2, 2), 0),
        (Holder(nn.ModuleList(linears(3))), 3),
        (Holder(nn.Sequential(*linears(2))), 2),
        (Holder(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), 0),
        (Holder(nn.Sequential(nn.ReLU(), nn.ReLU())), 0),
        (Holder(nn.ModuleList([nn.ReLU()])), 0),
        (Holder(nn.ModuleList([nn.Sequential(*linears(2))])), 1),
        (Holder(nn.ModuleList([nn.ModuleList(linears(2))])), 2),
        (Holder(nn.ModuleDict({"a": nn.Linear(2, 2)})), 0),
    ],
)
def test_blocks_of_any_model(plain: nn.Module, count: int) -> None:
    """The outermost, and no container."""
    assert len(wrapped.blocks(plain)) == count


def test_a_block_that_shares_a_weight_is_not_wrapped() -> None:
    one, other, third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    assert wrapped.blocks(Holder(nn.ModuleList([one, other, third]))) == [third]


@pytest.mark.parametrize(("ranks", "shards"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 2), (7, 7), (8, 2), (9, 3), (16, 4)])
def test_shards_divide_the_ranks(ranks: int, shards: int) -> None:
    assert wrapped.shards(ranks) == shards


def test_biases_and_norms_do_not_decay() -> None:
    plain = model.new(CPU)
    decaying, kept = Wrapped(plain, plain).groups()
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    assert {names[id(parameter)].rpartition(".")[2] for parameter in decaying} == {"weight"}
    assert all("norm" in names[id(parameter)] or names[id(parameter)].endswith("bias") for parameter in kept)
    assert len(decaying) == 15 and len(decaying) + len(kept) == len(names)


@pytest.mark.parametrize(("ranks", "size"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 5), (6, 3), (8, 4), (9, 3), (11, 1),
                                             (12, 6), (16, 8), (1024, 8)])  # fmt: skip
def test_experts_have_replicas_from_four_ranks_on(ranks: int, size: int) -> None:
    from preflight.train_smoke.strategies import expert

    assert expert.group_size(ranks) == size


def test_a_plain_name_has_nothing_of_the_wrappers() -> None:
    name = "_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module.up.weight"
    assert wrapped.plain_name(name) == "blocks.0.up.weight"


@pytest.mark.parametrize(("adamw", "copies"), [(False, 3), (True, 4)])
def test_what_is_held_is_parameters_gradients_and_state(adamw: bool, copies: int) -> None:
    plain = nn.Linear(8, 16, bias=False)
    whole = Wrapped(plain, plain)
    made = whole.parameters()
    optimizer = torch.optim.AdamW(made) if adamw else torch.optim.SGD(made, momentum=0.9)
    assert whole.held(optimizer) == 8 * 16 * 4
    plain(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    counters = 4 if adamw else 0
    assert whole.held(optimizer) == copies * 8 * 16 * 4 + counters


def test_a_peak_is_seen_after_it_is_over() -> None:
    probe = memory.PeakWatch(CPU)
    with probe.on():
        torch.ones(64 * memory.MIB // 4)
    seen = probe.memory(7)
    resident = seen["resident"]
    assert resident is not None and 60 * memory.MIB < resident < 200 * memory.MIB and resident % memory.MIB == 0
    assert (seen["held"], seen["allocated"], seen["reserved"]) == (7, None, None)


def test_what_is_taken_while_the_probe_is_off_is_not_counted() -> None:
    probe = memory.PeakWatch(CPU)
    torch.ones(64 * memory.MIB // 4)
    with probe.on():
        pass
    resident = probe.memory(0)["resident"]
    assert resident is not None and resident < 30 * memory.MIB


def test_pages_that_a_training_before_has_left_are_counted_again() -> None:
    """20 MiB of small tensors, under one that stays: the heap keeps such pages."""
    before = [torch.ones(1024) for _ in range(5 * 1024)]
    stays = before[-1]
    before.clear()
    probe = memory.PeakWatch(CPU)
    with probe.on():
        again = [torch.ones(1024) for _ in range(5 * 1024)]
    resident = probe.memory(0)["resident"]
    assert resident is not None and resident > 10 * memory.MIB and len(again) and len(stays)


def test_a_probe_that_was_never_on_knows_nothing() -> None:
    assert memory.PeakWatch(CPU).memory(0)["resident"] is None
