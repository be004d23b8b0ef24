"""The cause, not the loudest line: made-up failures, and what explain concludes."""

import random
from dataclasses import replace
from typing import Any

import pytest

from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.book import Book, book
from preflight.failure_book.line import Line
from tests.made_failures import BOOK, CAUSES, conclude, lines, row, timeout, traceback

TIMES = ((1, 1.0), (2, 5.0))
LOST = "Connection closed by remote peer node-d<4242>"


def first(found: list[Candidate]) -> tuple[str, str, str]:
    return found[0].slug, found[0].severity, found[0].confidence


def artifact(slug: str = "gpu_hw_fault", weight: int = 80, **more: Any) -> Candidate:
    return from_artifact(
        slug, "GPU 3 has lost an NVLink", {"node": "node-d", "gpu": 3}, (), "report.json", weight, **more
    )


def test_a_healthy_log_says_nothing() -> None:
    assert conclude(lines(["step 1 loss 2", "Init COMPLETE", "closed door"])) == []


def test_a_line_that_names_the_cause_comes_before_louder_ones() -> None:
    found = conclude(lines(["internal error", "internal error", LOST, "No space left on device", "internal error"]))
    assert first(found) == ("shm_exhausted", "fail", "high")
    assert found[0].lines[0].number == 4 and found[0].fix == book().causes["shm_exhausted"].fix


def test_of_two_that_are_as_direct_the_first_one_is_the_cause() -> None:
    early = conclude(lines(["CUDA out of memory", "No space left on device"]))
    late = conclude(lines(["No space left on device", "CUDA out of memory"]))
    assert (early[0].slug, late[0].slug) == ("gpu_oom", "shm_exhausted")
    assert [(cause.slug, cause.severity, cause.confidence) for cause in early[1:]] == [("shm_exhausted", "warn", "low")]
    assert early[1].message.startswith("also possible: ") and early[0].confidence == "medium"


def test_a_much_more_direct_line_is_the_cause_although_it_comes_later() -> None:
    rows = [row("weak", "odd", "port_in_use", "cause", weight=40), row("strong", "sure", "gpu_oom", "cause", weight=80)]
    found = conclude(lines(["odd", "sure"]), book=Book(CAUSES, rows))
    assert [cause.slug for cause in found] == ["gpu_oom"]


def test_two_readings_of_one_line_are_no_two_causes() -> None:
    rows = [row("one", "odd", "port_in_use", "cause", weight=70), row("other", "odd", "gpu_oom", "cause", weight=75)]
    (found,) = conclude(lines(["odd"]), book=Book(CAUSES, rows))
    assert (found.slug, found.confidence) == ("gpu_oom", "high")
    rows = [row("a", "odd", "port_in_use", "failure", weight=20), row("b", "odd", "gpu_oom", "failure", weight=21)]
    assert [cause.slug for cause in conclude(lines(["odd"]), book=Book(CAUSES, rows))] == ["gpu_oom"], (
        "nor beside a guess"
    )


def test_the_first_in_time_is_found_in_whatever_order_the_files_are_read() -> None:
    texts = {5: "CUDA out of memory", 3: "No space left on device", 9: "address already in use"}
    files = [lines([text], f"{at}.log", rank=at, time=float(at), clock="iso") for at, text in texts.items()]
    for seed in range(6):
        random.Random(seed).shuffle(files)
        assert conclude(*files)[0].slug == "shm_exhausted"


def test_a_line_without_a_clock_is_as_late_as_the_one_before_it() -> None:
    timed = lines(["No space left on device"], "a.log", time=2.0, clock="iso")
    begun, step = (Line("nothing", "", "b.log", number, number, time=float(at), clock="iso") for number, at in TIMES)
    error = Line("CUDA out of memory", "", "b.log", 50, 50)
    assert conclude(timed, [begun, error])[0].slug == "gpu_oom"
    assert conclude([begun, step, error], timed)[0].slug == "shm_exhausted"


def test_two_ranks_of_one_gpu_are_named_once_although_both_say_so() -> None:
    found = conclude(lines(["rank 0 and rank 4 both on 1a000", "rank 4 and rank 0 both on 1a000",
                        "rank 1 and rank 5 both on 1b000"]))  # fmt: skip
    assert found[0].message == (
        "ranks 0 and 4 are both on 1a000, expected one; ranks 1 and 5 are both on 1b000, expected one"
    )
    assert found[0].where == {"rank": 0, "peer_rank": 4} and found[0].fix == "look at 1a000"


def test_ranks_that_say_the_same_are_told_as_ranges() -> None:
    found = conclude(lines([f"[rank{rank}]: No space left" for rank in (0, 1, 2, 7)], node="node-a"))
    assert found[0].message == "ranks 0-2,7 on node-a: No space left" and found[0].ranks == frozenset()
    assert found[0].where == {"node": "node-a"} and len(found[0].lines) == 4


def test_what_the_same_ranks_say_in_many_ways_names_them_once() -> None:
    book = Book(CAUSES, [row("shm", r"full: (?P<file>\w+)", "shm_exhausted", "cause", says="{file} is full")])
    (found,) = conclude(lines(["[rank1]: full: a", "[rank1]: full: b", "[rank2]: full: c"]), book=book)
    assert found.message == "rank 1: a is full; b is full; rank 2: c is full" and found.where == {
        "rank": 1,
        "file": "a",
    }


def test_a_line_that_names_another_rank_does_not_blame_its_own_node() -> None:
    book = Book(CAUSES, [row("named", r"rank (?P<rank>\d+) is lost", "gpu_hw_fault", "cause", says="rank {rank} is")])
    assert conclude(lines(["[rank3]: rank 3 is lost"], node="node-a"), book=book)[0].where["node"] == "node-a"
    assert conclude(lines(["[rank4]: rank 3 is lost"], node="node-a"), book=book)[0].where == {"rank": 3}


def test_one_rank_crashed_and_63_only_lost_their_peer() -> None:
    texts = [f"[rank{rank}]: {LOST}" for rank in range(64) if rank != 37]
    box = ["Root Cause (first observed failure):", "[0]:", "  host : node-d", "  rank : 37 (local_rank: 5)",
           "  exitcode : -11 (pid: 4242)"]  # fmt: skip
    found = conclude(lines([*texts, *box]))
    assert first(found) == ("app_crash", "fail", "medium") and "SIGSEGV" in found[0].message
    assert found[0].where == {"node": "node-d", "rank": 37, "local_rank": 5}
    assert found[0].ranks == {*range(37), *range(38, 64)}
    (after,) = found[1:]
    assert (after.severity, after.message) == ("info", "63 ranks only lost their peer (0-36,38-63)")


def test_the_aftermath_of_1000_ranks_is_one_line() -> None:
    files = [lines([LOST] * 50, f"{rank}.log", rank=rank) for rank in range(1000)]
    found = conclude(*files, lines(["[rank7]: uncorrectable ECC"], "all.log"))
    assert [(cause.slug, cause.severity) for cause in found] == [
        ("gpu_hw_fault", "fail"),
        ("remote_peer_failure", "info"),
    ]
    assert "999 ranks" in found[1].message and len(found[1].lines) == 5


def test_where_only_survivors_speak_it_says_whose_log_to_read() -> None:
    found = conclude(lines([f"[rank1]: {LOST}"]))
    assert first(found) == ("remote_peer_failure", "fail", "low")
    assert found[0].message.endswith("not visible in this log, read the log of node-d<4242>")
    assert found[0].where == {"peer_node": "node-d<4242>"} and found[0].ranks == {1}


@pytest.mark.parametrize(
    ("texts", "slugs"),
    [
        (["mlx5_0:1/IB", "Using network Socket"], ["degraded_path"]),
        (["Using network Socket"], []),
        (["mlx5_0:1/IB", "NCCL_IB_DISABLE", "Using network Socket"], []),
        (["mlx5_0:1/IB", "Using network Socket", "CUDA out of memory"], ["gpu_oom", "degraded_path"]),
    ],
)
def test_a_slower_path_is_a_warning_behind_the_cause(texts: list[str], slugs: list[str]) -> None:
    found = conclude(lines(texts))
    assert [cause.slug for cause in found] == slugs
    assert all(cause.severity == "warn" for cause in found if cause.slug == "degraded_path")


def test_a_live_check_and_the_log_that_say_the_same_are_joined() -> None:
    found = conclude(lines(["uncorrectable ECC"]), artifacts=[artifact()])
    assert len(found) == 1 and found[0].quotes == artifact().quotes and found[0].lines
    assert found[0].message == "uncorrectable ECC (report.json says so too)" and found[0].where == artifact().where
    killed = lines(["failed (exitcode: -9) local_rank: 2 (pid: 7)"])
    assert (conclude(killed)[0].confidence, conclude(killed, artifacts=[artifact("host_oom_kill")])[0].confidence) == (
        "medium",
        "high",
    )


def test_a_candidate_that_names_the_culprit_is_told_instead_of_a_survivors_wait() -> None:
    late = artifact("slow_rank_timeout", 45)
    (found,) = conclude(lines(["[rank0]: wait timeout after 6000ms"]), artifacts=[late])
    assert (found.message, found.where) == (late.message, late.where) and found.lines and found.quotes == late.quotes
    nobody = from_artifact("slow_rank_timeout", "somebody", {}, (), "x.json", 40)
    assert conclude(lines(["wait timeout after 6000ms"]), artifacts=[nobody])[0].message.startswith(
        "wait timeout after"
    )
    assert (
        conclude(lines(["wait timeout after 6000ms"]), artifacts=[replace(nobody, weight=45)])[0].message == "somebody"
    )


def test_a_candidate_adds_what_the_log_does_not_say_of_the_culprit() -> None:
    log = lines(["uncorrectable ECC"], local_rank=5)
    whole = conclude(log, artifacts=[from_artifact("gpu_hw_fault", "m", {"rank": 13}, (), "r", 80)])[0]
    assert whole.where == {"rank": 13, "local_rank": 5}
    other = conclude(log, artifacts=[from_artifact("gpu_hw_fault", "m", {"rank": 13, "local_rank": 4}, (), "r", 80)])[0]
    assert other.where == {"local_rank": 5}


@pytest.mark.parametrize(
    ("path", "rank"), [("/home/me/train.py", 1), ("train.py", 1), ("me/train.py", 1), ("rain.py", None)]
)
def test_a_path_may_be_relative_to_the_jobs_folder(path: str, rank: int | None) -> None:
    where = {"rank": 1, "file": path, "line": 7}
    log = lines(traceback("ValueError: odd", "/home/me/train.py"))
    found = conclude(log, artifacts=[from_artifact("app_crash", "m", where, (), "r", 60)])[0].where
    assert (found.get("rank"), found["file"]) == (rank, "/home/me/train.py")


def test_one_ranks_consequence_is_told_in_the_singular_and_once() -> None:
    error = traceback("ConnectionResetError: reset", label="[rank1]: ")
    found = conclude(lines([*traceback("KeyError: 1", label="[rank0]: "), *error, f"[rank1]: {LOST}"]))
    assert [cause.message for cause in found[1:]] == ["1 rank only lost its peer (1)"]


def test_a_store_that_is_gone_is_a_warning_where_nothing_else_failed() -> None:
    """Ranks of a healthy job leave in no order."""
    lost = (
        "[c10d] recvValue failed on SocketImpl(fd=3, addr=[b]:41170, remote=[node-a]:29500): Connection reset by peer"
    )
    assert [cause.severity for cause in conclude(lines(["step 7", lost], rank=1), book=book())] == ["warn"]
    failed = conclude(lines(["step 7", lost, *traceback("ValueError: odd")], rank=1), book=book())
    assert [(cause.slug, cause.severity) for cause in failed] == [("app_crash", "fail")]


def test_the_loopback_address_of_a_peer_names_nobody() -> None:
    (found,) = conclude(lines(["[rank0]: closed by remote peer 127.0.0.1"]))
    assert found.where == {} and found.message.endswith("read the log of the other ranks")


def test_an_interruption_that_all_tell_of_and_a_mismatch_blame_no_speaker() -> None:
    rows = [row("int", "interrupted", "external_signal", "cause"),
            row("odd", "unlike sizes", "collective_mismatch", "cause")]  # fmt: skip
    book = Book(CAUSES, rows)
    assert conclude(lines(["[rank0]: interrupted", "[rank1]: interrupted"]), book=book)[0].where == {}
    assert conclude(lines(["[rank0]: interrupted"]), book=book)[0].where == {"rank": 0}
    assert conclude(lines(["[rank0]: unlike sizes"]), book=book)[0].where == {}


def test_a_signal_from_outside_is_no_cause_of_what_had_failed_before_it() -> None:
    limit = row("limit", "TIME LIMIT", "external_signal", "cause", weight=85)
    book = Book(CAUSES, [*BOOK.signatures, limit])
    crash, hang = traceback("KeyError: 1", label="[rank3]: "), [timeout(rank) for rank in range(8) if rank != 5]
    for texts, slug, rank in ((crash, "app_crash", 3), (hang, "slow_rank_timeout", 5)):
        found = conclude(lines([*texts, "TIME LIMIT"]), book=book)
        assert first(found) == (slug, "fail", "medium") and found[0].where["rank"] == rank
        assert (found[1].slug, found[1].severity) == ("external_signal", "warn")
        assert conclude(lines(["TIME LIMIT", *texts]), book=book)[0].slug == "external_signal"
        again = conclude(lines(["TIME LIMIT", "comm 0x1 rank 0 nranks 8 - Init COMPLETE", *texts]), book=book)
        assert first(again) == (slug, "fail", "medium") and again[0].where["rank"] == rank
        assert conclude(lines(["TIME LIMIT"], "a"), lines(texts, "b"), book=book)[0].slug == "external_signal"


def test_that_all_had_come_once_says_nothing_of_the_next_attempt() -> None:
    name = row("name", "does not resolve", "hostname_resolution", "cause", unless=("nccl.init_complete",), weight=70)
    book = Book(CAUSES | {"hostname_resolution": CAUSES["app_crash"]}, [*BOOK.signatures, name])
    came, failed = "comm 0x1 rank 0 nranks 4 - Init COMPLETE", "CUDA out of memory"
    assert conclude(lines([came, name.example, failed]), book=book)[0].slug == "hostname_resolution"
    for healthy in ([name.example, came], [came, name.example], [came, name.example, came]):
        assert conclude(lines(healthy), book=book) == []
    for excused in ([name.example, came, failed], [came, failed, name.example]):
        assert [cause.slug for cause in conclude(lines(excused), book=book)] == ["gpu_oom"]
    assert conclude(lines([came], "0.log"), lines([name.example, failed], "1.log"), book=book)[0].slug == "gpu_oom"


def test_beside_a_guess_the_next_one_is_told() -> None:
    book = Book(CAUSES, [row("end", "abort", "app_crash", "failure", weight=22), row("odd", "odd", "gpu_oom", "failure",
                         weight=10), row("sure", "sure", "gpu_oom", "cause", weight=80)])  # fmt: skip
    assert [cause.slug for cause in conclude(lines(["abort", "odd"]), book=book)] == ["app_crash", "gpu_oom"]
    assert [cause.slug for cause in conclude(lines(["abort", "sure"]), book=book)] == ["gpu_oom"]


@pytest.mark.parametrize(
    "text",
    [
        "[node-a:1234] Primary job terminated normally, but 1 process returned a non-zero exit code.",
        "srun: error: node-a: task 3: Exited with exit code 1",
        "failed (exitcode: 1) local_rank: 2 (pid: 7)",
    ],
)
def test_below_low_it_says_what_it_saw_and_names_no_cause(text: str) -> None:
    first = conclude(lines([text]), book=book())[0]
    assert (first.slug, first.severity, first.confidence) == ("unknown", "fail", "none")
    assert first.message.startswith("these logs do not show why the job failed; seen: ") and first.fix
    beside = conclude(lines([text, "[rank0]: torch.OutOfMemoryError: CUDA out of memory."]), book=book())
    assert (beside[0].slug, beside[0].confidence) == ("gpu_oom", "high")


def test_a_candidate_competes_by_its_weight() -> None:
    strong = conclude(lines(["internal error"]), artifacts=[artifact(weight=80)])
    weak = conclude(lines(["CUDA out of memory"]), artifacts=[artifact(weight=40)])
    assert (strong[0].slug, weak[0].slug) == ("gpu_hw_fault", "gpu_oom")
    assert conclude(artifacts=[artifact(weight=80)])[0].message == "GPU 3 has lost an NVLink"


def test_a_live_warning_stays_one_and_explains_no_survivor() -> None:
    warned = artifact("ib_memlock_limit", 30, code="node.limits.memlock")
    assert [(cause.slug, cause.severity) for cause in conclude(artifacts=[warned])] == [("ib_memlock_limit", "warn")]
    found = conclude(lines([LOST]), artifacts=[warned])
    assert [(cause.slug, cause.severity) for cause in found] == [
        ("remote_peer_failure", "fail"),
        ("ib_memlock_limit", "warn"),
    ]
    ecc = conclude(lines(["uncorrectable ECC"]), artifacts=[artifact(weight=30, code="gpu.health.corrected")])
    assert [(cause.slug, cause.severity, len(cause.quotes)) for cause in ecc] == [("gpu_hw_fault", "fail", 1)]


def test_what_a_live_finding_may_also_mean_counts_only_beside_a_log_that_says_so() -> None:
    surmise = artifact(weight=10, code="comm.init.gpu_failed")
    assert conclude(artifacts=[surmise]) == []
    assert conclude(lines(["uncorrectable ECC"]), artifacts=[surmise])[0].quotes == surmise.quotes


def test_a_live_failure_explains_survivors() -> None:
    found = conclude(lines([LOST]), artifacts=[artifact(weight=80, code="gpu.health.uncorrected")])
    assert [(cause.slug, cause.severity) for cause in found] == [
        ("gpu_hw_fault", "fail"),
        ("remote_peer_failure", "info"),
    ]


def test_a_live_finding_without_a_cause_keeps_its_code() -> None:
    found = conclude(artifacts=[artifact("", 80, code="node.clock.skew", fix="set the clock")])
    assert (found[0].slug, found[0].code, found[0].fix) == ("node.clock.skew", "node.clock.skew", "set the clock")


def test_the_out_of_memory_outweighs_the_time_outs_behind_it() -> None:
    texts = ["[rank5]: CUDA out of memory", *(timeout(rank) for rank in range(8) if rank != 5)]
    found = conclude(lines(texts))
    assert first(found) == ("gpu_oom", "fail", "high") and found[0].where["rank"] == 5
    assert found[1].message == "7 ranks only waited until their timeout (0-4,6-7)" and found[1].severity == "info"


def test_torchruns_view_yields_to_the_ranks_own_exception() -> None:
    box = ["Root Cause (first observed failure):", "  rank : 2 (local_rank: 2)", "  exitcode : 1 (pid: 9)"]
    texts = [*traceback("ValueError: bad batch", label="[rank5]: "), f"[rank2]: {LOST}", *box]
    found = conclude(lines(texts))
    assert first(found) == ("app_crash", "fail", "high")
    assert found[0].where == {"rank": 5, "file": "train.py", "line": 7}
    assert found[0].message == "rank 5 failed in its own code: ValueError: bad batch (train.py:7)"


def test_the_same_lines_give_the_same_report_twice() -> None:
    texts = [f"[rank{rank}]: {LOST}" for rank in range(20)] + ["internal error", *traceback("KeyError: 'x'")]
    assert repr(conclude(lines(texts))) == repr(conclude(lines(texts)))
    assert conclude(lines(texts))[0].fix == "Look at train.py:7: its traceback shows the calls that led there."


@pytest.mark.parametrize(("code", "sure"), [(-11, "medium"), (-7, "medium"), (-6, "low"), (-15, "low"), (-2, "low")])
def test_only_a_signal_that_decides_names_the_cause(code: int, sure: str) -> None:
    """SIGABRT's reason is in the output, and SIGTERM comes from a launcher."""
    found = conclude(lines([f"failed (exitcode: {code}) local_rank: 2 (pid: 7)"]))
    assert found[0].confidence == sure and ("was ended by SIG" in found[0].message) == (sure == "medium")


def test_neither_side_of_a_mismatch_is_called_innocent() -> None:
    """Without a majority nobody knows which of two is right; the pair that a line names is no victim, either."""
    text = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=BARRIER), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE)."
    )
    found = conclude(lines([f"[rank0]: {text}", f"[rank1]: {text}", f"[rank2]: {text}"]), book=book())
    assert found[0].slug == "collective_mismatch" and not {0, 1} & found[0].ranks


OPTIONS = "TensorOptions(dtype=float (default), device={}, pinned_memory=false (default), memory_format=(nullopt))"


@pytest.mark.parametrize(
    ("mine", "other", "says"),
    [
        ("OpType=ALLREDUCE, TensorShape=[1, 4096]", "OpType=ALLREDUCE, TensorShape=[1, 2048]",
         "rank 0 runs ALLREDUCE of [1, 4096], but rank 1 runs ALLREDUCE of [1, 2048]"),
        ("OpType=ALLREDUCE, TensorShape=[8], [4]", "OpType=BARRIER",
         "rank 0 runs ALLREDUCE of [8], [4] Float on cuda, but rank 1 runs BARRIER"),
        ("SequenceNumber=7, OpType=ALLREDUCE", "SequenceNumber=8, OpType=ALLREDUCE",
         "rank 0 runs ALLREDUCE #7, but rank 1 runs ALLREDUCE #8"),
    ],
)  # fmt: skip
def test_two_fingerprints_are_shortened_to_what_differs(mine: str, other: str, says: str) -> None:
    about = f", TensorDtypes=Float, TensorDeviceTypes={OPTIONS.format('cuda')}"
    first, second = (text + about * (text != "OpType=BARRIER") for text in (mine, other))
    text = (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        f"CollectiveFingerPrint({first}), but Rank 1 is running collective: CollectiveFingerPrint({second})."
        "Collectives differ in the following aspects: \t Tensor Tensor shapes: [1, 4096]vs [1, 2048]"
    )
    found = conclude(lines([f"[rank0]: {text}"]), book=book())
    assert found[0].message == f"{says}: expected the same call on all ranks"


def test_the_fix_names_the_port_that_is_taken() -> None:
    text = (
        "RuntimeError: The server socket has failed to listen on any local network address. port: 29511, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    found = conclude(lines([f"[rank0]: {text}"]), book=book())
    assert found[0].slug == "port_in_use" and "sport = :29511" in found[0].fix
