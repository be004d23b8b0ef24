"""What stands before a message is taken off, and understood."""

import random
import time
from typing import Any

import pytest

from preflight.explain.read.prefixes import Habit, strip

SAYS = "Duplicate GPU detected : rank 0 and rank 3"
CASES: list[tuple[str, dict[str, Any]]] = [
    (
        f"node-a:4101:4177 [3] init.cc:871 NCCL WARN {SAYS}",
        {"node": "node-a", "pid": 4101, "gpu": 3, "level": "WARN", "place": "init.cc:871"},
    ),
    (
        f"[2026-04-22 21:34:20] node-a:4101:4177 [0] misc/socket.cc:88 (ncclSocketOpen) NCCL WARN {SAYS}",
        {"node": "node-a", "clock": "nccl", "place": "socket.cc:88", "gpu": 0},
    ),
    (f"node-a:4101:4177 [0] 123.456789 init.cc:12 NCCL TRACE {SAYS}", {"level": "TRACE", "place": "init.cc:12"}),
    (f"node-a:4101:4177 NCCL CALL {SAYS}", {"level": "CALL", "pid": 4101, "gpu": None}),
    (f"node-a:4101:4177 [-1] NCCL INFO {SAYS}", {"level": "INFO", "gpu": None}),
    (f"node-a:4101:4101 [0] misc/ibvwrap.cu:61 WARN {SAYS}", {"level": "WARN", "node": "node-a"}),
    (f"misc/ibvwrap.cu:61 WARN {SAYS}", {"level": "WARN", "place": "ibvwrap.cu:61"}),
    (f"[3] include/shm.h:28 NCCL WARN {SAYS}", {"gpu": 3, "place": "shm.h:28"}),
    (f"misc/ibvwrap.cc:278 NCCL WARN {SAYS}", {"gpu": None, "place": "ibvwrap.cc:278", "level": "WARN"}),
    (f"NCCL WARN {SAYS}", {"level": "WARN", "node": ""}),
    (f"> `node-a:4101:4177 [0] NCCL INFO {SAYS}", {"node": "node-a", "level": "INFO"}),
    (f"gpu07:12:34 [0] /build/rccl/hipify/src/init.cc:179 NCCL WARN {SAYS}", {"node": "gpu07", "place": "init.cc:179"}),
    (f"node-a:XXXXXX [5] ibvwrap.c:262 NCCL WARN {SAYS}", {"node": "node-a", "pid": None, "gpu": 5}),
    (
        f"2019-06-02T16:13:44.884Z: [1,12]<stderr>:node-a:946:995 [0] transport/net_ib.cu:80 NCCL WARN {SAYS}",
        {"task": 12, "node": "node-a", "clock": "iso", "time": 1559492024.884},
    ),
    (f"[prterun-node-a-17@1,5]<stdout>: {SAYS}", {"task": 5}),
    (f"[1,mpirank:3,algo-2]<stderr>:{SAYS}", {"task": 3, "node": "algo-2"}),
    (f"Thu Jul 25 12:48:53 2024[1,5]<stderr>:{SAYS}", {"task": 5, "time": 1721911733.0}),
    (f"2024-07-25T12:48:53.123456789Z stdout F [rank3]: {SAYS}", {"rank": 3, "clock": "iso"}),
    (f"2024-07-25T14:48:53+02:00 {SAYS}", {"clock": "iso", "time": 1721911733.0}),
    (f"2024-07-25 12:48:53,123 {SAYS}", {"clock": "local", "time": 1721911733.123}),
    (f"INFO 2024-07-25 12:48:53,123 {SAYS}", {"clock": "local"}),
    (f"[default3]:[rank11]: {SAYS}", {"local_rank": 3, "rank": 11}),
    (f"[rank: 6] {SAYS}", {"rank": 6}),
    (f"[rank8] {SAYS}", {"rank": 8}),
    (
        f"[rank2]:[E513 13:25:57.714781669 ProcessGroupNCCL.cpp:616] {SAYS}",
        {"rank": 2, "level": "E", "clock": "glog", "place": "ProcessGroupNCCL.cpp:616"},
    ),
    (f"[W socket.cpp:601] {SAYS}", {"level": "W", "place": "socket.cpp:601"}),
    (
        f"W1212 03:27:32.718000 4609 torch/distributed/elastic/multiprocessing/api.py:891] {SAYS}",
        {"level": "W", "pid": 4609, "place": "api.py:891", "clock": "glog"},
    ),
    (f"W0531 12:06:31.123000 140703128616960 torch/distributed/run.py:757] {SAYS}", {"pid": None, "level": "W"}),
    (f"WARNING:torch.distributed.run:{SAYS}", {"level": "", "bare": True}),
    (f"[2023-12-11 04:00:00,123] torch.distributed.run: [WARNING] {SAYS}", {"clock": "local"}),
    (f"[2024-01-01 12:00:00,123] [INFO] [launch.py:319:sigkill_handler] {SAYS}", {"clock": "local"}),
    (f"node-a: [2024-01-01 12:00:00,123] [INFO] {SAYS}", {}),
    (
        f"\x1b[36m(RayWorkerWrapper pid=2109, ip=10.0.0.2)\x1b[0m [rank9]:[W ProcessGroupGloo.cpp:721] {SAYS}",
        {"node": "10.0.0.2", "pid": 2109, "rank": 9, "level": "W"},
    ),
    (f"(train_fn pid=17) {SAYS}", {"pid": 17, "node": ""}),
    (f"(VllmWorker rank=1 pid=1234) ERROR 08-02 08:50:03 [core.py:382] {SAYS}", {"rank": 1, "clock": "day"}),
    (f"worker-1  | {SAYS}", {"node": "worker-1"}),
    (f"[pod/worker-0/pytorch] {SAYS}", {"node": "worker-0"}),
    (f"worker-0 pytorch node-a:4101:4177 [0] NCCL INFO {SAYS}", {"node": "node-a", "level": "INFO"}),
    (f"10.0.0.2: {SAYS}", {"node": "10.0.0.2"}),
    (f"12: node-a:4101:4177 [0] NCCL INFO {SAYS}", {"task": 12, "node": "node-a"}),
    (f"node-a: [rank3]: {SAYS}", {"node": "node-a", "rank": 3}),
    (f"[node-a:3039 :0:3095] {SAYS}", {"node": "node-a", "pid": 3039}),
    (f"[ 1234.567890] {SAYS}", {"clock": "elapsed", "time": 1234.56789}),
    (f"Jun  2 16:13:44 node-a kernel: [ 1234.567890] {SAYS}", {"node": "node-a", "clock": "day"}),
    (
        '{"log":"[rank3]: ' + SAYS + r'\n","stream":"stderr","time":"2024-07-25T12:48:53.5Z"}',
        {"rank": 3, "clock": "iso"},
    ),
    ('{"message": "' + SAYS + '", "hostname": "node-a"}', {"node": "node-a"}),
]


@pytest.mark.parametrize(("raw", "says"), CASES, ids=range(len(CASES)))
def test_a_prefix_is_taken_off_and_read(raw: str, says: dict[str, Any]) -> None:
    said = strip(raw)
    assert {name: getattr(said, name) for name in says} == {
        name: pytest.approx(value) if name == "time" else value for name, value in says.items()
    }
    assert said.text == SAYS if "node-a: [2024" not in raw else said.text.endswith(SAYS)


@pytest.mark.parametrize(
    "raw",
    [
        "[0]eth0:10.0.0.1<0>",
        "RuntimeError: no",
        "12: that is all",
        "[file.py:492] no node",
        "node-a: no",
        "| NVIDIA-SMI 550.54 |",
        "`Trainer.fit` stopped",
        '{"lr": 0.1}',
        "{not json}",
        "[]",
        "[1234]",
        "2024-99-99 99:99:99,1",
    ],
)
def test_what_is_no_sure_prefix_stays(raw: str) -> None:
    said = strip(raw)
    assert said.text == raw.strip() or said.time is None
    assert (said.rank, said.task, said.node, said.gpu, said.pid, said.time) == (None, None, "", None, None, None)


def test_a_habit_makes_a_label_sure() -> None:
    assert strip("12: that is all", Habit(tasks=True)).task == 12
    assert strip("node-a: no", Habit(hosts={"node-a"})).node == "node-a"


def test_what_nccl_says_is_not_taken_for_a_prefix() -> None:
    said = strip("node-a:4101:4177 [0] NCCL INFO 10.0.0.2: is near")
    assert (said.node, said.text) == ("node-a", "10.0.0.2: is near")


def test_a_rank_in_a_group_is_global_in_the_default_one_only() -> None:
    def rank(group: str) -> int | None:
        return strip(f"[E ProcessGroupNCCL.cpp:1316] [{group} Rank 3] Heartbeat").rank

    assert (rank("PG 0"), rank("PG ID 0 PG GUID 0(default_pg)"), rank("PG 0 (default_pg)")) == (3, 3, 3)
    assert (rank("PG 5"), rank("PG ID 0 PG GUID 7(tp)"), rank("PG ID 2 PG GUID 7(tp)")) == (None, None, None)
    assert strip("[rank7]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 3] Heartbeat").rank == 7
    assert strip("[Rank 3] Watchdog").group_rank == 3


def test_a_prefix_in_the_middle_divides_the_line() -> None:
    said = strip(
        "92%|###  | 92/100 [29:58<12:05, 41.59it/s][rank1]:[W516 14:34:56.853490829 socket.cpp:464] [c10d] wait"
    )
    assert (said.text, said.rank, said.place) == ("[c10d] wait", 1, "socket.cpp:464")
    assert said.front
    assert said.front.text == "92%|###  | 92/100 [29:58<12:05, 41.59it/s]"
    assert said.front.rank is None
    two = strip("[rank2]: half a lin[rank5]: RuntimeError")
    assert (two.rank, two.front and two.front.rank) == (5, 2)
    torn = strip("node-a:4102:4191 [2] NCCL INFO misc/socnode-a:4103:4192 [3] net_ib.cc:9 NCCL WARN NET/IB : Got")
    assert (torn.text, torn.node, torn.gpu, torn.level) == ("NET/IB : Got", "node-a", 3, "WARN")


def test_stamps_of_a_clock_are_in_order() -> None:
    lines = ["[E1231 23:59:59.9 a.cpp:1] x", "[E101 00:00:00.1 a.cpp:1] x", "[E229 00:00:00.1 a.cpp:1] x"]
    times = [strip(line).time or 0.0 for line in lines]
    assert times[1] < times[2] < times[0]


def test_garbage_never_raises() -> None:
    random.seed(7)
    pieces = [raw for raw, _ in CASES] + ["[", "(", "{", "\x1b[", "[rank", "NCCL WARN ", ":1:2 [0] ", " ", "\0", "é"]
    for _ in range(3000):
        text = "".join(part[random.randrange(len(part)) :][:40] for part in random.choices(pieces, k=5))
        assert isinstance(strip(text).text, str)


@pytest.mark.parametrize(
    "unit", ["a", "1:", "[", "(a pid=", "a:1:2 [0] ", "[rank1]", " ", "node-1 ", "a-1_", "> ", "NCCL "]
)
def test_a_long_line_takes_time_as_its_length(unit: str) -> None:
    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        return min(_timed(text) for _ in range(3))

    assert seconds(400_000) < 60 * seconds(20_000) + 0.05


def _timed(text: str) -> float:
    begin = time.process_time()
    strip(text)
    return time.process_time() - begin


@pytest.mark.parametrize("digit", "987654321")
def test_a_line_is_read_by_its_own_digits(digit: str) -> None:
    """Which prefix a line has is remembered for lines that differ in their digits."""
    for text in ("[rank{0}]: text", "[rank{0}]:[W11{0}{0} {0}{0}:{0}{0}:{0}{0}.{0} socket.cpp:7] text"):
        assert strip(text.format(digit)).rank == int(digit)
        assert strip(text.format(digit * 8)).rank is None
    line = strip(f"node-{digit}:{digit * 4}:{digit * 4} [{digit}] NCCL INFO text")
    assert (line.node, line.pid, line.gpu, line.text) == (f"node-{digit}", int(digit * 4), int(digit), "text")
