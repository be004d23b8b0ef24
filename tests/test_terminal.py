"""Nothing that is given to preflight, or comes from another host, reaches a terminal or a list of nodes as it is."""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.core import node_names
from preflight.engine import identity
from preflight.results import progress
from tests import running
from tests.made import finding, job, made_report, result

EVIL = "\x1b]0;owned\x07\x9b31m\nverdict: PASS\r\u202e"
"""Sets a terminal's title and color, and looks like a line of ours."""
SECRET = "hunter2-4711"
COMMANDS = (
    ["show", "{}"], ["show", "{}", "--judge"], ["nodes", "--good", "{}"], ["diff", "{}", "{}"], ["explain", "{}"],
    ["profile", "{}"], ["history", "{}"], ["checkpoint", "{}"], ["describe", "{}"], ["hook", "{}"], ["{}"], ["--{}"],
    ["completion", "{}"], ["run", "--plugin", "{}"], ["run", "--config", "{}"], ["run", "--only", "{}"],
    ["run", "--skip", "{}"], ["run", "--set", "{}"], ["run", "--set", "{}=1"], ["run", "--set", "comm.init.{}=1"],
    ["run", "--set", "node.clock.most_ms={}"], ["run", "--deadline", "{}"], ["run", "--backend", "{}"],
    ["run", "--level", "{}"], ["run", "--profile", "{}"], ["run", "--data", "{}"],
    ["run", "--model", "{}"], ["run", "--history", "x", "--keep", "{}"], ["run", "--post", "{}"],
    ["list", "--plugin", "{}"],
    ["pick", "-N", "{}"], ["gate", "{}"], ["gate", "--limit", "{}", "--", "true"], ["debug", "-{}"],
    ["debug", "--report", "/proc/{}", "--", "true"], ["explain", "x", "--json", "/proc/{}"],
    ["rendezvous", "--nnodes", "{}"], ["rendezvous", "--rdzv-endpoint", "{}", "--nnodes", "2", "--node-rank", "0"],
)  # fmt: skip
"""One for each place in a command line, each a mistake."""


def is_clean(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def printed(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code, and all that went to the screen."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    with pytest.raises(SystemExit) as exited:
        main.main(list(words))
    return int(exited.value.code or 0), out.getvalue()


@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words))
def test_an_argument_is_printed_without_control_characters(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = printed([word.replace("{}", f"no{EVIL}such") for word in words], monkeypatch)
    text += "".join(capfd.readouterr())
    assert code in (0, 1, 2) and len(text.splitlines()) == 1, text
    assert is_clean(text), text


@pytest.mark.parametrize("where", ["--set", "--post", "--only"])
def test_a_secret_that_was_given_is_not_printed_again(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "--set": f"plugin.mine.token={SECRET}",
        "--post": f"ftp://me:{SECRET}@host",
        "--only": f"password={SECRET}",
    }
    code, text = printed(["run", where, given[where]], monkeypatch)
    assert code == 2
    assert SECRET not in text, text


def test_what_is_read_in_a_child_with_a_timer_is_printed_so_too(tmp_path: Path) -> None:
    """In a process of its own, which the timer would end later."""
    words = [sys.executable, "-m", "preflight", "run", "--baseline", f"no{EVIL}such"]
    done = subprocess.run(words, env=running.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and is_clean(done.stderr) and done.stderr.count("\n") == 1, done.stderr


def test_what_goes_to_a_real_terminal_is_cleaned(tmp_path: Path) -> None:
    """Beside stderr, torchrun prints the error file."""
    error_file = tmp_path / "error.json"
    environ = {**running.environment(), "TORCHELASTIC_ERROR_FILE": str(error_file), "API_TOKEN": SECRET}
    words = [sys.executable, "-m", "preflight", "run", "--config", f"{EVIL}{SECRET}"]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert is_clean(done.stderr) and done.stderr.count("\n") == 1 and SECRET not in done.stderr, done.stderr
    message = json.loads(error_file.read_text())["message"]["message"]
    assert is_clean(message) and SECRET not in message, message


@pytest.mark.parametrize("live", [False, True])
def test_a_line_on_the_screen_has_no_control_characters(live: bool) -> None:
    told: list[str] = []
    screen = progress.Live(told.append, 80, color_system=None) if live else progress.Plain(told.append)
    screen.say([f"WARN  node-{EVIL}"])
    assert "owned" in "".join(told)
    assert not {"\x1b]", "\x07", "\x9b", "\u202e", "\r"} & {sign for sign in ("\x1b]", "\x07", "\x9b", "\u202e", "\r")
                                                            if sign in "".join(told)}  # fmt: skip


# Names of nodes


NAMES = [
    ("gpu-17", "gpu-17"), ("gpu-17#1", "gpu-17#1"), ("r1.n2_x.example.org", "r1.n2_x.example.org"),
    ("fe80::1", "fe80::1"), ("GPU17", "GPU17"), ("good\nevil", "good_evil"), ("good\r\nevil", "good__evil"),
    ("a b", "a_b"), ("a,b", "a_b"), ("gpu[1-9]", "gpu_1-9_"), ("-oProxyCommand=x", "_oProxyCommand_x"), ("#x", "_x"),
    ("a\x1b[31m", "a__31m"), ("a\x00b", "a_b"), ("a\u2028b", "a_b"), ("$(reboot)", "__reboot_"), ("(none)", "_none_"),
    ("a" * 300, "a" * 255), ("a;b|c`d", "a_b_c_d"), ("..", "_."), ("a/b", "a_b"), ("n\u00f6de", "n_de"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "safe"), NAMES)
def test_a_nodes_name_follows_one_rule(name: str, safe: str) -> None:
    assert node_names.safe(name) == safe
    assert node_names.safe(safe) == safe


def test_a_node_says_its_name_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity.from_environ({"SLURMD_NODENAME": "good\nevil"}).node_name == "good_evil"
    monkeypatch.setattr(socket, "gethostname", lambda: "good evil")
    assert identity.from_environ({}).node_name == "good_evil"


@pytest.mark.parametrize("form", ["lines", "slurm", "csv", "hostfile", "json", "actions"])
@pytest.mark.parametrize("name", ["good\nevil", "good\n", "a b", "a,b", "-x", "a\x1b[31m", ""])
def test_a_report_with_another_name_is_refused(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_report(result(), on=job(2, 2)).to_json()
    made["job"]["nodes"][1]["node"] = name
    (tmp_path / "report.json").write_text(json.dumps(made))
    code, text = printed(["nodes", "--good", "--format", form, str(tmp_path)], monkeypatch)
    assert code == 2
    assert "job.nodes[1].node is " in text and len(text.splitlines()) == 1 and is_clean(text), text


def test_names_that_become_equal_stay_two(tmp_path: Path) -> None:
    """Two nodes whose names differ in what is replaced, in a real run: each rank says its own."""
    ranks = [
        {**rank, "SLURMD_NODENAME": name, "NODE_RANK": str(number), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        for number, (rank, name) in enumerate(zip(running.plain_ranks(2), ("gpu\n1", "gpu,1"), strict=True))
    ]
    finished = running.run_ranks(tmp_path, ranks, *running.SMALL, "--only", "env.launch")
    (listed,) = tmp_path.rglob("good_nodes.txt")
    assert listed.read_text() == "gpu_1#0\ngpu_1#1\n", finished.told()


@pytest.mark.skipif(os.geteuid() != 0, reason="sets a host name in a namespace of its own")
def test_a_hosts_own_name_is_one_line(tmp_path: Path) -> None:
    name = "import socket, os, sys; socket.sethostname('good\\nevil'); os.execv(sys.executable, sys.argv[1:])"
    run = [sys.executable, "-m", "preflight", "run", "--level", "quick", "--only", "env.software", "--report", "there"]
    words = ["unshare", "--uts", sys.executable, "-c", name, *run]
    done = subprocess.run(words, cwd=tmp_path, env=running.environment(), capture_output=True, text=True, timeout=90)
    lists = [(tmp_path / "there" / name).read_text() for name in ("good_nodes.txt", "bad_nodes.txt")]
    assert sorted(lists) == ["", "good_evil\n"], done.stderr


def test_a_finding_with_an_odd_place_is_shown_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_report(result(finding(severity="fail", device=f"sda{EVIL}", message=f"slow {EVIL}", fix=f"Do {EVIL}")))
    (tmp_path / "report.json").write_text(json.dumps(made.to_json()))
    monkeypatch.setattr(progress, "show", lambda lines, file: progress.Plain(file.write).say(lines))
    code, text = printed(["show", str(tmp_path)], monkeypatch)
    assert code == made.exit_code
    assert is_clean(text), text
