"""`preflight gate`: 1 only for a failure that this run has found, whatever happens to it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.cluster import reason
from tests import running
from tests.made import finding, made_report, result

SICK = {"GLOO_SOCKET_IFNAME": "^lo"}
"""A real fault: gloo takes no such name."""
OURS = (sys.executable, "-m", "preflight", "--level", "quick", "--only", "env.variables", "--deadline", "60")
Done = subprocess.CompletedProcess[str]


def gate(folder: Path, *words: str, **environ: str) -> Done:
    return running.run_to_end(running.preflight("gate", *words), env=running.environment(**environ), cwd=folder)


def script(folder: Path, text: str) -> str:
    path = folder / "launcher.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_open_for_a_sound_machine(tmp_path: Path) -> None:
    done = gate(tmp_path, "--", *OURS)
    assert done.returncode == 0 and "verdict: PASS" in done.stdout and done.stderr == "", done


def test_it_is_shut_for_a_failure(tmp_path: Path) -> None:
    done = gate(tmp_path, "--report", "here", "--", *OURS, **SICK)
    assert done.returncode == 1 and "gate: a failure was found, so the job is held; bad nodes: " in done.stderr, done
    assert json.loads((tmp_path / "here" / "report.json").read_text())["exit_code"] == 1


@pytest.mark.more
def test_it_is_shut_for_a_failure_under_torchrun(tmp_path: Path) -> None:
    words = running.torchrun(2, "--level", "quick", "--only", "env.variables")
    done = gate(tmp_path, "--", *words, **SICK)
    assert done.returncode == 1 and "a failure was found" in done.stderr, done


def test_in_a_slurm_job_the_folder_bears_its_number(tmp_path: Path) -> None:
    gate(tmp_path, "--", *OURS, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="2")
    assert (tmp_path / "preflight-7-2" / "report.json").exists()


PLUGIN = str(running.PLUGINS / "import_error.py")
NO_VERDICT: dict[str, tuple[Sequence[str], str]] = {
    "missing": (["no-such-preflight"], "no-such-preflight: there is no such command"),
    "usage": ([*OURS, "--no-such-option"], "exit code 2, and no report is in"),
    "error": ([*OURS[:-4], "--deadline", "60", "--plugin", PLUGIN], "could not finish its own work (exit code 3"),
    "killed": (["bash", "-c", "kill -9 $$"], "exit code 137, and no report is in"),
}


@pytest.mark.parametrize("fault", [*list(NO_VERDICT)[:-1], pytest.param("killed", marks=pytest.mark.more)])
def test_without_a_verdict_it_does_as_it_is_told(fault: str, tmp_path: Path) -> None:
    words, says = NO_VERDICT[fault]
    done = gate(tmp_path, "--open", "--", *words)
    assert done.returncode == 0 and says in done.stderr and "so the job is not held" in done.stderr, done
    done = gate(tmp_path, "--closed", "--", *words)
    assert done.returncode == 1 and says in done.stderr and "so the job is held (--closed)" in done.stderr, done


def test_a_launcher_that_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    hung = script(tmp_path, f"setsid sleep 1000 & echo $! > {tmp_path}/pid; exec sleep 1000")
    done = gate(tmp_path, "--limit", "3", "--", hung)
    assert done.returncode == 0 and "did not end within 3 s (--limit) and was ended" in done.stderr, done
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_an_earlier_runs_report_says_nothing(tmp_path: Path) -> None:
    """Neither of the failure that it holds, nor that all is well."""
    gate(tmp_path, "--report", "here", "--", *OURS, **SICK)
    done = gate(tmp_path, "--report", "here", "--", "no-such-preflight")
    assert done.returncode == 0 and "not held" in done.stderr, done
    done = gate(tmp_path, "--closed", "--report", "here", "--", "bash", "-c", "exit 2")
    assert done.returncode == 1 and "only an earlier run's report is in" in done.stderr, done


@pytest.mark.more
def test_a_launcher_that_runs_no_preflight_is_no_pass_where_the_gate_is_closed(tmp_path: Path) -> None:
    done = gate(tmp_path, "--closed", "--", "true")
    assert done.returncode == 1 and "exit code 0, and no report is in" in done.stderr, done


def test_it_waits_for_a_rank_0_on_another_node(tmp_path: Path) -> None:
    """It writes the report when the others may have ended already."""
    made = tmp_path / "made.json"
    made.write_text(json.dumps(made_report(result(finding())).to_json()))
    late = script(tmp_path, f'(sleep 1; mv {made} "$2/report.json") > /dev/null 2>&1 &\nexit 1')
    done = gate(tmp_path, "--", late)
    assert done.returncode == 1 and "a failure was found" in done.stderr, done


@pytest.mark.parametrize("folder", ["/proc/no", "/dev/null/no"])
def test_without_a_place_for_the_report_nothing_is_run(folder: str, tmp_path: Path) -> None:
    done = gate(tmp_path, "--report", folder, "--", "touch", "begun")
    assert done.returncode == 0 and "no place for the report: " in done.stderr and not (tmp_path / "begun").exists()


def test_after_ctrl_c_the_job_does_not_start(tmp_path: Path) -> None:
    """torchrun ends with 1 then, and not by the signal."""
    launcher = script(tmp_path, "trap 'exit 1' INT\necho begun\nwhile :; do sleep 0.1; done")
    words = running.preflight("gate", "--", launcher)
    with subprocess.Popen(
        words, cwd=tmp_path, env=running.environment(), text=True, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == "begun\n"
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == 128 + signal.SIGINT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_the_reason_is_the_only_line_on_stdout(tmp_path: Path) -> None:
    done = gate(tmp_path, "--reason", "site:", "--", *OURS, **SICK)
    assert done.returncode == 1
    assert done.stdout == "site:env.variables.wrong_grammar variable GLOO_SOCKET_IFNAME (fix_config)\n"
    assert "verdict: FAIL" in done.stderr
    assert gate(tmp_path, "--reason", "site:", "--", *OURS).stdout == "ok env.variables\n"
    assert gate(tmp_path, "--reason", "site:", "--", "true").stdout == ""


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"node": "gpu-3", "rank": 3, "gpu": 3, "uuid": "GPU-1", "link": 7}, "preflight:gpu.nvlink.inactive gpu 3 link 7"),
    ({"node": "gpu-3"}, "preflight:gpu.nvlink.inactive it is 1, expected 2"),
    ({"node": "gpu-3", "file": "/a b'c\"d$e"}, "preflight:gpu.nvlink.inactive file /a b c d e"),
]


@pytest.mark.parametrize(("where", "line"), REASONS)
def test_a_reason_names_the_code_and_the_part(where: dict[str, Any], line: str) -> None:
    made = made_report(result(finding(code="gpu.nvlink.inactive", **where), check="gpu.nvlink"))
    assert reason.line(made, "preflight:") == line


def test_a_reason_ends_with_the_action() -> None:
    sick = finding(code="gpu.nvlink.inactive", action="reset_gpu", node="gpu-3", gpu=3, link=7)
    made = made_report(result(sick, finding(action="reboot"), check="gpu.nvlink"))
    assert reason.line(made, "preflight:") == "preflight:gpu.nvlink.inactive gpu 3 link 7 (reset_gpu) (+1)"


def test_a_reason_has_at_most_128_characters() -> None:
    long = finding(message="x" * 200 + "\n", code="gpu.nvlink.inactive")
    line = reason.line(made_report(result(long, long, check="gpu.nvlink")), "preflight:")
    assert len(line) == 128 and re.fullmatch(r"preflight:gpu\.nvlink\.inactive x+\.\.\. \(\+1\)", line)


def test_it_is_shut_where_the_ranks_did_not_come_together(tmp_path: Path) -> None:
    """Rank 0's failure is in a report of its own, and another rank's exit code says less. One of an earlier run says
    nothing."""
    folder = tmp_path / "here"
    folder.mkdir()
    failed = made_report(result(finding("fail")))
    for name, run in (("made.json", "new"), ("here/report.rank-1.json", "old")):
        (tmp_path / name).write_text(json.dumps({**failed.to_json(), "run": run}))
    old = gate(tmp_path, "--report", "here", "--", script(tmp_path, "exit 3"))
    assert old.returncode == 0 and "exit code 3, and no report is in" in old.stderr, old
    new = gate(
        tmp_path, "--report", "here", "--", script(tmp_path, f"cp made.json {folder}/report.rank-0.json; exit 3")
    )
    assert new.returncode == 1 and "a failure was found, so the job is held" in new.stderr, new
