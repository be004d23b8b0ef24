"""What is seen of gradients, and where a rank waits for others."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from preflight.train_smoke.trainer.gradient_watch import GradientWatch, Signs, together
from preflight.train_smoke.trainer.wrapped import unmarked


def small() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def backward(watch: GradientWatch, plain: nn.Module, data: torch.Tensor) -> None:
    watch.forward()
    with watch.waiting:
        plain(data).square().sum().backward()


def test_the_print_of_a_gradient_is_one_of_its_elements() -> None:
    signs = Signs(plain := small())
    gradient = torch.randn(4, 3)
    norm, print_ = together([signs.norm_and_print("0.weight", gradient)])
    assert norm == pytest.approx(float(gradient.norm()))
    gradient[1, 2] = -gradient[1, 2]  # the norm stays
    again, other = together([signs.norm_and_print("0.weight", gradient)])
    assert again == pytest.approx(norm) and abs(other - print_) == pytest.approx(2 * float(gradient[1, 2].abs()))
    assert together([Signs(plain).norm_and_print("0.weight", gradient)]) == (again, other)


def test_the_prints_of_parts_add_up() -> None:
    signs, (one, other) = Signs(small()), torch.randn(2, 4, 3)
    prints = [together([signs.norm_and_print("0.weight", part)])[1] for part in (one, other, one + other)]
    assert prints[0] + prints[1] == pytest.approx(prints[2], rel=1e-5, abs=1e-5)


def test_a_gradient_in_half_precision_has_a_norm_beyond_it() -> None:
    gradient = torch.full((4, 3), 60_000.0, dtype=torch.float16)
    norm, _ = together([Signs(small()).norm_and_print("0.weight", gradient)])
    assert norm == pytest.approx(60_000.0 * 12**0.5, rel=1e-3)


def test_nothing_has_no_norm() -> None:
    assert together([]) == (0.0, 0.0)


def test_the_own_gradient_is_what_backward_makes_and_not_what_has_been_added_up() -> None:
    plain = small()
    watch = GradientWatch(plain, Signs(plain), unmarked)
    for parameter in plain.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    watch.begin(0)
    backward(watch, plain, torch.ones(1, 3))
    made = [p.grad - 100.0 for p in plain.parameters() if p.grad is not None]
    own = watch.own()
    assert own and own[0] == pytest.approx(float(torch.cat([of_rank.flatten() for of_rank in made]).norm()), rel=1e-4)


def test_pieces_of_a_step_add_up_and_a_new_step_begins_at_nothing() -> None:
    plain = small()
    watch = GradientWatch(plain, Signs(plain), unmarked)
    watch.begin(0)
    backward(watch, plain, torch.ones(1, 3))
    once = watch.own()
    backward(watch, plain, torch.ones(1, 3))
    twice = watch.own()
    watch.begin(1)
    backward(watch, plain, torch.ones(1, 3))
    assert once and twice and twice[1] == pytest.approx(2 * once[1]) and watch.own() == once


def test_a_gradient_that_was_not_made_is_not_guessed() -> None:
    plain = small()
    watch = GradientWatch(plain, Signs(plain), unmarked)
    watch.begin(0)
    watch.forward()
    plain[0](torch.ones(1, 3)).sum().backward()  # type: ignore[index]  # a Sequential
    assert watch.own() is None


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


def test_a_tied_parameter_is_seen_once_with_all_of_its_gradient() -> None:
    plain = Tied()
    watch = GradientWatch(plain, Signs(plain), unmarked)
    watch.begin(0)
    backward(watch, plain, torch.ones(1, 3))
    grad = plain.first.weight.grad
    own = watch.own()
    assert own and grad is not None and own[0] == pytest.approx(float(grad.norm()), rel=1e-5)


class Torn(nn.Module):
    """Uses a weight twice, each time by another tensor, as FSDP1 does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.layer._parameters["weight"]
        assert whole is not None
        for _ in range(2):
            del self.layer._parameters["weight"]
            self.layer._parameters["weight"] = nn.Parameter(whole.detach().clone())
            x = self.layer(x)
        self.layer._parameters["weight"] = whole
        return x


def test_a_gradient_that_comes_in_pieces_is_not_taken_for_the_whole() -> None:
    plain = Torn()
    watch = GradientWatch(plain, Signs(plain), unmarked)
    watch.begin(0)
    backward(watch, plain, torch.ones(1, 3))
    assert watch.own() is None


def test_a_rank_waits_before_forward_before_a_unit_and_once_all_gradients_are_made() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def mark(operation: str, step: str) -> Iterator[None]:
        seen.append(f"{operation} {step}")
        yield
        seen.append("left")

    plain = small()
    watch = GradientWatch(plain, Signs(plain), mark)
    watch.waits_at(plain[1])  # type: ignore[index]  # a Sequential
    for parameter in plain.parameters():
        parameter.register_hook(lambda _: seen.append("own"))  # type: ignore[no-untyped-call]
    watch.begin(3)
    backward(watch, plain, torch.ones(1, 3))
    forward = ["forward step 3", "left"]
    assert seen == [*forward, *forward, *["own"] * 4, "gradients step 3", "left"]


def test_an_exception_of_the_own_backward_pass_is_not_from_a_collective() -> None:
    """So that the rank is not taken for a victim."""
    inside: list[str] = []

    @contextlib.contextmanager
    def mark(operation: str, _step: str) -> Iterator[None]:
        inside.append(operation)
        yield
        inside.pop()

    plain = small()
    watch = GradientWatch(plain, Signs(plain), mark)
    next(plain.parameters()).register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
    watch.begin(0)
    with pytest.raises(ZeroDivisionError):
        backward(watch, plain, torch.ones(1, 3))
    assert inside == []
