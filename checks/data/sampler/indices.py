"""Samples by index: reads an epoch from a sampler or batch sampler, without loading any data."""

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from preflight.checks.data.sampler.epoch import Ids
from preflight.checks.data.shared import digests
from preflight.checks.data.shared.waiting import Limit, Waiting

AT_ONCE = 256
"""How many indices to draw under one timer: setting one costs as much as some tens of indices."""
AT_ONCE_S = 0.1
"""But no longer than this, so that a slow sampler is not taken for a stuck one."""


def read(chooser: Any, batches: bool, what: str, limit: Limit, waiting: Waiting) -> Ids:
    """`chooser` yields indices (or lists of them, if a dataset loads whole batches), or with `batches` anything that
    contains indices. Other values are identified by digest (then `Ids.indices` is False). Raises UserError and
    Stuck."""
    ids = Ids()
    with waiting.on(what):
        iterator = iter(chooser)
    while not limit.spent(len(ids)):
        with waiting.on(what):
            drawn, ids.whole = _drawn(iterator, limit.samples - len(ids), math.inf if limit.agree else AT_ONCE_S)
            for item in drawn:
                _add(ids, *_listed(item, batches))
        if ids.whole:
            break
    return ids


def _drawn(iterator: Iterator[Any], samples: int, seconds: float) -> tuple[list[Any], bool]:
    """(some batches, whether these were the last)."""
    drawn: list[Any] = []
    until = time.monotonic() + seconds
    for item in islice(iterator, AT_ONCE):
        drawn.append(item)
        samples -= len(item) if type(item) is list else 1
        if samples <= 0 or time.monotonic() > until:
            return drawn, False
    return drawn, len(drawn) < AT_ONCE


def _add(ids: Ids, batch: list[Any], sized: bool) -> None:
    try:
        ids.add_batch(batch, sized=sized)
    except (TypeError, OverflowError):
        ids.indices = False
        known = [item if type(item) is int and abs(item) < 2**63 else digests.id_of(item) for item in batch]
        ids.add_batch(known, sized=sized)


def _listed(item: Any, is_batch: bool) -> tuple[list[Any], bool]:
    """(indices, whether they are a batch): what a dataset has at a single index may itself be a batch."""
    if type(item) is list:
        return item, True
    values = item.tolist() if hasattr(item, "tolist") else item  # a tensor, an array, or a number of NumPy's
    if is_batch:
        return list(values), True
    return (values, True) if type(values) is list else ([values], False)
