"""Where both sides of a hang stood: the user's lines, by what `preflight debug` recorded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from preflight.explain.artifacts.processes import FATAL, RankProcess, read_processes
from preflight.explain.artifacts.wait_places import add_places
from preflight.explain.candidates import Candidate
from preflight.explain.command import explain_paths

TORCH = "/v/site-packages/torch"
CAUSE = Candidate("collective_mismatch", "cause", 80, "the ranks are out of step", (0.0, 0, ""), severity="fail")


def process(rank: int, *frames: tuple[str, int, str]) -> RankProcess:
    stack = "".join(f'  File "{path}", line {line}, in {function}\n    f()\n' for path, line, function in frames)
    raised = {"type": "RuntimeError", "message": "it timed out"}
    raised["traceback"] = f"Traceback (most recent call last):\n{stack}"
    record: dict[str, Any] = {"cwd": "/job", "exception": raised}
    return RankProcess(rank, "node-a", 41, "records/a.json", json.loads(json.dumps(record)))


EVALUATES = process(
    0, ("/job/eval.py", 89, "evaluate"), (f"{TORCH}/nn/modules/module.py", 7, "_call_impl"),
    (f"{TORCH}/distributed/fsdp/_runtime_utils.py", 7, "_unshard"),
    (f"{TORCH}/distributed/distributed_c10d.py", 7, "all_gather_into_tensor"),
)  # fmt: skip
TRAINS = process(
    1, ("/job/train.py", 71, "<module>"), (f"{TORCH}/_tensor.py", 7, "backward"),
    (f"{TORCH}/autograd/graph.py", 7, "_engine_run_backward"),
)  # fmt: skip


def test_both_sides_are_told_with_their_lines() -> None:
    text = add_places(CAUSE, [EVALUATES, TRAINS]).message
    assert text == (
        "the ranks are out of step; rank 0 stood in all_gather_into_tensor at eval.py:89 in evaluate() "
        "(part of FSDP, which gathers parameters), rank 1 stood in a backward at train.py:71"
    )


def test_ranks_at_one_place_are_told_together() -> None:
    others = [process(rank, ("/job/train.py", 7, "f"), (f"{TORCH}/a.py", 1, "g")) for rank in (0, 1, 2)]
    assert add_places(CAUSE, others).message.endswith("; ranks 0-2 stood at train.py:7 in f()")


def test_a_rank_that_its_library_aborted_has_its_stack(tmp_path: Path) -> None:
    """gloo ends the process; the other one raises. A stack of a worker before it, and samples of a hang, are not it."""
    heads = [f"Thread 0x0{number} (most recent call first):\n  File " for number in (1, 2)]
    fatal = f"{FATAL}Aborted\n\n{heads[0]}" + f'"/job/other.py", line 1 in helper\n\n{heads[1]}'
    inside = f'"{TORCH}/distributed/distributed_c10d.py", line 9 in all_reduce\n  File "/job/train.py", line 50 in step'
    stack = f'{fatal}"/job/data.py", line 3 in load\n{fatal}{inside}\n'
    (tmp_path / "node-a.41.stack").write_text(stack)
    record = {"preflight_record": 1, "rank": 0, "node": "node-a", "pid": 41, "status": -6, "cwd": "/job"}
    (tmp_path / "node-a.41.json").write_text(json.dumps(record))
    paths = [str(tmp_path / f"node-a.41.{end}") for end in ("json", "stack")]
    told = add_places(CAUSE, read_processes(paths[:1], paths[1:])).message
    assert told == f"{CAUSE.message}; rank 0 stood in all_reduce at train.py:50 in step()"


SERVER = """=== Rank {rank}: http://node-a:41235/handler/dump_traceback? ===
Thread 0x00007f2f479286c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f2f62c1db80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in {waits}
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/job/train.py", line {line} in step
"""


def test_the_last_stacks_of_torchs_debug_server_say_where_ranks_stood(tmp_path: Path) -> None:
    """It writes them each minute, of a healthy job, too: beside one they say nothing."""
    for time, line in (("191300", 7), ("191400", 50)):
        sides = [
            SERVER.format(rank=rank, waits=waits, line=line + rank) for rank, waits in enumerate(("barrier", "reduce"))
        ]
        summary = "PARTIAL DATA: 2/3 workers responded\n  Rank 2: timed out\n\n"
        (tmp_path / f"stacks_20260422_{time}.txt").write_text(summary + "\n".join(sides))
    log = tmp_path / "job.log"
    log.write_text("step 1 loss 3.1\nstep 2 loss 3.0\n")
    assert explain_paths([str(tmp_path)]).findings == []
    log.write_text("RuntimeError: [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4\n")
    (first, *_) = explain_paths([str(tmp_path)]).findings
    at = "/job/train.py:{} in step()"
    assert f"rank 0 stood in barrier at {at.format(50)}, rank 1 stood in reduce at {at.format(51)}" in first.message


def test_nothing_is_told_twice_or_of_another_cause() -> None:
    named = replace(CAUSE, message="rank 0 inside all_gather at eval.py:89")
    assert "stood in all_gather" not in add_places(named, [EVALUATES]).message
    assert add_places(replace(CAUSE, slug="gpu_oom"), [EVALUATES]).message == CAUSE.message
    assert add_places(CAUSE, [process(0, ("/job/train.py", 7, "f"))]).message == CAUSE.message  # no wait
    assert add_places(CAUSE, []).message == CAUSE.message
