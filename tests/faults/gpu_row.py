"""Rows of the fault table for GPUs: a machine of tests/standin with something changed."""

from collections.abc import Iterator, Mapping, Sequence
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


def on_machines(
    machines: Sequence[str],
    name: str,
    story: str,
    made: str,
    changes: Mapping[str, object],
    *finds: str,
    culprit: Mapping[str, object],
    says: str = "",
    **more: object,
) -> Iterator[GpuFault]:
    """The same fault on each of the machines."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    for machine in machines:
        yield GpuFault(
            f"{name}_{machine}", f"{story} ({machine})", made, finds, dict(culprit), says=says, exit_code=exit_code,
            world=1, plugins=(), after=None, only=("gpu",), machine=machine, changes=changes,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip
