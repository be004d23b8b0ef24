"""The training alone, how it is held against another one, and what it leaves."""

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from preflight.train_smoke.trainer import model, names, reference, repeated, task
from preflight.train_smoke.trainer.compare import MOMENTS, Curve
from preflight.train_smoke.trainer.task import Recipe, TrainingTask
from preflight.train_smoke.trainer.train import KeptTensors, TensorComparison, Trained
from preflight.train_smoke.trainer.wrapped import ShardRange, Wrapped

CPU = torch.device("cpu")
NAMES = ("up.weight", "down.weight")


@pytest.fixture(scope="module", autouse=True)
def _ready() -> Iterator[None]:
    task.import_dynamo()
    with task.deterministic_arithmetic():
        yield
    reference._made.clear()


def built_in(rank: int, ranks: int) -> TrainingTask:
    return task.built_in(rank, ranks, CPU)


# Tensors held against others


def kept() -> KeptTensors:
    random = torch.Generator().manual_seed(3)
    start, gradient, end, state, own = ({name: torch.randn(4, 3, generator=random) for name in NAMES} for _ in range(5))
    state = {f"{name} momentum_buffer": value for name, value in state.items()}
    return KeptTensors(start, gradient, end, state, own)


def compared(
    expected: KeptTensors, moment: str, values: dict[str, Tensor], places: dict[str, ShardRange] | None = None
) -> TensorComparison:
    comparison = TensorComparison(expected, places or {})
    comparison.see(moment, iter(values.items()))
    return comparison


def changed(
    expected: KeptTensors, moment: str, name: str, by: float, element: tuple[int, int] = (2, 1)
) -> dict[str, Tensor]:
    values = {gradient: tensor.clone() for gradient, tensor in expected.at(moment).items()}
    values[name][element] += by
    return values


def test_a_training_is_not_apart_from_itself() -> None:
    expected = kept()
    comparison = TensorComparison(expected, {name: ShardRange(0, 6) for name in NAMES})
    for moment in MOMENTS:
        comparison.see(moment, iter(expected.at(moment).items()))
    seen = comparison.apart()
    assert {moment: found["off"] for moment, found in seen["whole"].items()} == dict.fromkeys(MOMENTS, 0.0)
    assert {moment: found["off"] for moment, found in seen["own"].items()} == dict.fromkeys(MOMENTS, 0.0)
    assert seen["along"] is None


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_element_that_differs_is_found(moment: str) -> None:
    """By the tensor's largest element, and at the end by the longest way."""
    expected = kept()
    name = "down.weight momentum_buffer" if moment == "state" else "down.weight"
    found = compared(expected, moment, changed(expected, moment, name, 1e-3)).apart()["whole"][moment]
    by = expected.at(moment)[name] - (expected.start[name] if moment == "end" else 0)
    assert found["parameter"] == name
    assert found["off"] == pytest.approx(1e-3 / float(by.abs().max()), rel=1e-3)


def test_a_tensor_that_is_missing_or_not_expected_is_infinitely_far() -> None:
    expected = kept()
    text = {"up.weight": expected.gradient["up.weight"]}
    assert compared(expected, "gradient", text).apart()["whole"]["gradient"]["off"] == "inf"
    more = {**expected.gradient, "new.weight": torch.tensor([0.0, 1.0])}
    found = compared(expected, "gradient", more).apart()["whole"]["gradient"]
    assert (found["parameter"], found["off"]) == ("new.weight", "inf")
    nothing = {**expected.gradient, "new.weight": torch.zeros(2)}
    assert compared(expected, "gradient", nothing).apart()["whole"]["gradient"]["off"] == 0.0


def test_what_is_no_number_is_furthest() -> None:
    expected = kept()
    values = changed(expected, "end", "down.weight", math.nan)
    values["up.weight"] += 100.0
    found = compared(expected, "end", values).apart()["whole"]["end"]
    assert (found["parameter"], found["off"]) == ("down.weight", "nan")


@pytest.mark.parametrize(("element", "is_own"), [((0, 0), False), ((1, 2), True), ((2, 2), True), ((3, 0), False)])
def test_the_own_piece_is_looked_at_by_itself(element: tuple[int, int], is_own: bool) -> None:
    """Elements 5 to 8 of 12 are this rank's."""
    expected = kept()
    places = {name: ShardRange(5, 4) for name in NAMES}
    seen = compared(expected, "gradient", changed(expected, "gradient", "up.weight", 0.1, element), places).apart()
    off = seen["own"]["gradient"]["off"]
    assert (off == seen["whole"]["gradient"]["off"]) is is_own and (off == 0.0) is not is_own


def test_a_share_that_weighs_too_much_is_a_multiple_of_the_own_gradient() -> None:
    expected = kept()
    values = {name: tensor + 0.001 * expected.own[name] for name, tensor in expected.gradient.items()}
    along = compared(expected, "gradient", values).apart()["along"]
    assert along and along["times"] == pytest.approx(0.001, rel=1e-2) and along["share"] == pytest.approx(1.0, abs=1e-2)


def test_another_fault_is_none() -> None:
    expected = kept()
    along = compared(expected, "gradient", changed(expected, "gradient", "up.weight", 0.1)).apart()["along"]
    assert along and isinstance(along["share"], float) and along["share"] < 0.5


def test_a_digest_tells_the_last_bit() -> None:
    one, other = kept(), kept()
    assert bits(one) == bits(other)
    value = other.end["up.weight"]
    value[0, 0] = torch.nextafter(value[0, 0], torch.tensor(9.0))
    assert [name for name, digest in bits(one).items() if bits(other)[name] != digest] == ["end up.weight"]


def bits(training: KeptTensors) -> dict[str, str]:
    """Digests by moment and name."""
    return dict(repeated.bits(Curve(losses=[], own_norms=[], own_prints=[], norms=[], prints=[]), training)["tensors"])


# Training alone


def test_it_learns_and_repeats_itself() -> None:
    alone = [reference.alone(built_in(0, 2), Recipe(), whole=True) for _ in range(2)]
    assert alone[0].curve == alone[1].curve and bits(alone[0].kept) == bits(alone[1].kept)
    losses = [float(loss) for loss in alone[0].curve["losses"]]
    assert len(losses) == names.STEPS and losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2


RECIPES = (Recipe(), Recipe("clip", clip=0.5), Recipe("adamw", adamw=True), Recipe("uneven", uneven=True))
COARSE = (Recipe("autocast", autocast=True), Recipe("mixed", mixed=True))


@pytest.mark.parametrize("recipe", [*RECIPES, *COARSE], ids=lambda recipe: str(recipe.name))
def test_the_spread_is_that_of_the_arithmetic(recipe: Recipe) -> None:
    """Roundings of float32 have 6e-8, those of bfloat16 4e-3."""
    spread = reference.of(built_in(1, 3), recipe).spread
    least, most = (1e-4, 0.1) if recipe.bfloat16 else (6e-8, 5e-6)
    assert least < float(spread["curves"]) < most and least < float(spread["gradient"]) < most
    assert float(spread["end"]) < 0.1


def test_recipes_train_unlike_each_other() -> None:
    kept_of = [reference.of(built_in(1, 3), recipe).kept for recipe in (*RECIPES, *COARSE)]
    assert len({str(bits(training)) for training in kept_of}) == len(kept_of)


def test_clipping_is_to_the_share_of_the_first_norm() -> None:
    """With plain SGD's first step as the measure: half of the gradient goes half of the way."""
    plain, clip = (reference.of(built_in(1, 3), recipe).kept for recipe in (Recipe(), Recipe("clip", clip=0.5)))
    for name, gradient in plain.gradient.items():
        assert torch.equal(gradient, clip.gradient[name])
    momentum = "head.weight momentum_buffer"
    assert not torch.equal(plain.state[momentum], clip.state[momentum])


def test_each_step_is_clipped_to_the_share_of_the_first_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []

    def clip(_: Wrapped, norm: float) -> Tensor:
        norms.append(norm)
        return torch.tensor(norm)

    monkeypatch.setattr(Wrapped, "clip", clip)
    trained = reference.of(built_in(0, 2), Recipe("clip_twice", clip=0.25))
    first, last = float(trained.curve["norms"][0]), float(trained.curve["norms"][-1])
    assert norms == pytest.approx([0.25 * first] * len(norms), rel=1e-4) and last < 0.9 * first


def test_it_is_trained_once_for_all_strategies() -> None:
    assert reference.of(built_in(1, 3), Recipe()) is reference.of(built_in(1, 3), Recipe())


def test_the_own_gradient_is_that_of_the_own_part_alone() -> None:
    for rank in range(3):
        own = reference.of(built_in(rank, 3), Recipe())
        norm = math.sqrt(sum(float(part.norm()) ** 2 for part in own.kept.own.values()))
        assert own.curve["own_norms"][0] == pytest.approx(norm * 3, rel=1e-5)  # it goes into the mean of 3
    gradients = [reference.of(built_in(rank, 3), Recipe()).kept for rank in range(3)]
    for name, mean in gradients[0].gradient.items():
        torch.testing.assert_close(sum(gradient.own[name] for gradient in gradients), mean, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_no_number_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.Transformer.forward
    monkeypatch.setattr(model.Transformer, "forward", lambda self, tokens: forward(self, tokens) * float("inf"))
    trained: Trained = reference.alone(built_in(0, 1), Recipe())
    assert {*trained.curve["losses"], *trained.curve["norms"]} == {"nan"}


# What it leaves


def test_randomness_and_settings_stay_as_they_were() -> None:
    torch.manual_seed(77)
    torch.set_float32_matmul_precision("high")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    with contextlib.suppress(KeyError), task.deterministic_arithmetic():
        assert torch.get_float32_matmul_precision() == "highest" and torch.get_num_threads() == 1
        reference.alone(built_in(0, 1), Recipe())
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_float32_matmul_precision() == "high" and torch.get_num_threads() == 2
    assert torch.get_default_dtype() == torch.float32 and gc.isenabled()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads)


def test_threads_may_stay_as_they_are() -> None:
    before = torch.get_num_threads()
    with task.deterministic_arithmetic(replace(built_in(0, 1), threads=None).threads):
        assert torch.get_num_threads() == before
