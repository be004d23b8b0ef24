"""Sinks: what they get, and that one which hangs, refuses or is not there changes no verdict and holds up nobody."""

import contextlib
import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from preflight.core.facts import FactsStore
from preflight.history import archive
from preflight.history.entry import entry
from preflight.results import report_files
from preflight.results.report import Report
from preflight.sinks import delivery, log_line, post, textfile
from preflight.sinks.arguments import Sinks, shown
from tests import running
from tests.history import made as made_entries
from tests.history.told import refused
from tests.made import finding, job, made_report, result

Answer = Callable[["_Handler"], None]


class _Handler(BaseHTTPRequestHandler):
    taken: list[tuple[dict[str, str], Any]]
    answer: Answer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((dict(self.headers), json.loads(gzip.decompress(body))))
        type(self).answer(self)

    def log_message(self, *_words: Any) -> None:
        pass


def status(code: int, **headers: str) -> Answer:
    def answer(handler: _Handler) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@contextlib.contextmanager
def serving(*answers: Answer) -> Iterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """(the URL, what it takes); one answer after the other, the last one again and again."""
    left, taken = list(answers), []  # type: ignore[var-annotated]
    handler = type("Handler", (_Handler,), {"taken": taken})
    handler.answer = lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/reports", taken
    finally:
        server.shutdown()
        server.server_close()


def made() -> Report:
    return made_report(
        result(finding(message='it is "1"', node="node-1", uuid="GPU-1"), finding("warn", rank=0), finding("info"))
    )


def send(url: str, report: Report | None = None, token: str | None = None, seconds: float = 3.0) -> None:
    post.send(url, token, report or made(), time.monotonic() + seconds)


# --post


def test_the_report_is_sent_in_an_envelope_with_a_token_that_the_report_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    with serving(status(201)) as (url, taken):
        send(url, token=str(tmp_path / "token"))
    ((headers, envelope),) = taken
    assert headers["Authorization"] == "Bearer s3cret-token" and "s3cret" not in json.dumps(envelope)
    assert headers["Idempotency-Key"] == envelope["reportID"] == made().run
    assert envelope["schemaVersion"] == 1 and envelope["report"] == made().to_json() and envelope["cut"] == ""


def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not() -> None:
    with serving(status(503), status(500), status(204)) as (url, taken):
        send(url)
    assert len(taken) == 3 and len({envelope["reportID"] for _, envelope in taken}) == 1
    with serving(status(403)) as (url, taken), pytest.raises(OSError, match="HTTP 403 Forbidden"):
        send(url)
    assert len(taken) == 1
    with serving(status(500)) as (url, taken), pytest.raises(OSError, match="HTTP 500"):
        send(url, seconds=1.0)
    assert len(taken) > 1


def test_the_token_does_not_follow_to_another_host(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token")
    with serving(status(200)) as (other, theirs), serving(status(302, Location=other)) as (url, _):
        with pytest.raises(OSError, match="HTTP 302"):
            send(url, token=str(tmp_path / "token"))
        assert theirs == []


def test_one_that_closes_or_is_not_there_is_named() -> None:
    with serving(lambda handler: handler.connection.close()) as (url, taken), pytest.raises(OSError, match=r"[Cc]los"):
        send(url, seconds=0.5)
    assert taken
    with pytest.raises(OSError, match="Connection refused"):
        send(f"http://127.0.0.1:{running.free_port()}/", seconds=0.5)


def test_one_that_hangs_is_left_in_time() -> None:
    """It takes the connection, and never says anything; or sends its answer byte by byte for ever."""
    go_on = threading.Event()

    def drip(handler: _Handler) -> None:
        while not go_on.wait(0.05):
            handler.wfile.write(b"H")

    for answer in (lambda _: go_on.wait(30.0), drip):
        with serving(answer) as (url, _):  # type: ignore[arg-type]
            sinks = Sinks(post=url, history=None)
            failed = delivery.deliver(sinks, made(), FactsStore(), {})
            assert list(failed) == [f"--post {shown(url)}"] and all(failed.values()), failed
            go_on.set()
        go_on.clear()


def test_a_sink_that_hangs_is_left_when_the_time_of_all_is_over() -> None:
    go_on = threading.Event()
    hung = delivery.Delivery(lambda: go_on.wait(60.0))
    assert hung.failure(time.monotonic() + 0.1) == "did not end within 4 s"
    go_on.set()


def test_a_report_that_is_too_large_goes_without_evidence() -> None:
    noise = os.urandom(2_000_000).hex()
    large = made_report(result(finding(evidence={"stack": noise})))
    body = post.packed(large)
    envelope = json.loads(gzip.decompress(body))
    assert len(body) <= post.MOST and envelope["cut"] == "evidence, outcomes"
    assert envelope["report"]["checks"][0]["findings"][0]["evidence"] == {}
    larger = made_report(result(*(finding(message=os.urandom(900).hex(), node=f"n{n}") for n in range(2000))))
    assert json.loads(gzip.decompress(post.packed(larger)))["cut"] == "checks"


def test_an_address_is_shown_without_its_secrets() -> None:
    assert shown("https://me:pw@h.example:8443/in?token=1") == "https://h.example:8443/..."


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--post", "ftp://host/"), "expected http://HOST/PATH or https://HOST/PATH"),
        (("--post", "http://[/"), "expected http://HOST/PATH or https://HOST/PATH"),
        (("--post-token", "FILE"), "--post-token: belongs to --post, which is not given"),
        (("--keep", "3d"), "--keep: belongs to --history, which is not given"),
        (("--keep", "soon", "--history", "FILE"), "expected a number of days from 1 to 36500, such as 365d"),
        (("--baseline", "auto"), "--baseline auto: belongs to --history, which is not given"),
        (("--history", ""), "it is empty"),
    ],
)
def test_mistakes_are_one_sentence(words: tuple[str, ...], says: str) -> None:
    assert says in refused("run", *words)


# --textfile


def test_the_textfile_has_names_and_labels_of_its_own_kind(tmp_path: Path) -> None:
    report = made()
    labels = {"message_size": "1024", "dtype": "fp32"}
    busbw = made_entries.figure(("comm.all_reduce", "1 KiB fp32 busbw", "GB/s"), 0.5, labels=labels)
    gemm = made_entries.figure(made_entries.GEMM, 1.0, {"GPU-1": 700.25})
    kept = replace(entry(report, FactsStore(), {}), figures=[busbw, gemm], places={"GPU-1": "node-1"})
    textfile.write(str(tmp_path), report, kept)
    lines = (tmp_path / textfile.NAME).read_text().splitlines()
    for line in (
        'preflight_check_status{check="plugin.made",node="node-0"} 2',
        'preflight_check_status{check="plugin.made",node="node-1"} 4',
        'preflight_finding{code="plugin.made.bad",node="node-1",gpu="GPU-1",severity="fail"} 1',
        'preflight_busbw_gbs{collective="all_reduce",message_size="1024",dtype="fp32",nranks="4",n_nodes="2"} 0.5',
        'preflight_figure{check="gpu.compute",figure="bf16 GEMM",unit="TFLOP/s",node="node-1",gpu="GPU-1"} 700.25',
        "preflight_exit_code 1",
        "preflight_run_duration_seconds 1.25",
        "# TYPE preflight_check_status gauge",
    ):
        assert line in lines, lines
    assert not any("info" in line for line in lines) and os.listdir(tmp_path) == [textfile.NAME]
    assert textfile.line("a", {"b": 'q" \\ \n'}, 1.0) == 'a{b="q\\" \\\\ \\n"} 1'


def test_a_job_of_a_thousand_nodes_does_not_fill_the_server() -> None:
    checks = [result(check=f"plugin.c{number}") for number in range(11)]
    report = made_report(result(finding(node="node-999")), *checks, on=job(*[1] * 1000))
    lines = textfile.text(report, entry(report, FactsStore(), {})).splitlines()
    statuses = [line for line in lines if line.startswith("preflight_check_status")]
    assert len(statuses) == textfile.MOST and 'node="node-999"} 4' in statuses[0]


# --syslog


def test_the_systems_log_gets_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        log_line.write(made(), str(tmp_path / "log"))
        line = listener.recv(2048).decode()
    assert line.startswith("<27>preflight[") and "FAIL: node-1, uuid GPU-1: it is " in line and "\n" not in line
    assert "[plugin.made.bad] (and 2 more) (run 0123456789ab)" in line
    with pytest.raises(OSError, match="nothing listens at"):
        log_line.write(made(), str(tmp_path / "none"))


# A real run


def test_a_run_serves_all_and_ends_as_it_would_without(tmp_path: Path) -> None:
    """Though the URL hangs, the folder is not there and nobody listens to syslog's socket."""
    go_on = threading.Event()
    history, run = tmp_path / "history.sqlite", tmp_path / "run"
    run.mkdir()
    with serving(lambda _: go_on.wait(60.0)) as (url, taken):  # type: ignore[arg-type]
        words = ("--only", "env.variables,env.software", "--level", "quick", "--history", str(history), "--syslog")
        finished = running.run_ranks(
            run,
            [running.environment(MY_TOKEN="s3cret-token")],
            *words,
            "--textfile",
            str(tmp_path / "none"),
            "--post",
            url,
        )
        go_on.set()
    assert finished.exit_codes == [0] and finished.left_over == [], finished.told()
    assert url not in (run / "report.json").read_text() and url not in finished.output, finished.told()
    assert f"--post {shown(url)}: got nothing: " in finished.output and "verdict: PASS" in finished.output, (
        finished.told()
    )
    assert f"--textfile {tmp_path}/none: got nothing: " in finished.output, finished.told()
    assert taken and taken[0][1]["reportID"] == finished.report["run"]
    with archive.reading(str(history)) as database:
        assert database.execute("SELECT name, verdict FROM run").fetchall() == [(finished.report["run"], "pass")]
        assert database.execute("SELECT count(*) FROM trait WHERE kind = 'software'").fetchone()[0] > 5


def test_a_history_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine\n" * 1000)
    failed = delivery.deliver(Sinks(history=str(tmp_path / "text")), made(), FactsStore(), {})
    assert "file is not a database" in failed[f"--history {tmp_path}/text"]
    path = f"{tmp_path}/none/history"
    assert "does not exist" in delivery.deliver(Sinks(history=path), made(), FactsStore(), {})[f"--history {path}"]


def test_a_token_that_cannot_be_read_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for name, says in (("none", "No such file"), ("empty", "holds no token")):
        with pytest.raises((OSError, ValueError), match=f"{name}.*{says}"):
            send("http://127.0.0.1:1/", token=str(tmp_path / name))
    assert report_files.as_text(made())


def test_an_entry_that_was_made_before_the_verdict_is_not_made_again(tmp_path: Path) -> None:
    """Its figures stay, and what the last findings have made of the run is the report's."""
    path, report = str(tmp_path / "history"), made()
    early = json.dumps(replace(made_entries.entry(1), run=report.run, verdict="pass").to_json())
    assert delivery.deliver(Sinks(history=path), report, FactsStore(), {}, early) == {}
    with archive.reading(path) as database:
        assert database.execute("SELECT count(*) FROM figure").fetchone() == (1,)
        assert database.execute("SELECT verdict FROM run").fetchone() == (report.verdict,) != ("pass",)
