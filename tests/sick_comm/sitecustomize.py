"""Makes torch.distributed sick in this process, as SICK_COMM says: when the runner of collectives is imported, or the
check of the first one.

Python imports this module by itself where its folder is on PYTHONPATH. Messages of few elements, by which ranks agree,
are left alone.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        deeds = {"preflight.checks.comm.shared.sweep": _DEEDS, "preflight.checks.comm.init": _AT_INIT}.get(name, {})
        for deed in os.environ["SICK_COMM"].split(","):
            if deed in deeds:
                deeds[deed]()


sys.meta_path.insert(0, _AtWork())


# Where a deed takes hold


def _around(name: str, place: int, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> None:
    """On the tensor at this place of an operation's arguments, before it and after it."""
    from torch import distributed as dist

    right = getattr(dist, name)

    def wrong(*arguments: Any, **options: Any) -> Any:
        values = arguments[place]
        if values.numel() < 64:
            return right(*arguments, **options)
        before(values)
        done = right(*arguments, **options)
        after(values)
        return done

    setattr(dist, name, wrong)


def _nothing(_values: Any) -> None:
    pass


def _sends(name: str, change: Callable[[Any], Any], place: int = 0) -> None:
    _around(name, place, change, _nothing)


def _gets(name: str, change: Callable[[Any], Any]) -> None:
    _around(name, 0, _nothing, change)


# What can be done there


def _rank() -> int:
    return int(os.environ["RANK"])


def _world() -> int:
    return int(os.environ["WORLD_SIZE"])


def _as_next(values: Any) -> None:
    """What the next rank sends, unless it is zeros."""
    from preflight.checks.comm.shared import payload_sum

    if bool(values.any()):
        payload_sum.fill(values, (_rank() + 1) % _world(), _world())


def _later(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Of each size and type the first two results are right, and with them the first comparison."""
    times: dict[Any, int] = {}

    def changed(values: Any) -> None:
        kind = values.numel(), values.dtype
        times[kind] = times.get(kind, 0) + 1
        if times[kind] > 2:
            change(values)

    return changed


def _once(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The very first result alone."""
    left = [change]
    return lambda values: left.pop()(values) if left else None


def _hiccup() -> Callable[[Any], None]:
    """The first call that is timed, of 1 MiB, waits."""
    times: dict[Any, int] = {}

    def waits(values: Any) -> None:
        kind = values.nbytes, values.dtype
        times[kind] = times.get(kind, 0) + 1
        if values.nbytes == 2**20 and times[kind] == 2:
            time.sleep(0.5)  # as a process does that has to wait for a core

    return waits


def _half(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """In the second half of a message alone."""

    def changed(values: Any) -> None:
        change(values.view(-1)[values.numel() // 2 :])

    return changed


def _one_more(values: Any) -> None:
    """One element is wrong."""
    values.view(-1)[100] += 1


def _flip(values: Any) -> None:
    """The lowest bit of one element flips."""
    import torch

    values.view({2: torch.int16, 4: torch.int32}[values.element_size()]).view(-1)[100] ^= 1


def _swap(first: int, second: int) -> Callable[[Any], None]:
    """Two ranks' parts change places."""

    def swapped(values: Any) -> None:
        parts = values.view(_world(), -1)
        kept = parts[first].clone()
        parts[first] = parts[second]
        parts[second] = kept

    return swapped


def _roll(values: Any) -> None:
    """Every element one place on."""
    values.copy_(values.roll(1))


def _scatter_of_sum(part: int) -> None:
    """A reduce-scatter made of an all-reduce, of which this rank takes the part of the rank so far behind it."""
    from torch import distributed as dist

    all_reduce = dist.all_reduce  # before another deed changes it

    def reduce_scatter(received: Any, sent: Any, **options: Any) -> None:
        total = sent.clone()
        all_reduce(total, **options)
        received.copy_(total.view(_world(), -1)[(_rank() + part) % _world()])

    setattr(dist, "reduce_scatter_tensor", reduce_scatter)  # noqa: B010 -- its type is another


def _ring_rolled() -> None:
    """What is sent to the next in the ring is one place off."""
    from torch import distributed as dist

    right = dist.batch_isend_irecv

    def rolled(both: Any) -> Any:
        _roll(both[0].tensor)
        return right(both)

    setattr(dist, "batch_isend_irecv", rolled)  # noqa: B010 -- its type is another


def _late() -> None:
    """Each matrix product takes 50 ms more, and on a loaded machine several times as long as it takes there."""
    import torch

    right = torch.mm

    def late(*factors: Any, **options: Any) -> Any:
        start = time.perf_counter()
        product = right(*factors, **options)
        time.sleep(max(0.05, 4 * (time.perf_counter() - start)))  # the fault itself
        return product

    setattr(torch, "mm", late)  # noqa: B010 -- its type is another


def _late_once() -> None:
    """As `late`, until the times of all are gathered."""
    import torch
    from torch import distributed as dist

    right, gather = torch.mm, dist.all_gather_into_tensor
    _late()

    def gathered(*arguments: Any, **options: Any) -> Any:
        setattr(torch, "mm", right)  # noqa: B010 -- its type is another
        return gather(*arguments, **options)

    setattr(dist, "all_gather_into_tensor", gathered)  # noqa: B010 -- its type is another


def _core_shared() -> None:
    """Six processes share the one core that is left to this rank."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    own = os.getpid()
    for _number in range(6):
        if not os.fork():
            while os.getppid() == own:
                pass
            os._exit(0)


def _core_of_its_own() -> None:
    """What else the machine does, does not slow this rank down: as tests/sick/speed_deeds.py has it."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _lacks(name: str) -> None:
    from torch import distributed as dist

    def missing(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError(f"ProcessGroupGloo does not support {name}")

    setattr(dist, name, missing)


_DEEDS: dict[str, Callable[[], None]] = {
    "sum_lost": lambda: _sends("all_reduce", lambda values: values.zero_()),
    "sum_doubled": lambda: _sends("all_reduce", _half(lambda values: values.mul_(2))),
    "sum_of_next": lambda: _sends("all_reduce", _as_next),
    "sum_off": lambda: _gets("all_reduce", _one_more),
    "sum_flipped": lambda: _gets("all_reduce", _flip),
    "sum_sent_off": lambda: _sends("all_reduce", _one_more),
    "scatter_right": lambda: _scatter_of_sum(0),
    "scatter_of_next": lambda: _scatter_of_sum(1),
    "scatter_doubled": lambda: _sends("reduce_scatter_tensor", lambda values: values.mul_(2), 1),
    "gather_sent_rolled": lambda: _sends("all_gather_into_tensor", _roll, 1),
    "gather_swapped": lambda: _gets("all_gather_into_tensor", _swap(0, 2)),
    "nothing": lambda: None,
    "hiccup": lambda: _sends("all_reduce", _hiccup()),
    "gather_off_once": lambda: _gets("all_gather_into_tensor", _once(_one_more)),
    "gather_off": lambda: _gets("all_gather_into_tensor", _one_more),
    "to_all_later": lambda: _gets("all_to_all_single", _later(_one_more)),
    "to_all_swapped": lambda: _sends("all_to_all_single", _swap(0, 2), 1),
    "to_all_got_swapped": lambda: _gets("all_to_all_single", _swap(0, 2)),
    "broadcast_flipped": lambda: _gets("broadcast", _flip),
    "ring_rolled": _ring_rolled,
    "late": _late,
    "late_once": _late_once,
    "core_shared": _core_shared,
    "core_of_its_own": _core_of_its_own,
    "no_all_to_all": lambda: _lacks("all_to_all_single"),
}


def _first_sum_off(*, once: bool = False) -> None:
    """An all-reduce of one element is off by one here."""
    from torch import distributed as dist

    right = dist.all_reduce

    def wrong(values: Any, *arguments: Any, **options: Any) -> None:
        right(values, *arguments, **options)
        values += 1
        if once:
            setattr(dist, "all_reduce", right)  # noqa: B010 -- its type is another

    setattr(dist, "all_reduce", wrong)  # noqa: B010 -- its type is another


def _slow_device() -> None:
    """The first tensor on its device waits for the driver's start."""
    import torch

    right = torch.tensor

    def slow(*arguments: Any, **options: Any) -> Any:
        setattr(torch, "tensor", right)  # noqa: B010 -- its type is another
        time.sleep(4)  # the fault itself
        return right(*arguments, **options)

    setattr(torch, "tensor", slow)  # noqa: B010 -- its type is another


_AT_INIT: dict[str, Callable[[], None]] = {
    "first_sum_off": _first_sum_off,
    "sum_off_once": lambda: _first_sum_off(once=True),
    "slow_device": _slow_device,
}
