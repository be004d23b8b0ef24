"""Every line that holds a word comes out once, with its number and its rank, in bounded memory."""

import gzip
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from preflight.explain.inputs import Input, find
from preflight.explain.read.copies import COPIES, REQUESTED, ROOM, SETTLED
from preflight.explain.read.prefilter import Prefilter
from preflight.explain.read.reader import Reader
from preflight.failure_book.line import LONGEST, Line

WORDS = ("Duplicate GPU detected", "SIGBUS", "libnccl-net.so", "%|", "timed out")


def read(path: Path, words: Collection[str] = WORDS, rarely: Collection[str] = ()) -> list[Line]:
    return list(Reader(find([str(path)])[0], words, rarely=rarely))


def of(path: Path, text: str | bytes, words: Collection[str] = WORDS) -> list[Line]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path, words)


def numbers(lines: Sequence[Line]) -> list[int]:
    return [line.number for line in lines]


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1 << 18])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_line_with_a_word_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, end: str
) -> None:
    monkeypatch.setattr("preflight.explain.read.reader.CHUNK", chunk)
    random.seed(11)
    dull = ["", "step 12 of 90", "libnccl 2 net", "Duplicate GPU  detected", "é" * 9, "timed 1out", "SIG.BUS"]
    lines = [f"{random.choice(dull)} {random.choice(['', *WORDS])}{random.choice(dull)}" for _ in range(300)]
    expected = [number for number, line in enumerate(lines, 1) if any(word in line for word in WORDS)]
    found = of(tmp_path / "a.log", end.join(lines))
    assert numbers(found) == expected
    assert [line.raw for line in found] == [lines[number - 1] for number in expected]
    assert [line.order for line in found] == sorted(line.order for line in found)


def test_words_of_any_length_are_found_wherever_they_stand() -> None:
    random.seed(3)
    letters = "abcdefgh "
    words = {"".join(random.choices(letters, k=size)) for size in range(2, 30) for _ in range(4)}
    prefilter = Prefilter(words)
    for _ in range(300):
        lines = ["".join(random.choices(letters, k=random.randrange(40))).encode() for _ in range(5)]
        word = random.choice(sorted(words))
        place = random.randrange(5)
        lines[place] = b"x1" * random.randrange(4) + word.encode() + lines[place]
        found = prefilter.with_words(shapes := prefilter.shapes(b"\n".join(lines)))
        for line, shape in zip(lines, shapes, strict=True):
            held = {word for word in words if word in line.decode()}
            assert held <= set(found.get(shape, ()))
    with pytest.raises(ValueError, match="empty word"):
        Prefilter([""])


def test_what_the_prefilter_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.explain.read.prefilter.SHAPES", 100)
    prefilter = Prefilter(["SIGBUS"])
    for number in range(500):
        text = "".join(chr(97 + int(digit)) for digit in str(number))
        assert len(prefilter.with_words(prefilter.shapes(f"{text}\nSIGBUS {text}\n".encode()))) == 1
    assert len(prefilter._without_words) + len(prefilter._with_words) <= 102


def test_updates_of_a_progress_bar_are_one_line(tmp_path: Path) -> None:
    bars = "".join(f"\r {number}%|### | {number}/100 [00:{number}<01:00]" for number in range(10, 99))
    text = f"begin\n{bars}[rank1]:[W516 14:34:56.8 socket.cpp:464] [c10d] timed out\r\nSIGBUS\n"
    found = of(tmp_path / "a.log", text, ("timed out", "SIGBUS"))
    assert [(line.number, line.text, line.rank) for line in found] == [(2, "[c10d] timed out", 1), (3, "SIGBUS", None)]
    both = read(tmp_path / "a.log", ("timed out", "SIGBUS", "%|"))
    assert numbers(both) == [2] * 90 + [3]
    assert both[88].text == "98%|### | 98/100 [00:98<01:00]"
    rarely = read(tmp_path / "a.log", ("timed out", "SIGBUS", "%|"), rarely=("%|",))
    assert [line.text for line in rarely] == [
        "10%|### | 10/100 [00:10<01:00]",
        "96%|### | 96/100 [00:96<01:00]",
        "97%|### | 97/100 [00:97<01:00]",
        both[88].text,
        "[c10d] timed out",
        "SIGBUS",
    ]


def test_more_lines_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "one\n[rank3]:[W516 14:34:56.853490829 socket.cpp:464] SIGBUS\nfirst\n\nthird\nfourth\n"
    )
    (tmp_path / "b.log").write_text("fifth\n")
    reader = Reader(find([str(tmp_path)])[0], WORDS)
    found = []
    for line in reader:
        found.append((line.number, line.text, line.rank))
        if "SIGBUS" in line.text:
            reader.request_lines(3)
    assert found == [(2, "SIGBUS", 3), (3, "first", 3), (5, "third", 3)]
    assert (reader.lines, reader.bytes) == (7, (tmp_path / "a.log").stat().st_size + 6)


@pytest.mark.parametrize("most", [ROOM, 400])
def test_copies_of_a_line_come_out_as_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """If whoever handles the line allows it. A different number makes no copy, a different time does. Each comes out
    or is counted once, however little may be remembered."""
    monkeypatch.setattr("preflight.explain.read.copies.ROOM", most)
    clocks = [f"10:{step:02}:07.{step:03}" for step in range(50)]
    copies = "".join(f"{clock} rank 1 timed out\n{clock} step {step} timed out\n" for step, clock in enumerate(clocks))
    for name in "ab":
        (tmp_path / name).write_text(f"{copies}10:50:00 SIGBUS\n")
    reader, lines = Reader(find([str(tmp_path)])[0], WORDS), []
    for line in reader:
        lines.append(line)
        reader.skip_copies()
    last = [line for line in lines if line.repeats]
    assert sum(line.repeats or 1 for line in lines) == 2 * 101
    assert {line.text.partition(" ")[2] for line in last} == {"rank 1 timed out"}
    assert [line.number for line in last][-1] == 99
    if most == ROOM:
        assert len(lines) == 2 * (COPIES + 1 + 50 + 1)
    assert len(read(tmp_path)) == 2 * 101


@pytest.mark.parametrize(("enough", "expected"), [(COPIES, SETTLED), (REQUESTED, REQUESTED), (SETTLED, SETTLED)])
def test_copies_of_requested_lines_come_out_until_no_traceback_needs_them(
    tmp_path: Path, enough: int, expected: int
) -> None:
    """Each may be a line of a traceback; what a logger wrote is none."""
    logged = "[rank3]:[E516 14:34:{:02}.8 socket.cpp:464] timed out\n"
    (tmp_path / "a").write_text("".join(f"SIGBUS {step}\n[rank3]: odd\n{logged.format(step)}" for step in range(50)))
    reader, lines = Reader(find([str(tmp_path)])[0], WORDS), []
    for line in reader:
        lines.append(line)
        reader.skip_copies(enough)
        if "SIGBUS" in line.text:
            reader.request_lines(2)
    assert sum(line.text == "odd" and not line.repeats for line in lines) == expected
    assert [line.number for line in lines if line.repeats] == [150]
    assert [line.rank for line in lines if line.repeats] == [3]


def test_copies_come_out_again_when_they_are_forgotten(tmp_path: Path) -> None:
    """The first one and the last one: what an attempt says is known from the ones before."""
    (tmp_path / "a").write_text("timed out\n" * 20 + "SIGBUS\n" + "timed out\n" * 20)
    reader, found = Reader(find([str(tmp_path)])[0], WORDS), []
    for line in reader:
        found.append((line.number, line.repeats))
        if "SIGBUS" in line.text:
            reader.forget_copies()
        else:
            reader.skip_copies()
    early = [(number, 0) for number in range(1, 1 + COPIES)]
    assert found == [*early, (21, 0), (20, 20 - COPIES), (22, 0), (41, 19)]


def test_copies_are_forgotten_for_as_many_attempts_as_are_told_apart(tmp_path: Path) -> None:
    """A job that starts over a thousand times is read at the speed of its copies."""
    (tmp_path / "a").write_text("timed out\ntimed out\nSIGBUS\n" * 1000)
    reader, found = Reader(find([str(tmp_path)])[0], WORDS), 0
    for line in reader:
        found += not line.repeats and "timed" in line.text
        if "SIGBUS" in line.text:
            reader.forget_copies()
        else:
            reader.skip_copies()
    assert 50 < found < 80


def test_requested_lines_that_are_no_text_do_not_come_out(tmp_path: Path) -> None:
    """The source of a logger's message goes on behind them, and so does what NCCL says of its process."""
    said = "[rank3]:[E516 14:34:56.8 ProcessGroupNCCL.cpp:464] SIGBUS\n"
    at = "node-a:101:110 [0] NCCL INFO"
    (tmp_path / "a").write_text(
        f"{said}frame #0: f + 0x1\nframe #1: g\n\nsecond\n{at} Channel 00\nthird\n{at} timed out\n"
    )
    reader, found = Reader(find([str(tmp_path)])[0], WORDS), []
    for line in reader:
        found.append((line.text, line.rank, line.pid))
        reader.request_lines(9)
    assert found == [("SIGBUS", 3, None), ("second", 3, None), ("third", None, 101), ("timed out", None, 101)]


def test_a_line_without_a_label_behind_labelled_ones_is_nobodys(tmp_path: Path) -> None:
    """torch labels each line of an exception: one without a label is another rank's crash, maybe."""
    (tmp_path / "a.log").write_text("[rank3]: SIGBUS\n[rank3]: second\nFatal\n")
    reader = Reader(find([str(tmp_path)])[0], WORDS)
    found = []
    for line in reader:
        found.append((line.text, line.rank))
        reader.request_lines(2 if line.number == 1 else 0)
    assert found == [("SIGBUS", 3), ("second", 3), ("Fatal", None)]


def test_a_newline_that_follows_its_return_late_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.explain.read.reader.CHUNK", 1)
    (tmp_path / "a.log").write_bytes(b"SIGBUS\r\none\r\ntwo\r\nthree\r\n")
    reader = Reader(find([str(tmp_path)])[0], WORDS)
    found = []
    for line in reader:
        found.append(line.text)
        if line.number == 1:
            reader.request_lines(2)
    assert found == ["SIGBUS", "one", "two"]


def test_codings(tmp_path: Path) -> None:
    for number, coding in enumerate(("utf-16", "utf-32", "utf-8-sig", "latin-1")):
        found = of(tmp_path / f"{number}", "é\nnaïve SIGBUS é\n".encode(coding))
        assert numbers(found) == [2]
        assert "SIGBUS" in found[0].text
    assert of(tmp_path / "a", b"\xff\xfe\xff SIGBUS")[:1] == []  # not the UTF-16 that it says it is
    assert [line.text for line in of(tmp_path / "b", "\x1b[31mSIG\x1b[0mBUS\n")] == ["SIGBUS"]


def test_gzip_in_members_and_torn(tmp_path: Path) -> None:
    lines = "".join(f"{number} {random.random()} step\n" for number in range(20000)).encode()
    whole = gzip.compress(b"SIGBUS\n" + lines) + gzip.compress(b"SIGBUS\n")
    assert numbers(of(tmp_path / "a.gz", whole)) == [1, 20002]
    (tmp_path / "b.gz").write_bytes(whole[: len(whole) // 2])
    reader = Reader(find([str(tmp_path / "b.gz")])[0], WORDS)
    assert numbers(list(reader)) == [1]
    assert re.search(r"cannot be read beyond line [\d,]+ \(the gzip file ends in the middle\)", reader.unread[0].why)
    (tmp_path / "c.gz").write_bytes(whole[:90_000] + b"damage" * 9 + whole[90_054:])
    reader = Reader(find([str(tmp_path / "c.gz")])[0], WORDS)
    list(reader)
    assert "cannot be read beyond" in reader.unread[0].why


def test_a_file_that_grows_is_read_to_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("SIGBUS\n" * 3)
    reader = Reader(find([str(path)])[0], WORDS)
    with path.open("a") as file:
        file.write("SIGBUS\n" * 3)
    assert numbers(list(reader)) == [1, 2, 3]
    path.unlink()
    assert list(reader) == []
    assert "No such file" in reader.unread[0].why


def test_a_very_long_line_is_cut_round_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.explain.read.reader.ENDLESS", 1 << 16)
    monkeypatch.setattr("preflight.explain.read.reader.CHUNK", 1 << 12)
    for before in (0, LONGEST - 3, 50_000, 69_616, 1 << 17, 300_001):
        again = "" if before == 69_616 else "SIGBUS"  # there, the word is on two pieces
        text = f"one\n[rank3]: {'x' * before}SIGBUS{'y' * 200_000}{again}\nSIGBUS\n"
        found = of(tmp_path / "a.log", text)
        assert numbers(found) == [2, 3]
        assert len(found[0].text) <= LONGEST
        assert "SIGBUS" in found[0].text
        assert found[0].rank == (3 if before < 1 << 16 else None)


def test_random_bytes_never_raise(tmp_path: Path) -> None:
    random.seed(5)
    for _ in range(60):
        parts = [
            random.randbytes(random.randrange(300)),
            b"\n",
            b"\r",
            b" SIGBUS",
            b"\x1b[3",
            b"12: ",
            b"{",
            b"[rank",
            b"}\n",
        ]
        data = b"".join(random.choices(parts, k=40))
        (tmp_path / "a").write_bytes(data)
        for line in Reader([Input(str(tmp_path / "a"), "a", "log")], WORDS):
            assert 1 <= line.number <= data.count(b"\n") + 1


CHILD = """
import re
from preflight.explain.read.reader import Input, Reader
lines = sum(1 for _ in Reader([Input("-", "stdin", "log")], ["SIGBUS"]))
print(lines, *re.findall(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()))  # ru_maxrss has the parent's
"""


@pytest.mark.parametrize("unit", ["step {} of 90 is done\n", "\r{}%|###  |", "x{}"])
def test_a_hundred_megabytes_take_no_memory(unit: str) -> None:
    block = "".join(unit.format(number) for number in range(40_000)).encode()
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdin
    for _ in range(100_000_000 // len(block)):
        process.stdin.write(block)
    said, _ = process.communicate(b"SIGBUS", timeout=120)
    lines, most = map(int, said.split())
    assert lines == 1
    assert most < 80_000  # KiB: Python itself takes some 15,000


def test_stdin_gives_single_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, start = os.pipe()
    text = gzip.compress(b"one\nSIGBUS\n")
    monkeypatch.setattr("preflight.explain.read.reader.CHUNK", 1)

    def write() -> None:
        for at in range(len(text)):
            os.write(start, text[at : at + 1])
        os.close(start)

    with os.fdopen(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        writer = threading.Thread(target=write)
        writer.start()
        found = list(Reader(find(["-"])[0], WORDS))
        writer.join()
    assert [(line.file, line.number) for line in found] == [("stdin", 2)]


def test_how_far_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 100)
    (tmp_path / "b").write_text("x\n" * 50)
    told: list[tuple[int, int]] = []
    list(Reader(find([str(tmp_path)])[0], WORDS, lambda *now: told.append(now)))
    assert told == [(200, 300), (300, 300)]


# Whose line it is.


def ranks(path: Path, text: str) -> list[int | None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return [line.rank for line in of(path, text)]


def nccl(pid: int, text: str, gpu: int = 0, node: str = "node-a") -> str:
    return f"{node}:{pid}:{pid + 9} [{gpu}] NCCL INFO {text}\n"


def comm(pid: int, rank: int, size: int, gpu: int = 0, more: str = "") -> str:
    return nccl(pid, f"comm 0x55 rank {rank} nranks {size} cudaDev {gpu} busId 1a000{more} - Init COMPLETE", gpu)


def test_a_process_is_known_by_its_communicator(tmp_path: Path) -> None:
    text = comm(101, 0, 2) + comm(102, 1, 2) + nccl(102, "SIGBUS") + nccl(101, "SIGBUS") + nccl(103, "SIGBUS")
    assert ranks(tmp_path / "a", text) == [1, 0, None]
    one_process = comm(101, 4, 8) + comm(101, 5, 8, gpu=1) + nccl(101, "SIGBUS", 1) + nccl(101, "SIGBUS", 2)
    assert ranks(tmp_path / "b", one_process) == [5, None]
    workers = "(Worker pid=101, ip=10.0.0.2) [rank9]: SIGBUS\n(Worker pid=101, ip=10.0.0.2) SIGBUS\n"
    assert ranks(tmp_path / "c", workers) == [9, 9]


def test_ranks_of_smaller_groups_are_not_taken_for_global_ones(tmp_path: Path) -> None:
    whole = comm(101, 6, 8) + comm(101, 0, 2) + nccl(101, "SIGBUS")
    assert ranks(tmp_path / "a", whole) == [6]
    halves = comm(101, 0, 2) + comm(102, 1, 2) + comm(103, 0, 2) + comm(104, 1, 2) + nccl(101, "SIGBUS")
    assert ranks(tmp_path / "b", halves) == [None]
    split = comm(101, 1, 2, more=" parent 0x54 color 0 key 1") + nccl(101, "SIGBUS")
    assert ranks(tmp_path / "c", split) == [None]


def test_a_file_of_a_rank(tmp_path: Path) -> None:
    for name in ("rank3.log", "out.rank_3.txt", "rank-3/out.log", "job.t3.out", "task3.err", "global_rank_3.log"):
        assert ranks(tmp_path / name, "SIGBUS\n[rank3]: SIGBUS\n") == [3, 3], name
        assert ranks(tmp_path / name, "SIGBUS\n[rank5]: SIGBUS\n") == [None, 5], name  # a node's file, then
    for name in ("worker-3.log", "node_rank3.log", "slurm-123_4.out", "nranks3.log", "ranking3.log", "crank3.log"):
        assert ranks(tmp_path / name, "SIGBUS\n") == [None], name
    (tmp_path / "attempt_0/3").mkdir(parents=True)
    (line,) = of(tmp_path / "attempt_0/3/stderr.log", "SIGBUS\n")
    assert (line.rank, line.local_rank) == (None, 3)
    (line,) = of(tmp_path / "local_rank3.log", "SIGBUS\n")
    assert (line.rank, line.local_rank) == (None, 3)


def test_labels_of_tasks_are_ranks_until_a_line_speaks_against_it(tmp_path: Path) -> None:
    labelled = "".join(f"{task}: step\n" for task in (2, 0, 1) * 5)
    assert ranks(tmp_path / "a", labelled + "1: SIGBUS\n") == [1]
    assert ranks(tmp_path / "b", labelled + "1: SIGBUS\n1: [rank12]: File\n") == [None]  # a task is a node here
    two = f"1: {nccl(101, 'Using')}1: {nccl(102, 'Using')}"
    assert ranks(tmp_path / "c", labelled + "1: SIGBUS\n" + two) == [None]
    assert ranks(tmp_path / "d", "1: one\n2: SIGBUS\n3: three\n") == [None]  # an editor's numbers
    assert ranks(tmp_path / "e", "[1,12]<stderr>:SIGBUS\n") == [12]
    assert ranks(tmp_path / "rank1.log", f"SIGBUS\n{nccl(101, 'Using')}{nccl(102, 'Using')}") == [None]


def test_hosts_that_many_lines_begin_with_are_nodes(tmp_path: Path) -> None:
    found = of(tmp_path / "a", "node-a: one\nnode-b: two\nnode-a: SIGBUS\nnode-a: x\nnode-b: x\nnode-b: SIGBUS\n")
    assert [(line.node, line.text) for line in found] == [("node-a", "SIGBUS"), ("node-b", "SIGBUS")]
    assert of(tmp_path / "b", "Error-1: SIGBUS\n")[0].node == ""


def test_the_last_line_has_its_label_where_the_log_is_cut_behind_it(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(f"{rank}: word\n" for rank in (0, 1, 1, 0, 1)) + "3: word, and no end")
    assert [line.rank for line in read(tmp_path / "job.log", ("word",))] == [0, 1, 1, 0, 1, 3]


def test_what_a_launcher_says_behind_a_ranks_block_is_not_the_ranks(tmp_path: Path) -> None:
    block = "[rank7]:[E1122 10:22:11.000000000 ProcessGroupNCCL.cpp:616] [Rank 7] SIGBUS\n  WorkNCCL(...)\n"
    (tmp_path / "job.log").write_text(block + "slurmstepd: error: *** JOB 1 ON a CANCELLED AT x ***\nand so on\n")
    reader = Reader(find([str(tmp_path / "job.log")])[0], WORDS)
    found = []
    for line in reader:
        found.append(line.rank)
        reader.request_lines(4 if "SIGBUS" in line.text else 0)
    assert found == [7, 7, None, None]
