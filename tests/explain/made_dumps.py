"""Flight-recorder dumps, made up as torch 2.13 writes them on NCCL, and read as `preflight explain` does."""

from collections.abc import Callable, Sequence
from typing import Any

from preflight.explain.artifacts import desync_messages, dumps
from preflight.explain.candidates import Candidate
from preflight.explain.inputs import Unread

NOW_S = 1_790_000_000.0
WAITS_S = 700.0
"""What waits has done so for so long when the dumps are written."""
Entry = dict[str, Any]


def call(
    number: int, operation: str = "all_reduce", size: int = 8, over: bool = True, *, line: int = 40, **more: Any
) -> Entry:
    """As torch 2.13 writes it on NCCL."""
    made = {
        "frames": [{"name": "all_reduce", "filename": "/venv/lib/python3.11/site-packages/torch/d.py", "line": 3245},
                   {"name": "step", "filename": "/job/train.py", "line": line}],
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{operation}",
        "time_created_ns": int((NOW_S + number / 1e3) * 1e9), "input_sizes": [[size]], "input_dtypes": ["Float"],
        "output_sizes": [[size]], "output_dtypes": ["Float"], "state": "completed" if over else "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": int(NOW_S * 1e9) if over else None,
        "retired": over, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return {**made, **more}


def of(group: str, ranks: str, entry: Entry) -> Entry:
    return {**entry, "process_group": (group, f"group {ranks}"), "pg_id": 1}


FIRST = call(1, size=4)


def dump(*entries: Entry, world: int = 4, groups: dict[str, list[int]] | None = None) -> dict[str, Any]:
    config = {"0": list(range(world)), **(groups or {})}
    listed = [{**entry, "record_id": place} for place, entry in enumerate(entries)]
    return {
        "version": "2.10", "entries": listed, "comm_lib_version": "2.29.3", "pg_status": {},
        "pg_config": {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in config.items()},
    }  # fmt: skip


IN_IT = dump(FIRST, call(2, over=False))
Told = Callable[..., list[Candidate]]


def find_candidates(paths: Sequence[str]) -> tuple[list[Candidate], list[Unread]]:
    """What explain makes of dumps, and those that it cannot read."""
    job, unread = dumps.read(paths)
    return list(desync_messages.find_candidates(job)), unread
