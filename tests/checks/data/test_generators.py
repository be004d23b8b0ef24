"""States of random generators, and those that an object holds."""

import random
from types import SimpleNamespace
from typing import Any

import torch

from preflight.checks.data.shared import generators

_A_GLOBAL = random.Random(1)


class Holder:
    pass


def test_a_snapshot_changes_nothing_and_is_restored() -> None:
    states = generators.snapshot()
    drawn = [random.random(), torch.rand(1).item()]
    assert generators.snapshot() != states
    generators.restore(states)
    assert generators.digests({}) == {name: state.digest for name, state in states.items()}
    assert [random.random(), torch.rand(1).item()] == drawn


def test_equal_seeds_make_equal_states_and_torch_tells_its_own() -> None:
    before = generators.snapshot()
    random.seed(5)
    torch.manual_seed(5)
    first = generators.snapshot()
    random.random()
    torch.rand(1)
    second = generators.snapshot()
    random.seed(5)
    torch.manual_seed(5)
    third = generators.snapshot()
    generators.restore(before)
    for name in (generators.PYTHON, generators.TORCH):
        assert first[name].digest == third[name].digest != second[name].digest
    assert first["torch"].seed == second["torch"].seed == 5
    assert first["Python"].undrawn and not second["Python"].undrawn


def _held(**attributes: Any) -> set[str]:
    holder = Holder()
    vars(holder).update(attributes)
    return set(generators.digests({"Crops": holder})) - {"torch", "Python", "NumPy"} - {f"{__name__}._A_GLOBAL"}


def test_generators_that_an_object_holds_are_found_by_their_paths() -> None:
    own = torch.Generator().manual_seed(1)
    nested = SimpleNamespace(transforms=[None, SimpleNamespace(rng=random.Random(1))])
    assert _held(generator=own, same=own) == {"Crops.generator"}
    assert _held(transform=nested, table={"a": random.Random(2)}) == {
        "Crops.transform.transforms[1].rng", "Crops.table['a']"
    }  # fmt: skip
    assert _held(state=torch.default_generator, system=random.SystemRandom(), kind=random.Random) == set()


def test_globals_of_the_holders_module_are_held() -> None:
    def collate() -> None: ...

    for holder in (Holder(), collate):
        assert f"{__name__}._A_GLOBAL" in generators.digests({"it": holder})


def test_the_search_ends() -> None:
    """In a ring, in millions of samples, in an object that has an answer to everything."""

    class Answers:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"it was asked for {name}")

    ring: dict[str, Any] = {"rng": random.Random(1)}
    ring["ring"] = ring
    assert _held(ring=ring) == {"Crops.ring['rng']"}
    samples = [SimpleNamespace(label=number) for number in range(100_000)]
    assert _held(samples=samples, wide=dict.fromkeys(range(100_000), Answers()), text="text") == set()
