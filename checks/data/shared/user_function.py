"""Calls the function of `--data`, once per worker, and collects the loaders that it returns, by name."""

import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from preflight.check import Context, UserCode, UserError
from preflight.checks.data.shared.readings import LoaderMistake
from preflight.checks.data.shared.timeouts import Stuck, patience

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Called:
    """The result of the call on this rank."""

    function: UserCode
    """Its `start` is the current folder before the call: use this for messages about the user's code."""
    loaders: dict[str, Any]
    """By name: "" for the only one, "0", "1" for a list or tuple, a dict's keys. Empty if there is a `mistake`."""
    mistake: LoaderMistake | None
    printed: list[str]
    """See `side_effects.Traces`, also for the next two."""
    lines: int
    written: list[str]
    before: dict[str, Any] = field(repr=False)
    """`generators.snapshot()` before and after the call."""
    after: dict[str, Any] = field(repr=False)


IMPORTS = 0.6
"""Share of the check's time for imports: heavy packages take a minute where all ranks read them at once."""
_calls: dict[str, Called] = {}


def called(ctx: Context, code: UserCode, patience_s: float) -> Called:
    """Calls it only once per worker. Faults of the user's code are in `mistake`; raises what a collective raised, or
    what creating the process group raises."""
    name = str(code)
    if name not in _calls:
        _set_rank(ctx)
        ctx.doing(f"importing {code.module}")
        import_s = max(patience_s, IMPORTS * ctx.deadline_s)
        bounded(ctx, ctx.process_group(), patience_s + 1.0)
        _calls[name] = _called(code, patience_s, import_s, len(ctx.job.nodes))
    return _calls[name]


def called_before(code: UserCode) -> Called | None:
    """The result of the call in this worker, if there was one."""
    return _calls.get(str(code))


def bounded(ctx: Context, group: "torch.distributed.ProcessGroup", seconds: float) -> "torch.distributed.ProcessGroup":
    """The group, whose collectives now time out on gloo: a user's barrier that another rank never reaches is one C
    call, and should end soon after our patience does. (With NCCL a timeout would kill the worker.) The next check sets
    its own timeout."""
    from torch.distributed import distributed_c10d

    if ctx.job.backend == "gloo":
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
    return group


def _set_rank(ctx: Context) -> None:
    """Sets RANK etc. as in the process group: if a rank was lost, the others have new numbers, and a sampler that reads
    RANK would leave out a part. srun and mpirun do not set them; the user's script does before it makes the loader."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(ctx.group_rank), str(len(ctx.members))
    os.environ.setdefault("LOCAL_RANK", str(ctx.local_rank))


def _called(code: UserCode, patience_s: float, import_s: float, nodes: int) -> Called:
    from preflight.checks.data.shared import generators, lightning_datamodule
    from preflight.checks.data.shared.side_effects import traced

    before = generators.snapshot()
    loaders: dict[str, Any] = {}
    mistake: LoaderMistake | None = None
    with traced() as traces:
        try:
            with patience(import_s, f"{code.module} to be imported", code):
                code.imported()
            with patience(patience_s, f"{code.function}() to return", code):
                returned = code.call(may_be_none=True)
                if lightning_datamodule.is_one(returned):
                    with code.blamed(always=True):
                        returned = lightning_datamodule.loaders(returned, nodes)
            loaders, wrong = _named(returned)
            mistake = _wrong_return(code, wrong) if wrong else None
        except UserError as error:
            mistake = raised(error)
            mistake["text"] += _hint(error)
        except Stuck as stuck:
            mistake = stuck.mistake()
    after = generators.snapshot()
    found = {} if mistake else loaders
    return Called(code, found, mistake, traces.printed, traces.lines, traces.written, before, after)


def raised(error: UserError) -> LoaderMistake:
    return LoaderMistake(kind="user_error", text=error.text, file=error.file, line=error.line, stack=error.stack)


def _hint(error: UserError) -> str:
    if "default process group twice" in error.text:  # torch/distributed/distributed_c10d.py
        return " (preflight has created it before the call: create one only if not torch.distributed.is_initialized())"
    return ""


# What it returns


def _named(returned: Any) -> tuple[dict[str, Any], str]:
    """(loaders by name, what is wrong with them or "")."""
    if isinstance(returned, Mapping):
        loaders, which = {str(key): loader for key, loader in returned.items()}, "whose {name!r} is "
    elif isinstance(returned, list | tuple):
        loaders, which = {str(number): loader for number, loader in enumerate(returned)}, "whose element {name} is "
    else:
        return {"": returned}, _no_loader(returned)
    kind = f"a {type(returned).__name__}"
    if not loaders:
        return {}, f"an empty {type(returned).__name__}, expected loaders in it"
    wrong = [(name, why) for name, loader in loaders.items() if (why := _no_loader(loader) or _nested(loader))]
    return loaders, f"{kind} {which.format(name=wrong[0][0])}{wrong[0][1]}" if wrong else ""


def _no_loader(returned: Any) -> str:
    """What it is, and what was expected; "" for an object that a `for` can iterate repeatedly. (A user's class that is
    its own iterator may start over in `__iter__`: reading it tells.)"""
    import torch
    from torch.utils.data import Dataset, IterableDataset, Sampler
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    kind, name = type(returned), type(returned).__name__
    if returned is None:
        return "None, expected a loader"
    if isinstance(returned, type):
        return f"the class {returned.__name__}, expected an object of it"
    if isinstance(returned, types.FunctionType | types.MethodType):
        return f"the function {returned.__name__}, expected what it returns"
    if isinstance(returned, _BaseDataLoaderIter) or (hasattr(kind, "__next__") and kind.__module__ in _ONCE):
        return f"a {name}, which can be read only once: expected the loader, which every epoch reads from the start"
    has_rows = hasattr(kind, "__getitem__")
    if isinstance(returned, Dataset) and not isinstance(returned, IterableDataset) and not hasattr(kind, "__iter__"):
        return f"a dataset ({name}), expected the DataLoader that reads it"
    if has_rows and kind.__module__.startswith("datasets."):  # Hugging Face's, which iterates over its rows
        return f"a dataset (datasets.{name}), expected the DataLoader that reads it"
    if isinstance(returned, Sampler):
        return f"a sampler ({name}), expected the DataLoader that uses it"
    if isinstance(returned, str | bytes | torch.Tensor) or not hasattr(kind, "__iter__") or hasattr(kind, "__array__"):
        return f"of type {name}, expected a DataLoader, or another object that a for loop reads once per epoch"
    return ""


_ONCE = ("builtins", "itertools", "_io")


def _nested(returned: Any) -> str:
    """What is wrong with a nested list; it would count as a loader with few batches."""
    inner = list(returned.values()) if isinstance(returned, Mapping) else returned
    if isinstance(inner, list | tuple) and any(hasattr(loader, "batch_sampler") for loader in inner[:100]):
        return f"a {type(returned).__name__} of loaders, expected a loader: name all of them in one list or dict"
    return ""


def _wrong_return(code: UserCode, wrong: str) -> LoaderMistake:
    file, line = code.place() or (None, None)
    where = f"{file}:{line}" if file else str(code)
    return LoaderMistake(kind="wrong_return", text=f"{where}: {code.function}() returns {wrong}", file=file, line=line)
