"""`preflight explain` from its command line to its files, screen and exit code."""

import gzip
import io
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.cli import arguments
from preflight.errors import UsageError
from preflight.explain import command, console, inputs, output
from preflight.results import report_files
from preflight.results.report import Report, UnreadFile
from tests.made import assert_valid
from tests.pages import Page

FAILED = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 10, in <module>\n[rank3]: {}\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ok.log").write_text("step 1 of 9\n")
    Path("failed.log").write_text(FAILED.format("ValueError: 7 rows, expected 8"))


def explain(*words: str) -> int:
    return command.run(arguments.parser().parse_args(["explain", *words]))


def explained(*words: str) -> Report:
    made = command.explain_paths(words)
    assert_valid(made)
    report_files.as_text(made)  # raises for NaN
    return made


def found(*words: str) -> list[tuple[str, str]]:
    return [(word.severity, word.message) for word in explained(*words).findings]


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        explain(*words)
    assert not error.value.everywhere  # said by whatever rank it is asked
    return str(error.value)


def test_a_healthy_log_and_a_failed_one() -> None:
    assert explained("ok.log").exit_code == 0
    made = explained("failed.log")
    assert (made.exit_code, made.verdict, made.job.to_json()["missing_ranks"]) == (1, "fail", "")
    assert [(item.code, item.where["rank"]) for item in made.findings] == [("explain.app_crash", 3)]


def test_a_screen_of_preflights_before_a_healthy_job_is_no_failure() -> None:
    Path("job.log").write_text("verdict: FAIL (do not start this job), exit code 1, 57.3 s\nstep 1 of 9\n")
    assert found("job.log") == []


@pytest.mark.parametrize(
    "launcher",
    [
        "srun: error: node-a: task 3: Exited with exit code 1\nsrun: error: node-a: tasks 0-2: Killed\n",
        "a non-zero exit code. Per user-direction, the job has been aborted.\n  Exit code:    1\n",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4100 closing signal SIGTERM\n",
        "[2024-01-01 12:00:00,123] [ERROR] [launch.py:325:sigkill_handler] ['train.py'] exits with return code = 1\n",
        "command terminated with exit code 1\n",
    ],
)
def test_what_a_launcher_says_behind_a_traceback_does_not_hide_it(launcher: str) -> None:
    Path("job.log").write_text(FAILED.format("KeyError: 'x'").replace("[rank3]: ", "") + launcher)
    assert found("job.log")[0] == ("fail", "a process failed in its own code: KeyError: 'x' (train.py:10)")


def test_an_exception_that_a_trainer_survived_is_not_told_before_the_pre_emption() -> None:
    error = FAILED.format("CommError: entering retry loop").replace("[rank3]: ", "")
    steps = "".join(f"{{'loss': 2.31, 'grad_norm': 1.2, 'epoch': 0.{number}}}\n" for number in range(11, 15))
    Path("job.log").write_text(
        f"{error}{steps}slurmstepd: error: *** JOB 7 ON a CANCELLED AT x DUE TO PREEMPTION ***\n"
    )
    assert [message for _, message in found("job.log")] == ["Slurm preempted the job"]


def test_an_upload_that_was_tried_again_is_no_lost_peer() -> None:
    broken = "after connection broken by 'ConnectionResetError(104, 'Connection reset by peer')': /api/v1/upload"
    Path("job.log").write_text(f"WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) {broken}\nstep 2 of 9\n")
    assert found("job.log") == []


def test_it_is_the_same_twice_but_for_time_and_name() -> None:
    first, second = (replace(explained("failed.log"), run="", started="", seconds=0.0) for _ in range(2))
    assert first.to_json() == second.to_json()


@pytest.mark.parametrize("data", [b"", bytes(range(256)) * 20])
def test_a_pipe_that_gives_nothing_to_read_is_not_healthy(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("piped").write_bytes(data)
    with open("piped", "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        made = explained("-", "/dev/stdin")
    assert made.exit_code == 3
    assert made.explained and made.explained.files == 0
    assert made.explained.unread == [UnreadFile("stdin", "is binary" if data else "is empty")]


def test_what_is_no_log_beside_a_healthy_one_is_said() -> None:
    Path("empty.log").touch()
    Path("packed").write_bytes(bytes(range(256)) * 20)
    made = explained("ok.log", "empty.log", "packed")
    assert made.exit_code == 0
    assert "not read: empty.log is empty" in console.lines(made)
    assert "not read: packed is binary" in console.lines(made)


def test_what_may_hold_the_cause_but_cannot_be_read_leaves_nothing_healthy() -> None:
    noise = "".join(f"step {number * number}\n" for number in range(20_000))
    Path("cut.gz").write_bytes(gzip.compress(noise.encode())[:20_000])
    [(severity, message)] = found("ok.log", "cut.gz")
    assert severity == "error"
    assert "the gzip file ends in the middle" in message
    assert explained("ok.log", "cut.gz").exit_code == 3
    made = explained("failed.log", "cut.gz")  # what is found stays found
    assert (made.exit_code, [item.severity for item in made.findings]) == (1, ["fail"])
    assert any(line.startswith("not read: cut.gz cannot be read beyond line") for line in console.lines(made))


def test_a_log_in_a_folder_that_nobody_may_read_leaves_nothing_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: str) -> int:
        if path.endswith("failed.log"):
            raise PermissionError(13, "Permission denied")
        return os.open(path, os.O_RDONLY)

    monkeypatch.setattr(inputs, "opened", opened)
    assert explained("ok.log").exit_code == 0
    made = explained(".")
    assert (made.exit_code, made.verdict) == (3, "error")
    [finding] = made.findings
    assert finding.message.endswith("could not be read: failed.log cannot be read (Permission denied)")


@pytest.mark.parametrize(
    "text", ['{"schema": 99, "checks": []}', '{"schema": 1, "checks": 5}', f'{{"schema": 1, "checks": {"9" * 5000}}}']
)
def test_a_strange_report_beside_a_log_does_not_keep_it_from_being_read(text: str) -> None:
    Path("logs").mkdir()
    Path("logs/other.json").write_text(text)
    Path("logs/failed.log").write_bytes(Path("failed.log").read_bytes())
    made = explained("logs")
    assert made.explained and (made.exit_code, made.explained.files) == (1, 1)
    assert [item.file for item in made.explained.unread] == ["other.json"]


def test_an_earlier_explanation_in_the_folder_proves_nothing() -> None:
    Path("logs").mkdir()
    Path("logs/failed.log").write_bytes(Path("failed.log").read_bytes())
    before = found("logs")
    assert explain("logs", "--report", "logs") == 1
    assert found("logs") == before
    again = explained("logs").explained
    assert again and again.files == 1
    assert found("logs/report.json") == before  # but named it is read


def test_no_file_is_written_over_that_is_no_explanation() -> None:
    Path("logs").mkdir()
    for name in ("rank0.log", "report.json", "report.md"):
        Path("logs", name).write_text("the job's own\n")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for words in (
        ["--json", "failed.log"], ["--markdown", "failed.log"], ["--json", "logs/rank0.log"], ["--report", "logs"],
        ["--json", "logs"], ["--markdown", "logs"],
    ):  # fmt: skip
        assert "is not a report of explain" in refused("failed.log", *words), words
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_live_reports_folder_is_not_written_over() -> None:
    Path("run").mkdir()
    live = replace(explained("ok.log"), explained=None)
    Path("run/report.json").write_text(report_files.as_text(live))
    assert "run/report.json exists" in refused("failed.log", "--report", "run")


def test_a_jobs_logs_in_the_reports_folder_stay() -> None:
    """`preflight run --report` clears logs/*.log, which are its own there."""
    Path("logs").mkdir()
    Path("logs/rank0.log").write_text("step 1\n")
    os.utime("logs/rank0.log", (1, 1))
    for _ in range(2):  # an earlier explanation is written over
        assert explain("logs", "--report", ".") == 0
    assert Path("logs/rank0.log").read_text() == "step 1\n"
    assert {path.name for path in Path().iterdir()} == {"failed.log", "logs", "ok.log", *output.TEXTS}


def test_no_device_and_no_link_is_written_over() -> None:
    os.mkfifo("device")
    Path("link").symlink_to("device")
    Path("other").symlink_to("ok.log")
    for option in ("--json", "--markdown"):
        for path in ("device", "link", "other"):
            assert "exists and is not a report of explain" in refused("ok.log", option, path)
    assert stat.S_ISFIFO(os.lstat("device").st_mode)


def test_what_cannot_be_written_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "explain_paths", lambda *_: pytest.fail("was read"))
    assert refused("ok.log", "--markdown", "no/such.md") == (
        "--markdown no/such.md: cannot be written (No such file or directory)"
    )
    assert refused("ok.log", "--json", "x", "--markdown", "x").endswith("both cannot go to one place")
    assert refused("ok.log", "--json", "-", "--markdown", "-").endswith("both cannot go to one place")


def test_stdout_holds_the_report_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert explain("failed.log", "--json", "-") == 1
    said = capfd.readouterr()
    assert json.loads(said.out)["exit_code"] == 1
    assert "verdict: FAIL" in said.err
    assert explain("failed.log", "--markdown", "-") == 1
    said = capfd.readouterr()
    assert said.out.startswith("# preflight explain: FAIL")
    assert "verdict: FAIL" in said.err


class Broken(io.StringIO):
    """A stdout that takes nothing."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str, /) -> int:
        raise self._error


def test_a_full_disk_under_stdout_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ([], ["--json", "-"], ["--markdown", "-"]):
        monkeypatch.setattr(sys, "stdout", Broken(OSError(28, "No space left on device")))
        assert refused("failed.log", *words) == "stdout: cannot be written (No space left on device)"


def test_a_reader_that_has_gone_does_not_change_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError()))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert explain("failed.log") == 1


def test_ctrl_c_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "explain_paths", interrupted)
    assert explain("ok.log") == 130
    assert capfd.readouterr().err == "preflight: explain: interrupted, no report\n"


def test_a_terminal_that_knows_no_such_letters_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("failed.log").write_text(FAILED.format("ValueError: naïve → ünsound"))
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding="ascii"))
    assert explain("failed.log") == 1
    assert b"na?ve ? ?nsound" in taken.getvalue()


def test_names_of_any_bytes_leave_sound_json() -> None:
    name = os.fsdecode(b"caf\xe9 new\nline.log")
    Path(name).write_bytes(Path("failed.log").read_bytes())
    made = explained(name)
    json.dumps(made.to_json(), ensure_ascii=False).encode()  # raises for half a character
    assert not any("\n" in line for line in console.lines(made))


def test_half_a_character_in_others_json_leaves_sound_json() -> None:
    Path("error.json").write_text('{"message": {"message": "ValueError: \\ud800 is half", "extraInfo": {}}}')
    json.dumps(explained("error.json").to_json(), ensure_ascii=False).encode()
    assert "ValueError: ? is half" in found("error.json")[0][1]


def test_nothing_hostile_reaches_screen_or_files(capfd: pytest.CaptureFixture[str]) -> None:
    said = "ValueError: {rank} %s {0!r} \x1b]0;title\x07 \x1b[2J \x9b31m \u202e API_KEY=hunter2hunter"
    Path("failed.log").write_text(FAILED.format("{}").replace("{}", said))
    assert explain("failed.log", "--json", "a.json", "--markdown", "a.md", "--report", "all") == 1
    out = capfd.readouterr().out
    texts = [out, *(Path(path).read_text() for path in ("a.json", "a.md", "all/report.md", "all/report.html"))]
    for text in texts:
        assert not any(char in text for char in "\x1b\x07\x9b\u202e")
        assert "hunter2" not in text
        assert "{rank} %s {0!r}" in text


def test_markdown_shows_the_words_as_they_stand() -> None:
    Path("failed.log").write_text(FAILED.format("ValueError: <b>bold</b> &lt; ```quoted"))
    text = console.markdown(explained("failed.log"))
    assert "&lt;b>bold&lt;/b> &amp;lt;" in text
    assert text.count("```") - text.partition("```text")[0].count("```") == 2  # the fence is not closed early


def test_the_end_of_a_long_line_is_shown() -> None:
    long = f"ValueError: {'x' * 2000} was measured, 8 was expected"
    Path("failed.log").write_text(FAILED.format(long))
    made = explained("failed.log")
    [quoted] = [line for line in console.lines(made) if line.startswith("      > failed.log")]
    assert quoted.endswith("8 was expected")
    assert len(quoted) <= console.DECIDING * 100


def test_show_prints_it_as_explain_does(capfd: pytest.CaptureFixture[str]) -> None:
    from preflight.cli import main

    assert explain("failed.log", "--report", "all") == 1
    out = capfd.readouterr().out.replace("report: all/report.json\n", "")
    with pytest.raises(SystemExit) as ended:
        main.main(["show", "all"])
    assert ended.value.code == 1
    assert capfd.readouterr().out == out


def test_the_page_quotes_the_lines() -> None:
    assert explain("failed.log", "--report", "all") == 1
    page = Path("all/report.html").read_text()
    assert "<p>1 file, 3 lines, " in page
    assert ">failed.log:3: [rank3]: ValueError: 7 rows, expected 8</pre>" in page


def test_who_only_lost_a_peer_is_listed_once() -> None:
    lost = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"
    )
    memory = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
    )
    Path("job.log").write_text("".join(f"[rank{rank}]: {lost if rank else memory}\n" for rank in range(9)))
    made = explained("job.log")
    after = [item for item in made.findings if item.severity == "info"]
    assert [item.noticed_by for item in after] == ["1-8"]
    shown = "\n".join(console.lines(made)).partition("INFO ")[2]
    assert shown.count("1-8") == 1
    assert "fix:" not in shown


def test_no_secret_of_a_quoted_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is secret here by its name, and what is one by its form."""
    secrets = ("s3ntinel-7f1c-do-not-tell", "hunter2-of-the-url", "hf-0123456789abcdef")
    monkeypatch.setenv("TEST_API_KEY", secrets[0])
    said = f"no answer to {secrets[0]} at https://me:{secrets[1]}@hub/ with HF_TOKEN={secrets[2]}"
    frames = '  File "/job/train.py", line 3, in <module>\n    push()'
    Path("job.log").write_text(f"Traceback (most recent call last):\n{frames}\nValueError: {said}\n")
    made = explained("job.log")
    told = "".join([report_files.as_text(made), *console.lines(made), console.markdown(made)])
    assert "no answer to" in told and not [secret for secret in secrets if secret in told]


def test_secrets_in_a_logs_commands_and_across_a_cut_are_not_told() -> None:
    """The second line is cut between the name of a secret and its end."""
    cut = f"{'x' * 600} --password {'S3CRET' * 150} {'y ' * 50}"
    commands = "mysql -pS3CRET db; curl -u me:S3CRET h; SSHPASS=S3CRET ssh h; AccountName=a;AccountKey=S3CRET=="
    frames = '  File "/job/prepare_tokens.py", line 12, in <module>\n    push()'
    for number, said in enumerate((f"{commands} at prepare_tokens.py:12 with max_tokens=4096", cut)):
        log = f"{number}.log"
        Path(log).write_text(f"Traceback (most recent call last):\n{frames}\nRuntimeError: {said}\n")
        made = explained(log)
        told = "".join([report_files.as_text(made), *console.lines(made), console.markdown(made)])
        assert "RuntimeError" in told and "S3CRET" not in told, told
        assert number or ("prepare_tokens.py:12" in told and "max_tokens=4096" in told), told


def test_the_page_shows_who_waited_and_until_when_each_rank_was_heard() -> None:
    timeout = (
        "[rank0]:[E1125 12:00:{:02}.000000000 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=10000) ran for 10001 "
        "milliseconds before timing out.\n"
    )
    Path("hung.log").write_text(
        timeout.format(10) + timeout.format(40).replace("ank0", "ank2").replace("ank 0", "ank 2")
    )
    assert explain("hung.log", "--html", "page.html", "--json", "a.json") == 1
    heard = json.loads(Path("a.json").read_text())["explained"]["ranks"]
    assert [its["rank"] for its in heard] == [0, 2] and heard[1]["last"] - heard[0]["first"] == 30
    page = Page(Path("page.html").read_text())
    assert "rank 2: in the logs from 30.0 s to 30.0 s" in page.text and "Who waited for whom" in page.text
    assert refused("hung.log", "--html", "hung.log") == (
        "--html hung.log: hung.log exists and is not a report of explain: choose another place"
    )
    assert explain("hung.log", "--html", "page.html") == 1  # over its own


def test_show_makes_the_page_again(capfd: pytest.CaptureFixture[str]) -> None:
    from preflight.cli import main

    assert explain("failed.log", "--report", "all") == 1
    with pytest.raises(SystemExit) as ended:
        main.main(["show", "all", "--html", "again.html"])
    assert ended.value.code == 1
    assert Path("again.html").read_text() == Path("all/report.html").read_text()
    with pytest.raises(SystemExit) as ended:
        main.main(["show", "all", "--html", "none/again.html"])
    assert ended.value.code == 2
    assert (
        "preflight: --html none/again.html: cannot be written (No such file or directory)\n" in capfd.readouterr().err
    )
