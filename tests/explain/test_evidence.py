"""What a evidence keeps: tracebacks out of mixed lines, ends of processes, and no more than there is room for."""

import pytest

from preflight.explain.logs.tracebacks import EACH as TRACEBACKS
from preflight.explain.logs.tracebacks import Traceback
from preflight.explain.observations import EACH, SOURCES
from preflight.explain.timeline import Timeline
from preflight.failure_book.line import Line
from tests.made_failures import BOOK, conclude, lines, timeout, traceback

LOST = "closed by remote peer node-d"
NAMES = ("KeyError", "OSError")
BAR = "Epoch:  {0}%|##  | {0}/100 [00:{0}<00:50]"


def evidence(*texts: str) -> Timeline:
    made = Timeline()
    for line in lines(texts):
        made.add(line, BOOK.matches(line))
    return made


def tracebacks(*texts: str) -> list[Traceback]:
    return list(evidence(*texts).tracebacks)


def test_a_tracebacks_innermost_line_of_the_users_is_found() -> None:
    (cause,) = tracebacks(*traceback("ValueError: bad batch", "/home/a/train.py", 31))
    assert (cause.type, cause.text, cause.file, cause.number) == ("ValueError", "bad batch", "/home/a/train.py", 31)


@pytest.mark.parametrize(
    "file",
    [
        "/x/lib/python3.11/runpy.py",
        "torch/nn/module.py",
        "/opt/site-packages/y.py",
        "<frozen runpy>",
        "/a/bin/torchrun",
    ],
)
def test_a_librarys_line_stands_where_no_frame_is_the_users(file: str) -> None:
    (cause,) = tracebacks(*traceback("ValueError: bad batch", file))
    assert cause.file == "/x/site-packages/torch/nn.py"


def test_tracebacks_of_two_ranks_that_mix_line_by_line() -> None:
    cause, other = (traceback(f"{name}: x", f"{name}.py", label=f"[rank{at}]: ") for at, name in enumerate(NAMES))
    found = tracebacks(*(text for pair in zip(cause, other, strict=True) for text in pair))
    assert [(cause.line.rank, cause.type, cause.file) for cause in found] == [
        (0, "KeyError", "KeyError.py"),
        (1, "OSError", "OSError.py"),
    ]


def test_tracebacks_under_the_labels_of_torchruns_tee_that_mix() -> None:
    cause, other = ([(text, at) for text in traceback(f"{name}: x", f"{name}.py")] for at, name in enumerate(NAMES))
    mixed = [of_one for pair in zip(cause, other, strict=True) for of_one in pair]
    made = Timeline()
    for number, (text, local_rank) in enumerate(mixed, 1):
        line = Line(text, text, "job.log", number, number, local_rank=local_rank)
        made.add(line, BOOK.matches(line))
    assert [(cause.line.local_rank, cause.type) for cause in made.tracebacks] == [(0, "KeyError"), (1, "OSError")]


def test_a_traceback_without_indents_ends_with_an_error_only() -> None:
    texts = [text.strip() for text in traceback("torch.OutOfMemoryError: no room")]
    (cause,) = tracebacks(*texts[:3], "loss: 3", *texts[3:])
    assert (cause.type, cause.text) == ("OutOfMemoryError", "no room")


def test_a_traceback_that_a_logger_writes() -> None:
    (cause,) = tracebacks(*(f"ERROR 03-14 09:12:44 worker.py:382] {text}" for text in traceback("KeyError: 'x'")))
    assert (cause.type, cause.number) == ("KeyError", 7)


def test_a_traceback_without_an_end_is_dropped() -> None:
    assert (
        tracebacks("Traceback (most recent call last):", '  File "a.py", line 1', *["INFO loss"] * 200, "KeyError: 1")
        == []
    )


def test_of_an_exception_raised_from_another_the_other_is_told() -> None:
    chain = "The above exception was the direct cause of the following exception:"
    (cause,) = tracebacks(*traceback("OSError: disk"), "", chain, "", *traceback("RuntimeError: no data"))
    assert cause.type == "OSError"
    two = tracebacks(*traceback("OSError: disk"), *["step"] * 50, *traceback("RuntimeError: no data"))
    assert [cause.type for cause in two] == ["OSError", "RuntimeError"]


def test_the_inner_traceback_of_a_loaders_worker_is_told() -> None:
    outer = traceback("ValueError: Caught ValueError in DataLoader worker process 0.")
    inner = ["Original Traceback (most recent call last):", *traceback("ValueError: bad image", "data.py", 3)[1:]]
    assert len(tracebacks(*outer, *["step"] * 50, *inner)) == 2, "too far apart"
    (cause,) = tracebacks(*outer, *inner)
    assert (cause.text, cause.file, cause.number) == ("bad image", "data.py", 3)


def test_an_exception_that_the_process_survived_is_no_cause() -> None:
    error = traceback("ValueError: bad image")
    found = conclude(lines([*error, BAR.format(10), BAR.format(20), LOST]))
    assert [cause.slug for cause in found] == ["remote_peer_failure"]
    assert conclude(lines([BAR.format(10), *error, BAR.format(10)]))[0].slug == "app_crash", (
        "a bar is drawn again at its end"
    )


def test_the_same_exception_everywhere_is_one_crash_of_all_ranks() -> None:
    texts = [text for rank in range(4) for text in traceback(f"KeyError: 'item {rank}'", label=f"[rank{rank}]: ")]
    found = conclude(lines(texts))
    assert len(found) == 1 and found[0].where == {"file": "train.py", "line": 7} and found[0].confidence == "high"
    assert found[0].message == "all 4 ranks failed in their own code: KeyError: 'item 0' (train.py:7)"


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistBackendError: something of NCCL's",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "RuntimeError: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.multiprocessing.spawn.ProcessRaisedException:",
        "RuntimeError: Engine core initialization failed",
        "KeyboardInterrupt",
        "subprocess.CalledProcessError: Command died",
    ],
)
def test_an_exception_that_tells_of_anothers_end_is_no_crash(error: str) -> None:
    (alone,) = conclude(lines(traceback(error)))
    assert alone.confidence == "low" and "not visible in this log" in alone.message
    found = conclude(lines([*traceback(error, label="[rank1]: "), *traceback("KeyError: 1", label="[rank2]: ")]))
    assert (found[0].slug, found[0].where["rank"]) == ("app_crash", 2)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        ("KeyboardInterrupt", "external_signal"),
        ("ChildFailedError:", "app_crash"),
        ("EOFError", "remote_peer_failure"),
        ("DistBackendError: NCCL error: remote process exited", "remote_peer_failure"),
        ("DistBackendError: NCCL error: unhandled system error", "app_crash"),
        ("RuntimeError: [1] is setting up a store and timed out", "slow_rank_timeout"),
        ("RendezvousTimeoutError", "rdzv_incomplete"),
    ],
)
def test_what_tells_of_anothers_end_is_called_so(error: str, slug: str) -> None:
    assert conclude(lines(traceback(error)))[0].slug == slug


def test_an_exceptions_line_alone_is_better_than_nothing() -> None:
    found = conclude(lines(["[rank3]: ValueError: bad batch", LOST]))
    assert [(cause.slug, cause.severity) for cause in found] == [("app_crash", "fail"), ("remote_peer_failure", "info")]
    assert found[0].message == "rank 3 failed in its own code: ValueError: bad batch" and found[0].confidence == "low"
    assert conclude(lines(["ValueError: bad", "No space left"]))[0].slug == "shm_exhausted"
    assert conclude(lines(["Warning: an Error was met"])) == []
    assert conclude(lines(["0 Errors: none", "errors were raised", "x = Error"])) == []


def test_a_survived_exceptions_line_is_not_taken_for_one_alone() -> None:
    assert conclude(lines([*traceback("ValueError: bad image"), BAR.format(10), BAR.format(20)])) == []


def test_a_traceback_that_is_cut_off_says_that_its_exception_is_not_visible() -> None:
    (line,) = conclude(lines(traceback("")[:3]))
    assert (line.slug, line.confidence) == ("unknown", "none") and "not visible in this log" in line.message
    assert conclude(lines(["Traceback (most recent call last):"])) == []


def test_an_exception_that_a_signature_knows_is_told_by_it() -> None:
    found = conclude(lines(traceback("torch.OutOfMemoryError: CUDA out of memory")))
    assert [cause.slug for cause in found] == ["gpu_oom"]
    assert conclude(lines(traceback("RuntimeError: internal error")))[0].slug == "ib_fabric_error"


def test_some_ranks_with_the_same_exception_are_named() -> None:
    texts = [text for rank in (0, 1) for text in traceback("KeyError: 1", label=f"[rank{rank}]: ")]
    (found, _) = conclude(lines([*texts, f"[rank2]: {LOST}"]))
    assert found.message == "ranks 0-1 failed in their own code: KeyError: 1 (train.py:7)" and found.where["rank"] == 0


def test_an_exception_that_came_again_after_a_restart() -> None:
    error = traceback("KeyError: 'x'", label="[rank1]: ")
    again = conclude(lines([*error, "Restarting worker group", *["step"] * 50, *error]))
    assert again[0].message.endswith("(train.py:7), 2 times: torchrun started it again")
    assert "times" not in conclude(lines([*error, *["step"] * 50, *error]))[0].message


def test_torchruns_folders_tell_of_attempts() -> None:
    logs = [lines(traceback("KeyError: 1"), f"logs/attempt_{at}/1/stderr.log", rank=1) for at in (0, 1)]
    assert conclude(*logs)[0].message.endswith(", 2 times: torchrun started it again")


def test_processes_without_a_rank_that_fail_alike_are_counted_and_none_is_blamed() -> None:
    logs = [lines(traceback("KeyError: 1"), f"{at}.log", local_rank=at) for at in (0, 1)]
    found = conclude(*logs, lines(traceback("KeyError: 1"), "copy.log"))[0]
    assert found.message.startswith("2 processes failed in their own code")
    assert found.where == {"file": "train.py", "line": 7}


def test_of_an_exception_while_a_librarys_is_handled_the_first_is_told_at_the_users_line() -> None:
    inner = [text for text in traceback("OSError: no room") if "train.py" not in text]
    handled = "During handling of the above exception, another exception occurred:"
    (cause,) = tracebacks(*inner, "", handled, "", *traceback("RuntimeError: half a file"))
    assert (cause.type, cause.file, cause.number) == ("OSError", "train.py", 7)
    assert len(tracebacks(*traceback("KeyError: 1"), handled, *traceback("OSError: 2"))) == 2


def test_a_call_that_was_wrong_is_its_own_fault() -> None:
    error = "RuntimeError: ProcessGroupGloo::broadcast: invalid root rank: 7"
    assert conclude(lines(traceback(error)))[0].confidence == "medium"
    assert "its reason is elsewhere" in conclude(lines(traceback(error.replace("invalid root", "x"))))[0].message


@pytest.mark.parametrize(
    ("code", "slug"), [(-9, "host_oom_kill"), (-7, "shm_exhausted"), (-11, "app_crash"), (-8, "app_crash")]
)
def test_a_signal_outweighs_what_others_raised(code: int, slug: str) -> None:
    texts = [f"[rank1]: {LOST}", f"failed (exitcode: {code}) local_rank: 2 (pid: 7)", *traceback("EOFError")]
    found = conclude(lines(texts, node="node-a"))
    assert (found[0].slug, found[0].where) == (slug, {"node": "node-a", "local_rank": 2})


def box(rank: int, code: int) -> list[str]:
    return [f" rank : {rank} (local_rank: {rank})", f" exitcode : {code} (pid: 8)"]


FIRST = "Root Cause (first observed failure):"


@pytest.mark.parametrize("agent", [[], ["failed (exitcode: -9) local_rank: 1 (pid: 8)"]])
def test_what_torchrun_killed_after_a_failure_did_not_die_first(agent: list[str]) -> None:
    texts = [*agent, "Failures:", *box(1, -9), FIRST, *box(2, 1)]
    found = conclude(lines(texts))
    assert (found[0].slug, found[0].where, found[0].seen_at["rank"]) == ("unknown", {}, 2)
    assert found[0].message.endswith(
        "rank 2 ended with exit code 1, the first that torchrun saw; its own output says why"
    )
    raised = conclude(lines([*texts, *traceback("KeyError: 1", label="[rank2]: ")]))
    assert (raised[0].slug, raised[0].where["line"]) == ("app_crash", 7)
    assert "host_oom_kill" not in {cause.slug for cause in (*found, *raised) if cause.severity == "fail"}


def test_the_first_that_failed_and_had_only_lost_its_peer_is_not_to_blame() -> None:
    lost = traceback("RuntimeError: Connection closed by peer", label="[rank2]: ")
    found = conclude(lines([*lost, FIRST, *box(2, 1)]))
    assert (found[0].slug, found[0].where) == ("remote_peer_failure", {}) and "exit code 0" in found[0].message
    late = conclude(lines([*traceback("TimeoutError: timed out", label="[rank2]: "), FIRST, *box(2, 1)]))
    assert late[0].slug == "slow_rank_timeout" and not any(cause.where for cause in late), "its own output says why"


def test_a_box_without_its_head_tells_who_died_all_the_same() -> None:
    (found,) = conclude(lines(box(3, -11)))
    assert found.where == {"rank": 3, "local_rank": 3} and found.confidence == "medium"


def test_of_two_signals_the_root_cause_of_torchruns_box_is_the_cause() -> None:
    found = conclude(lines(["Failures:", *box(1, -9), FIRST, *box(2, -11)]))
    assert (found[0].slug, found[0].where["rank"]) == ("app_crash", 2)


def test_the_end_by_sigterm_is_an_aftermath() -> None:
    found = conclude(lines(["closing signal SIGTERM", "failed (exitcode: -11) local_rank: 2 (pid: 7)"]))
    assert [(cause.slug, cause.severity) for cause in found] == [("app_crash", "fail"), ("external_signal", "info")]


def test_what_is_kept_is_bounded_and_all_is_counted() -> None:
    made = Timeline()
    (match,) = BOOK.matches(Line(LOST, LOST, "", 1, 1))
    for number in range(3 * SOURCES):
        for _ in range(EACH + 3):
            line = Line(LOST, LOST, "job.log", number, number, rank=number)
            made.add(line, BOOK.matches(line))
    kept = made.seen[match.signature.name]
    assert kept.count == 3 * SOURCES * (EACH + 3) and len(kept.ranks) == 3 * SOURCES
    assert len(kept.matches()) == SOURCES * (EACH + 2), "the first ones and the last two"


def test_very_long_lines_fill_the_room_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.explain.observations.ROOM", 50_000)
    made, long = Timeline(), LOST + 8000 * "x"
    for number in range(100):
        line = Line(long, long, f"{number}.log", 1, number)
        made.add(line, BOOK.matches(line))
    assert len(made.seen["lost"].matches()) < 6 and made.seen["lost"].count == 100


def test_the_tracebacks_of_one_source_are_bounded() -> None:
    assert len(tracebacks(*(traceback("KeyError: 1") * 3 * TRACEBACKS))) == TRACEBACKS


def test_lines_wanted_are_those_of_the_signature() -> None:
    made = Timeline()
    (line,) = lines(["Traceback (most recent call last):"])
    assert made.add(line, BOOK.matches(line)) == 80 and made.add(line, []) == 0


def test_ranks_that_cannot_be_are_not_kept() -> None:
    made = Timeline()
    line = Line(LOST, LOST, "job.log", 1, 1, rank=10**12)
    made.add(line, BOOK.matches(line))
    assert made.ranks == {} and conclude([line])[0].ranks == frozenset()


def test_the_first_matches_come_first_in_time() -> None:
    made = Timeline()
    for file, time in (("b.log", 9.0), ("a.log", 3.0)):
        for line in lines([timeout(0)], file, time=time, clock="glog"):
            made.add(line, BOOK.matches(line))
    assert [match.line.file for match in made.matches("watchdog.timeout")] == ["a.log", "b.log"]
