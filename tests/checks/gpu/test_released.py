"""A machine that gets worse in mid-run; and judging on made-up facts."""

import importlib.metadata
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight import testing
from preflight.check import Context, Outcome, Run
from preflight.checks.gpu import released
from preflight.checks.gpu.released import leftovers
from preflight.checks.gpu.released.leftovers import SHM
from preflight.checks.gpu.shared import nvml_survey, processes
from preflight.planning import registry
from tests import made, running
from tests.checks.gpu import in_machine, made_gpus
from tests.checks.gpu.in_machine import needs_machines
from tests.checks.gpu.made_gpus import GIB, on_nodes
from tests.faults.gpu_released import ELSEWHERE
from tests.large import timed
from tests.running import Finished
from tests.standin import machines

ROWS = {fault.name: fault for fault in ELSEWHERE}
needs_no_cuda = pytest.mark.skipif(
    importlib.metadata.version("torch").partition("+")[2] != "cpu",
    reason="torch built for CUDA sees that the stand-in's GPUs are not there",
)
LATE = {
    "gpu.3.ecc.volatile.uncorrected": 2, "gpu.5.link.7.error.recovery": 3, "gpu.1.pcie.replay": 5000,
    "gpu.2.processes.compute": f"4194300:{GIB}", "gpu.2.memory.used": GIB, "gpu.7.memory.used": 2 * GIB,
    "gpu.0.remapped.pending": 1, "gpu.4.field.230": 1, "gpu.6.field.270": "ull 9000000000",
}  # fmt: skip


def run(folder: Path, late: dict[str, object], mark: str = "") -> Finished:
    """With a /dev/shm of its own."""
    (folder / "shm").mkdir(parents=True)
    counts = {"fields": 280} | {f"gpu.{gpu}.field.{id_}": "ull 0" for gpu in range(8) for id_ in (269, 270, 271)}
    machine = machines.load("h100_nvswitch", folder, counts, late=late)
    machine = replace(machine, mounts=(*machine.mounts, (str(folder / "shm"), SHM)))
    plugin = ("--plugin", str(running.PLUGINS / "late.py"), "--set", "gpu.released.wait_s=0.3")
    words = ("--level", "standard", "--backend", "gloo", "--only", "gpu.released,plugin.late", *plugin)
    return in_machine.run_ranks(machine, folder, 1, *words, environ={"TEST_LEAVES": mark})


def is_told(name: str, finished: Finished) -> None:
    """Among others."""
    fault = ROWS[f"released_{name}"]
    found = [f for f in finished.findings() if f"{f['severity']} {f['code']}" == fault.finds[0]]
    assert fault.is_told_by(found) and len(found) == 1, finished.told()
    assert fault.says in found[0]["message"] and "{" not in found[0]["fix"], found


@needs_no_cuda
@needs_machines
def test_what_rose_and_what_is_held(tmp_path: Path) -> None:
    finished = run(tmp_path, LATE, mark="left")
    names = ("ecc", "nvlink", "pcie", "row", "recovery", "throttled", "process", "memory", "shm")
    for name in names:
        is_told(name, finished)
    assert len(finished.findings()) == len(names), finished.told()
    assert finished.exit_codes == [1]


@needs_no_cuda
@needs_machines
def test_what_works_no_more(tmp_path: Path) -> None:
    """The driver as a whole; then, where it works, one GPU."""
    finished = run(tmp_path / "driver", {"init": "!9"})
    is_told("driver", finished)
    finished = run(tmp_path / "lost", {"gpu.6.calls": "!15"})
    is_told("lost", finished)
    assert len(finished.findings()) == 1, finished.told()


@needs_no_cuda
@needs_machines
def test_a_machine_that_stays_as_it_was(tmp_path: Path) -> None:
    finished = run(tmp_path, {})
    assert finished.findings() == [] and finished.exit_codes == [0], finished.told()
    assert finished.check("gpu.released")["summary"] == "8 GPUs compared with the start of the run", finished.told()


# Made-up facts

Values = dict[str, Any]
IDLE = 4 * 2**20


def health(**more: Any) -> Values:
    return {
        "ecc_errors": {"volatile_corrected": 0, "volatile_uncorrected": 0, "aggregate_corrected": 9,
                       "aggregate_uncorrected": 1},
        "sram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": 0},
        "remapped": {"corrected": 0, "uncorrected": 1, "pending": 0, "failed": 0},
        "retired": {"single_bit": None, "double_bit": None, "pending": None},
        "throttled_ns": {"HW Thermal Slowdown": 10**9, "HW Power Brake": None},
        "recovery_action": 0, "memory_used": IDLE, "memory_reserved": GIB // 2, "processes": [], **more,
    }  # fmt: skip


def pcie(**more: Any) -> Values:
    return {"width": 16, "generation": 5, "generation_max": 5, "replays": 7, "errors": {"fatal": 0}, **more}


def links(errors: dict[int, dict[str, int]] | None = None, down: int | None = None) -> list[Values]:
    return [
        {"link": number, "active": number != down, "errors": (errors or {}).get(number, {})} for number in range(18)
    ]


class Ends:
    """What two looks at a job's GPUs gave: on each node the first rank looks at all 8."""

    def __init__(self, nodes: int = 1) -> None:
        self.nodes = nodes
        self.before, self.after = self._look(), self._look()
        self.seconds = 30.0
        self.left: list[Values] = []
        self.troubles: dict[str, list[Values]] = {}
        """By check."""

    def _look(self) -> dict[str, Values]:
        uuids = [f"GPU-{node}-{gpu}" for node in range(self.nodes) for gpu in range(8)]
        same = links()
        return {uuid: {"health": health(), "pcie": pcie(), "links": same, "new": {}} for uuid in uuids}

    def gpu(self, which: str, **more: Any) -> None:
        """Of the third GPU after the run."""
        self.after["GPU-0-3"][which].update(more)

    def _facts(self, check: str, values: Callable[[Values], Any], gpus: dict[str, Values]) -> dict[int, Values]:
        found = {}
        for node in range(self.nodes):
            uuids = [uuid for gpu in range(8) if (uuid := f"GPU-{node}-{gpu}") in gpus]
            looked = {uuid: values(gpus[uuid]) for uuid in uuids}
            look = {"gpus": looked, "troubles": self.troubles.get(check, []) if node == 0 else [], "notes": {}}
            found[node] = {"look": look, "up_s": 1000.0, "left": []}
        return found

    def reads(self) -> dict[str, dict[int, Values]]:
        return {
            "gpu.inventory": made_gpus.inventory(*[1] * self.nodes, gpus=8),
            "gpu.health": self._facts("gpu.health", lambda seen: seen["health"], self.before),
            "gpu.pcie": self._facts("gpu.pcie", lambda seen: seen["pcie"], self.before),
            "gpu.nvlink": self._facts("gpu.nvlink", lambda seen: {"links": seen["links"]}, self.before),
            "gpu.topology": self._facts("gpu.topology", lambda _: {}, {}),
        }

    def facts(self) -> dict[int, Values]:
        """Of gpu.released."""
        found = self._facts("gpu.released", lambda seen: seen, self.after)
        for node, of_rank in found.items():
            of_rank |= {"up_s": 1000.0 + self.seconds, "left": self.left if node == 0 else []}
        return found

    def judged(self) -> list[dict[str, Any]]:
        nodes = on_nodes(*[1] * self.nodes)
        return testing.judge(released, self.facts(), nodes=nodes, backend="nccl", reads=self.reads())


def _memory(used: int, before: int = IDLE, **more: Any) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.before["GPU-0-3"]["health"]["memory_used"] = before
        ends.gpu("health", memory_used=used, **more)

    return change


def _process(pid: int, new: bool, memory: int | None, **before: Any) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.before["GPU-0-3"]["health"].update(before)
        ends.gpu("health", processes=[{"pid": pid, "memory": memory}], memory_used=3 * GIB)
        holder = {"name": "python", "user": "bob", "seconds": 9.0, "ours": False}
        ends.gpu("new", **({str(pid): holder} if new else {}))

    return change


def _link(errors: dict[str, int], seconds: float = 30.0, link: int = 7) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.after["GPU-0-3"]["links"], ends.seconds = links({link: errors}), seconds

    return change


def _ecc(**counts: int) -> Callable[[Ends], None]:
    return lambda ends: ends.gpu("health", ecc_errors={**health()["ecc_errors"], **counts})


def _remapped(**counts: int) -> Callable[[Ends], None]:
    return lambda ends: ends.gpu("health", remapped={**health()["remapped"], **counts})


def _replays(rise: int, seconds: float) -> Callable[[Ends], None]:
    def change(ends: Ends) -> None:
        ends.gpu("pcie", replays=7 + rise)
        ends.seconds = seconds

    return change


def _throttled(nanoseconds: int, reason: str = "HW Thermal Slowdown") -> Callable[[Ends], None]:
    return lambda ends: ends.gpu("health", throttled_ns={**health()["throttled_ns"], reason: nanoseconds})


def _down(ends: Ends) -> None:
    ends.after["GPU-0-3"]["links"] = links(down=4)


def _many_links(ends: Ends) -> None:
    ends.after["GPU-0-3"]["links"] = links({4: {"replay": 1}, 5: {"replay": 2}, 6: {"replay": 1}})


def _shm(sure: bool) -> Callable[[Ends], None]:
    left = [{"name": f"nccl-{letter}", "size": 2**20, "sure": sure} for letter in "ab"]
    return lambda ends: ends.left.extend(left)


FOUND: dict[str, tuple[Callable[[Ends], None], str, str]] = {
    "uncorrected": (_ecc(volatile_uncorrected=2, aggregate_uncorrected=3), "fail uncorrected",
                    "rose during the run: volatile 0 to 2, aggregate 1 to 3; expected none"),
    "SRAM": (lambda ends: ends.gpu("health", sram={"threshold_exceeded": 1, "volatile_uncorrected": 0}),
             "fail uncorrected", "SRAM threshold exceeded 0 to 1"),
    "a row failed": (_remapped(failed=1), "fail uncorrected", "failed remappings 0 to 1"),
    "a row waits": (_remapped(pending=1, corrected=1), "warn corrected",
                    "memory was taken out of use during the run: remapped rows 0 to 1, pending remappings 0 to 1"),
    "corrected": (_ecc(volatile_corrected=5), "info corrected", "were corrected during the run: volatile 0 to 5"),
    "recovery": (lambda ends: ends.gpu("health", recovery_action=1), "fail recovery", "asks for recovery action 1"),
    "throttled": (_throttled(13 * 10**9), "warn throttled",
                  "the clocks were throttled during the run's 30 s: 12.0 s by HW Thermal Slowdown; expected less than"),
    "replays": (_replays(62, 60.0), "warn pcie_errors", "62 PCIe replays in 60 s, expected at most 31 per minute"),
    "fatal": (lambda ends: ends.gpu("pcie", errors={"fatal": 1}), "fail pcie_errors", "fatal PCIe errors rose"),
    "lanes": (lambda ends: ends.gpu("pcie", width=8), "warn pcie_errors", "8 lanes after the run, expected 16"),
    "NVLink": (_link({"replay": 1}), "warn nvlink_errors", "link 7: replay 0 to 1"),
    "NVLink, a flood": (_link({"crc_flit": 301}, 3.0), "warn nvlink_errors", "link 7: crc_flit 0 to 301"),
    "NVLink, some": (_link({"crc_flit": 299}, 3.0), "info nvlink_errors", "link 7: crc_flit 0 to 299"),
    "NVLink, lost": (_link({"recovery_failed": 1}), "fail nvlink_errors", "link 7: recovery_failed 0 to 1"),
    "NVLink, down": (_down, "fail nvlink_errors", "link 4: state up to down"),
    "NVLink, many": (_many_links, "warn nvlink_errors", "links 4-6, 4 for one: replay 0 to 1"),
    "process": (_process(4711, new=True, memory=2 * GIB), "warn process",
                "the GPU is held by python (pid 4711, user bob, for 9 s, 2 GiB), expected no new one"),
    "memory": (_memory(GIB), "warn memory",
               "1,024 MiB of memory are in use 10 s after the run, expected 4 as before it; no listed process"),
    "memory, perhaps of an old process": (
        _process(1, new=False, memory=None, processes=[{"pid": 1, "memory": None}], memory_used=GIB), "info memory",
        "3,072 MiB of memory are in use 10 s after the run, expected 1,024"),
    "shm": (_shm(True), "warn shm",
            "2 files of 2.0 MiB, created during the run, are left in /dev/shm (nccl-a and nccl-b)"),
    "shm, in a container": (_shm(False), "info shm", "2 files of 2.0 MiB"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "finds", "says"), FOUND.values(), ids=FOUND)
def test_it_is_named(change: Callable[[Ends], None], finds: str, says: str) -> None:
    ends = Ends()
    change(ends)
    (found,) = ends.judged()
    assert f"{found['severity']} {found['code'].removeprefix('gpu.released.')}" == finds, found
    assert says in found["message"] and "{" not in found["fix"], found
    assert found["where"].get("gpu") == (None if finds.endswith("shm") else 3)
    single = finds.endswith("nvlink_errors") and "links" not in says
    assert (found["where"].get("link") is not None) == single


SOUND: dict[str, Callable[[Ends], None]] = {
    "as before": lambda _: None,
    "a little memory": _memory(IDLE + 100 * 2**20),
    "memory that was in use before": _memory(20 * GIB, before=20 * GIB),
    "less memory": _memory(IDLE, before=20 * GIB),
    "an old process took more": _process(1, new=False, memory=3 * GIB, processes=[{"pid": 1, "memory": GIB}],
                                         memory_used=GIB),
    "an old process under the host's number": _process(1, new=True, memory=3 * GIB, memory_used=GIB,
                                                       processes=[{"pid": 1, "memory": GIB}]),
    "throttled for a moment": _throttled(10**9 + 4 * 10**8),
    "throttled, unknown before": _throttled(10**10, "HW Power Brake"),
    "memory unknown": lambda ends: ends.gpu("health", memory_used=None),
    "replays at the rate that is allowed": _replays(150, 300.0),
    "some replays in a short run": _replays(30, 1.0),
    "counters that were reset": lambda ends: ends.gpu("pcie", replays=0),
    "counters that are gone": lambda ends: ends.gpu("health", sram=None, remapped=None),
    "counters that are new": lambda ends: ends.gpu("pcie", errors={"non_fatal": 3}),
}  # fmt: skip


@pytest.mark.parametrize("change", SOUND.values(), ids=SOUND)
def test_what_is_as_before_gives_no_finding(change: Callable[[Ends], None]) -> None:
    ends = Ends(2)
    change(ends)
    assert ends.judged() == []


def trouble(gpu: int | None, met_in: str) -> Values:
    return made_gpus.trouble(gpu, met_in, "hangs" if gpu is not None else "driver")


def test_a_gpu_that_hangs_is_told_once() -> None:
    """By who met it first; here it is met anew, in a new worker."""
    ends = Ends()
    ends.troubles["gpu.released"] = [trouble(3, "gpu.released")]
    assert [finding["code"] for finding in ends.judged()] == ["gpu.released.no_answer"]
    ends.troubles["gpu.topology"] = [trouble(3, "gpu.topology")]
    assert ends.judged() == []


def test_a_driver_that_stopped_working_is_told_once_a_node() -> None:
    gone = Outcome("skipped", reason="NVML does not work: Driver Not Loaded")
    reads = {"gpu.inventory": made_gpus.inventory(2, 2)}
    outcomes = dict.fromkeys(range(4), gone)
    found = testing.judge(released, {}, nodes=on_nodes(2, 2), backend="nccl", reads=reads, outcomes=outcomes)
    assert [(finding["severity"], finding["where"]) for finding in found] == [
        ("fail", {"node": f"node-{n}"}) for n in (0, 1)
    ]


def test_512_nodes_of_which_one_gpu_has_errors() -> None:
    ends = Ends(512)
    ends.after["GPU-300-5"]["links"] = links({3: {"replay": 1}})
    facts, reads = ends.facts(), ends.reads()
    run = Run(made.job(*[1] * 512), tuple(facts), {}, facts_of=lambda check: reads[check])
    with timed("gpu.released, 512 nodes of which one GPU has errors"):
        (found,) = released.judge(facts, run)
    assert (found.where["node"], found.where["gpu"], found.where["link"]) == ("node-300", 5, 3)


def test_every_code_is_tested() -> None:
    tested = {finds.split()[1] for _, finds, _ in FOUND.values()} | {"no_answer"}
    assert tested == set(registry.load(registry.sources()["gpu.released"]).codes)


# Waiting


class Session:
    """Gives one answer after the other, of one GPU."""

    def __init__(self, *answers: Values) -> None:
        self.answers = list(answers)

    def look(self, *_: object) -> Values:
        return made_gpus.look({"GPU-0": self.answers.pop(0)})


def _listed(pid: int) -> Values:
    return health(processes=[{"pid": pid, "memory": GIB}], memory_used=GIB)


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ([health(memory_used=GIB), health(), health()], 1),
        ([_listed(os.getpid()), health(), health()], 1),
        ([_listed(1), health()], 1),
        ([health(memory_used=GIB, memory_reserved=None), health()], 1),
        ([health(memory_used=3 * GIB, memory_reserved=None), health()], 0),
    ],
    ids=["memory", "a new process", "an old process", "the reserve", "more than the reserve"],
)
def test_it_waits_only_for_what_this_run_may_hold(
    answers: list[Values], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(*answers)
    monkeypatch.setattr(nvml_survey, "session", lambda: session)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(leftovers, "in_shared_memory", lambda _: [])
    # Our real parent may have begun in the same tenth of a second as we did; a worker's supervisor imports first.
    monkeypatch.setattr(leftovers, "run_began", lambda: psutil.Process().create_time() - 1.0)
    nothing: Any = None
    ctx = Context("gpu.released", made.job(1), 0, 0, (0,), {}, 60.0, Page(), nothing, nothing)
    released._settled(ctx)
    assert len(session.answers) == left


@pytest.mark.parametrize(
    ("name", "seconds", "new"),
    [("python", 5.0, True), ("python", 60.0, False), (None, None, True), ("nvidia-cuda-mps-server", 5.0, False)],
)
def test_who_is_new(name: str | None, seconds: float | None, new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = {"name": name, "user": None, "seconds": seconds, "ours": False}
    monkeypatch.setattr(processes, "holders", lambda _: {"4711": holder})
    assert bool(released._new_holders(_listed(4711), run_s=30.0)) == new  # type: ignore[arg-type]


class Page:
    def doing(self, what: str, where: object) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


# /dev/shm

HOLDS = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); print(); input()"


@pytest.fixture
def mark() -> Any:
    name = f"psm_{uuid.uuid4()}"
    yield name
    for path in Path(SHM).glob(f"*{name}*"):
        path.unlink()


def test_files_that_are_used_or_older_or_of_others_are_not_ours(mark: str) -> None:
    began = time.time() - 3600
    (Path(SHM) / mark).write_bytes(bytes(4096))
    (Path(SHM) / f"torch_{os.getpid()}_{mark}").touch()
    (Path(SHM) / f"site_{mark}").touch()

    def left(since: float) -> list[str]:
        return [file["name"] for file in leftovers.in_shared_memory(since) if mark in file["name"]]

    assert left(began) == [mark]
    assert left(time.time() + 3600) == []
    words = [sys.executable, "-c", HOLDS, str(Path(SHM) / mark)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline()
        assert left(began) == []
        holder.communicate(b"\n")
    assert left(began) == [mark]


def test_files_that_go_meanwhile_and_a_folder_that_is_not_there_leave_nothing(
    mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scan = os.scandir
    (tmp_path / mark).touch()

    def scanned(folder: str) -> list[os.DirEntry[str]]:
        entries = list(scan(folder))
        (tmp_path / mark).unlink()
        return entries

    monkeypatch.setattr(leftovers, "SHM", str(tmp_path))
    monkeypatch.setattr(os, "scandir", scanned)
    assert leftovers.in_shared_memory(0.0) == []
    monkeypatch.setattr(leftovers, "SHM", str(tmp_path / "no"))
    assert leftovers.in_shared_memory(0.0) == []


def test_who_holds_a_gpu() -> None:
    ourselves, nobody, first = (processes.holders([pid])[str(pid)] for pid in (os.getpid(), 2**22 + 1, 1))
    assert (ourselves["ours"], first["ours"], nobody["ours"], nobody["name"]) == (True, False, False, None)
    assert leftovers.run_began() < psutil.Process().create_time() + 1.0


def test_a_process_that_has_ended_is_not_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ended = psutil.Process(child.pid)
        child.communicate(b"\n")
    assert not processes._is_of_the_run(ended, psutil.Process().cmdline())
