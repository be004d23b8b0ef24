"""Rows of the fault table for GPUs: a machine of tests/standin with something changed."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.row import Fault


@dataclass(frozen=True)
class GpuFault(Fault):
    """One process, on one made-up machine; `finds` is all above info that the whole family finds."""

    machine: str = ""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Keys of the machine (tests/standin/machines.py), and their values."""
    absent: Sequence[str] = ()
    """C functions that the library does not have."""
    files: Mapping[str, str | None] = field(default_factory=dict)
    """Further files of the machine, by absolute path; None takes one away."""
    arguments: tuple[str, ...] = ()
    """Beside `run --level quick --only gpu`."""

    @functools.cached_property
    def gpus(self) -> frozenset[str]:
        """The GPUs that it changes."""
        return frozenset(key.split(".")[1] for key in self.changes if key.startswith("gpu."))

    @property
    def is_shareable(self) -> bool:
        """Whether it touches one GPU, or a pair, and leaves them answering: what other GPUs have is judged as if it
        were not there."""
        unusual = self.files or self.absent or self.arguments or self.environ
        silent = any(key.endswith((".hang", ".calls")) or value == "!15" for key, value in self.changes.items())
        of_gpus = all(key.startswith("gpu.") for key in self.changes)
        return bool(self.finds and "gpu" in self.culprit and of_gpus and len(self.gpus) <= 2) and not (
            unusual or silent
        )

    def can_join(self, run: Sequence["GpuFault"]) -> bool:
        """Whether it touches other GPUs than these rows do, and finds other codes."""
        same = all(row.is_shareable and (row.machine, row.more) == (self.machine, self.more) for row in (self, *run))
        return same and not any(row.gpus & self.gpus or set(row.finds) & set(self.finds) for row in run)


def runs(rows: Iterable[GpuFault]) -> list[tuple[GpuFault, ...]]:
    """The rows of each run: those that can share a machine do."""
    made: list[list[GpuFault]] = []
    for row in rows:
        run = next((run for run in made if row.can_join(run)), None)
        if run is None:
            made.append([row])
        else:
            run.append(row)
    return [tuple(run) for run in made]


def on_machines(
    machines: Sequence[str],
    name: str,
    story: str,
    made: str,
    changes: Mapping[str, object],
    *finds: str,
    culprit: Mapping[str, object],
    says: str = "",
    variant: bool = False,
    **more: object,
) -> Iterator[GpuFault]:
    """The same fault on each of the machines: on the first one in `make test`, unless it is a `variant` of another
    row."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    for number, machine in enumerate(machines):
        yield GpuFault(
            f"{name}_{machine}", f"{story} ({machine})", made, finds, dict(culprit), says=says, exit_code=exit_code,
            world=1, plugins=(), after=None, only=("gpu",), machine=machine, changes=changes,
            more=variant or number > 0,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip
