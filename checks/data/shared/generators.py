"""States of random generators: Python's, NumPy's and torch's global ones, and those that an object holds.

Nothing here draws a number. NumPy's and CUDA's are only read if in use.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

OBJECTS = 1_000
"""The most objects to search for generators."""
HOPS = 6
"""The longest path over attributes and elements: Subset.dataset, .transform, .transforms, [3], .generator is five."""
ELEMENTS = 32
"""The most elements of a list, tuple or dict to search: a dataset may have millions."""
MT19937_WORDS = 624
"""The Mersenne Twister's position after seeding (Python's _randommodule.c, init_by_array; NumPy's mt19937_seed)."""
TORCH, PYTHON, NUMPY, CUDA = "torch", "Python", "NumPy", "CUDA"


@dataclass(frozen=True)
class State:
    digest: str
    """A digest of all that determines what it will draw."""
    seed: int | None
    """The seed, if it is known: torch's and CUDA's are."""
    undrawn: bool
    """Whether nothing was drawn since it was seeded (wrong once in 624 draws)."""
    raw: Any
    """The state in the library's own form, for restoring."""


def snapshot() -> dict[str, State]:
    """States of this process's global generators, by library."""
    import torch

    python = random.getstate()
    found = {
        PYTHON: State(_digest(python), None, python[1][-1] == MT19937_WORDS, python),
        TORCH: _of_torch(torch.default_generator),
    }
    if (numpy := _numpy()) is not None:
        state = numpy.random.get_state(legacy=False)
        found[NUMPY] = State(_digest(state), None, state["state"].get("pos") == MT19937_WORDS, state)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found[CUDA] = _of_torch(torch.cuda.default_generators[torch.cuda.current_device()])
    return found


def restore(states: Mapping[str, State]) -> None:
    """Restores the global generators to what `snapshot` returned."""
    import torch

    random.setstate(states[PYTHON].raw)
    torch.default_generator.set_state(states[TORCH].raw)
    if NUMPY in states:
        sys.modules["numpy"].random.set_state(states[NUMPY].raw)
    if CUDA in states:
        torch.cuda.default_generators[torch.cuda.current_device()].set_state(states[CUDA].raw)


def digests(holders: Mapping[str, object]) -> dict[str, str]:
    """State digests of the CPU's global generators by library, and of all generators that these objects hold, by path:
    "Crops.transform.generator"."""
    states = {name: state.digest for name, state in snapshot().items() if name != CUDA}
    return {**states, **{path: _digest(_state(generator)) for path, generator in _held(holders)}}


def _held(holders: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """(path, generator), breadth first, each once. Globals in the module of a holder's class or function count."""
    waiting = [(name, holder, 0) for name, holder in holders.items()]
    seen = {id(holder) for holder in holders.values()}
    for path, thing, hops in waiting:  # the list grows meanwhile
        if _is_generator(thing):
            yield path, thing
            continue
        for name, inner in _inner(path, thing, is_holder=not hops):
            if id(inner) not in seen and hops < HOPS and len(waiting) < OBJECTS and _may_hold(inner):
                seen.add(id(inner))
                waiting.append((name, inner, hops + 1))


def _inner(path: str, thing: object, is_holder: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, list | tuple):
        yield from ((f"{path}[{place}]", inner) for place, inner in enumerate(thing[:ELEMENTS]))
        return
    if isinstance(thing, dict):
        keys = [key for key, _ in zip(thing, range(ELEMENTS), strict=False)]
        yield from ((f"{path}[{key!r}]", thing[key]) for key in keys)
        return
    attributes = vars(thing) if hasattr(thing, "__dict__") else {}
    yield from ((f"{path}.{name}", inner) for name, inner in list(attributes.items()))
    if isinstance(thing, MethodType):
        yield type(thing.__self__).__name__, thing.__self__
    if is_holder:
        of = thing if isinstance(thing, FunctionType) else type(thing)
        module = sys.modules.get(getattr(of, "__module__", None) or "")
        names = vars(module).items() if module is not None else ()
        yield from ((f"{of.__module__}.{name}", inner) for name, inner in list(names) if _is_generator(inner))


def _may_hold(thing: object) -> bool:
    """False for tensors, arrays, texts and numbers, and for modules and classes, which lead everywhere. (Checks the
    type: an object may pretend to have attributes.)"""
    if isinstance(thing, type | ModuleType | FunctionType | str | bytes | int | float | None):
        return False
    return not hasattr(type(thing), "dtype")


def _is_generator(thing: object) -> bool:
    import torch

    if isinstance(thing, torch.Generator):
        return thing.device.type == "cpu" and thing is not torch.default_generator
    numpy = _numpy()
    if numpy is not None and thing is numpy.random.mtrand._rand:
        return False
    kinds = (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator) if numpy is not None else ()
    return isinstance(thing, (random.Random, *kinds)) and not isinstance(thing, random.SystemRandom)


def _state(generator: Any) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator
        return generator.bit_generator.state
    if hasattr(generator, "initial_seed"):  # torch.Generator
        return generator.get_state().tolist()
    return generator.state if hasattr(generator, "state") else generator.get_state(legacy=False)


def _of_torch(generator: Any) -> State:
    state = generator.get_state()
    return State(_digest(state.tolist()), generator.initial_seed(), False, state)


def _numpy() -> Any:
    """NumPy, if it is imported: torch does that if it is installed."""
    return sys.modules.get("numpy")


def _digest(state: object) -> str:
    """Equal for equal states, in all processes."""
    return digest(json.dumps(state, default=lambda array: array.tolist()))


def digest(text: str) -> str:
    """A digest of 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
