"""Random generators: the states of Python's, NumPy's and torch's own, and of those that an object holds.

Nothing here draws a number. NumPy's and CUDA's are read where they are in use only.
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
"""How many an object's own generators are searched for in."""
HOPS = 6
"""From an object over attributes and elements: Subset.dataset, .transform, .transforms, [3], .generator is five."""
ELEMENTS = 32
"""Of a list, a tuple or a dict: those of a dataset may be millions."""
MT19937_WORDS = 624
"""The place that the Mersenne Twister stands at after it was seeded (Python's _randommodule.c, init_by_array; NumPy's
mt19937_seed)."""
TORCH, PYTHON, NUMPY, CUDA = "torch", "Python", "NumPy", "CUDA"


@dataclass(frozen=True)
class State:
    """Of one generator."""

    digest: str
    """Of all that decides what it will draw."""
    seed: int | None
    """Where it tells: torch's and CUDA's do."""
    undrawn: bool
    """Whether it is known that nothing was drawn since it was seeded (but for once in 624 draws)."""
    raw: Any
    """What the library takes back."""


def snapshot() -> dict[str, State]:
    """Of the global generators of this process, by the library's name."""
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
    """Sets the global generators back to what `snapshot` has found."""
    import torch

    random.setstate(states[PYTHON].raw)
    torch.default_generator.set_state(states[TORCH].raw)
    if NUMPY in states:
        sys.modules["numpy"].random.set_state(states[NUMPY].raw)
    if CUDA in states:
        torch.cuda.default_generators[torch.cuda.current_device()].set_state(states[CUDA].raw)


def digests(holders: Mapping[str, object]) -> dict[str, str]:
    """Of the states of the CPU's global generators by library, and of all generators that these objects hold, by
    path: "Crops.transform.generator"."""
    states = {name: state.digest for name, state in snapshot().items() if name != CUDA}
    return {**states, **{path: _digest(_state(generator)) for path, generator in _held(holders)}}


def _held(holders: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Breadth first, each once. The globals of the module of a holder's own class or function count as held."""
    waiting = [(name, holder, 0) for name, holder in holders.items()]
    seen = {id(holder) for holder in holders.values()}
    for path, thing, hops in waiting:  # it grows meanwhile
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
    """No tensor, array, text or number; and no module or class, which lead everywhere. (Asked of its type: an object
    may answer for attributes that it does not have.)"""
    if isinstance(thing, type | ModuleType | FunctionType | str | bytes | int | float | None):
        return False
    return not hasattr(type(thing), "dtype")


def _is_generator(thing: object) -> bool:
    """Whether it is one beside the global ones."""
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
    """Where it is imported: torch does that, where it is installed."""
    return sys.modules.get("numpy")


def _digest(state: object) -> str:
    """The same for equal states in all processes."""
    return digest(json.dumps(state, default=lambda array: array.tolist()))


def digest(text: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
