"""Healthy jobs of thirty kinds: no finding, also where they warn and go on."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths
from tests.explain import healthy

RETRIED = (
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-1]:29500 "
    "(errno: 111 - Connection refused).",
    "[rank3]:[W1125 10:00:03.123456789 socket.cpp:752] [c10d] The client socket has failed to connect to [node-0]:1 "
    "(errno: 110 - Connection timed out).",
    "[W314 09:12:44.120000000 TCPStore.cpp:330] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - "
    "retrying (try=2, timeout=300000ms, delay=1510ms): Connection reset by peer",
)


def found(folder: Path, text: str) -> list[tuple[str, str]]:
    (folder / "job.log").write_text(text)
    return [(finding.code, finding.message) for finding in explain_paths([str(folder / "job.log")]).findings]


def test_there_are_thirty_kinds() -> None:
    assert len(healthy.KINDS) >= 30


@pytest.mark.parametrize("kind", healthy.KINDS)
def test_a_healthy_job_has_no_finding(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, healthy.KINDS[kind]) == []


@pytest.mark.parametrize("kind", [kind for kind in healthy.KINDS if kind in healthy.TRAINS])
def test_a_connection_that_was_tried_again_is_no_failure(kind: str, tmp_path: Path) -> None:
    for line in RETRIED:
        assert found(tmp_path, f"{line}\n{line}\n{healthy.KINDS[kind]}") == []


def test_a_connection_that_was_not_made_is_one(tmp_path: Path) -> None:
    """With nothing after it; with one line of progress, which may be another rank's; with progress before it."""
    for line in RETRIED:
        for text in (line, f"{line}\nstep: 1  loss: 3.1", f"step: 1  loss: 3.1\nstep: 2  loss: 3.0\n{line}"):
            assert found(tmp_path, f"{text}\n")[0][0] == "explain.rdzv_master_unreachable"


def test_what_torchs_debug_server_cannot_show_is_no_failure(tmp_path: Path) -> None:
    """torch 2.13 writes it each time that it dumps, where the process group is gloo's."""
    texts = [
        "Failed to dump fr_trace", "Traceback (most recent call last):",
        '  File "/venv/site-packages/torch/distributed/debug/_frontend.py", line 303, in run',
        "    content = handler.dump()", "KeyError: ('0', 0)",
    ]  # fmt: skip
    at = "[rank0]:E1126 13:19:38.064000 12909 torch/distributed/debug/_frontend.py:305]"
    said = "".join(f"{at} {text}\n" for text in texts) * 12
    assert found(tmp_path, said) == []
    (other,) = found(tmp_path, said.replace("debug/_frontend.py:305", "other.py:305"))
    assert other[0] == "explain.app_crash"


def test_what_is_repeated_is_read_as_if_it_were_not(tmp_path: Path) -> None:
    """The last try counts: progress after it, or none. The first ones and the last one are read, the others counted."""
    tries = "".join(f"{RETRIED[1].replace('10:00:03', f'10:00:{second:02}')}\n" for second in range(60))
    steps = "step: 1  loss: 3.1\nstep: 2  loss: 3.0\n"
    assert found(tmp_path, f"{tries}{steps}") == []
    for text in (f"{steps}{tries}", f"{tries}{steps}{tries}"):
        assert found(tmp_path, text)[0][0] == "explain.rdzv_master_unreachable"


def test_what_nccl_warned_of_before_a_failure_may_be_its_cause(tmp_path: Path) -> None:
    warned = "node-a:41:42 [0] transport/net_ib.cc:97 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    steps = "".join(f"step: {step}  loss: 3.1\n" for step in range(1, 5))
    assert found(tmp_path, f"{warned}\n{steps}") == []
    after = (
        "node-a:41:42 [0] transport/net_ib.cc:97 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12"
    )
    codes = [code for code, _ in found(tmp_path, f"{warned}\n{steps}{after} opcode=0 len=0 vendor err 129\n")]
    assert codes[0] == "explain.ib_fabric_error"


def test_a_command_that_is_not_there_is_no_failure_where_the_script_does_without(tmp_path: Path) -> None:
    tried = "/var/spool/slurmd/job4711/slurm_script: line 12: torchrun: command not found\n"
    assert found(tmp_path, f"{tried}{healthy.KINDS['torchtitan']}") == []
    assert found(tmp_path, "bash: line 1: nvidia-smi: command not found\n") == []
    assert found(tmp_path, tried) == [("explain.launch_failed", "the shell did not find torchrun")]
