"""What becomes of GPUs, and of processes that ask them, that do not answer as they should."""

import contextlib
import os
import platform
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from preflight.check import NoReply, NoReplyKind, NotApplicable, Reply, Skip
from preflight.checks.gpu.shared import nvml, nvml_survey, pci
from preflight.checks.gpu.shared.nvml_survey import Session
from tests import running
from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.faults import ELSEWHERE
from tests.running import Finished
from tests.standin import machines

Answer = dict[str, Any] | NoReply
HANGS = NoReply(NoReplyKind.TIMED_OUT, "nvmlX", "no answer", 1.0)
DISTURBED = NoReply(NoReplyKind.DISTURBED, "nvmlX", "was stopped")


class Scripted:
    """Stands for the probe: `answers` by group, a list of them in turn, or what is called with the arguments."""

    answers: Mapping[str, Any] = {}

    def __init__(self, _functions: object) -> None:
        self.pid: int | None = 1

    def ask(self, group: str, *arguments: Any, deadline_s: float) -> Reply | NoReply:  # noqa: ARG002 -- a Probe's
        self.pid = self.pid or 1
        if group == "side_by_side":
            return Reply(
                None, tuple([gpu, self.answers["together"]] for gpu in self.answers.get("answer_together", ()))
            )
        answer = self.answers.get(group, {"values": {}, "notes": []})
        answer = answer.pop(0) if isinstance(answer, list) else answer(arguments) if callable(answer) else answer
        if isinstance(answer, NoReply):
            self.pid = None
            return answer
        return Reply(answer)

    def end(self) -> None:
        pass


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(nvml_survey, "Probe", Scripted)
    monkeypatch.setattr(pci, "gpus", lambda: [f"0000:0{gpu}:00.0" for gpu in range(3)])
    return Session()


def context(deadline_s: float = 60.0, check: str = "gpu.health", rank: int = 0, **environ: str) -> Any:
    job = SimpleNamespace(one_per_node=lambda _: [0])
    return SimpleNamespace(
        check=check,
        deadline_s=deadline_s,
        environ=environ,
        rank=rank,
        members=(0, 1),
        job=job,
        doing=lambda *_, **__: None,
    )


def handle(arguments: list[Any]) -> Answer:
    return {"values": {"uuid": f"GPU-{arguments[0]}", "bus": "", "name": "X", "serial": None, "minor": 0}, "notes": []}


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    system = {"values": {"driver": "1", "cuda": 1, "count": 3, "excluded": []}, "notes": []}
    monkeypatch.setattr(Scripted, "answers", {"system": system, "handle": handle, **answers})


def on(gpu: int, bad: Answer) -> Callable[[list[Any]], Answer]:
    """Only this GPU answers so."""
    return lambda arguments: bad if arguments[0] == gpu else {"values": {"gpu": arguments[0]}, "notes": []}


def test_a_gpu_that_hangs_costs_no_other_its_values(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, health=on(1, HANGS))
    look = session.look(context(), "health")
    assert list(look["gpus"]) == ["GPU-0", "GPU-2"]
    assert [(trouble["gpu"], trouble["kind"], trouble["uuid"]) for trouble in look["troubles"]] == [
        (1, "hangs", "GPU-1")
    ]
    assert list(session.look(context(check="gpu.pcie"), "pcie")["gpus"]) == ["GPU-0", "GPU-2"]


def test_who_does_not_answer_with_the_others_is_asked_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    together = {"values": {"gpu": "together"}, "notes": ["odd"]}
    answering(monkeypatch, health=on(1, HANGS), answer_together=[0, 2], together=together)
    look = session.look(context(), "health")
    assert look["gpus"] == {uuid: {"gpu": "together"} for uuid in ("GPU-0", "GPU-2")}
    assert look["notes"] == {"GPU-0": ["odd"], "GPU-2": ["odd"]}
    assert [trouble["gpu"] for trouble in look["troubles"]] == [1]


def test_who_answers_with_the_others_is_not_asked_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, health=HANGS, answer_together=[0, 1, 2], together={"values": {}, "notes": []})
    look = session.look(context(), "health")
    assert len(look["gpus"]) == 3 and look["troubles"] == []
    assert nvml_survey.session() is nvml_survey.session()


@pytest.mark.parametrize("version", ["12.4", None])
def test_a_torch_for_cpus_counts_no_gpus(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    assert nvml_survey.torch_has_cuda() is (version is not None)


def test_a_gpu_that_takes_far_longer_than_the_others_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    deeds: dict[int, Callable[[], object]] = {0: lambda: "soon", 1: ended.wait, 2: lambda: 1 / 0}
    monkeypatch.setattr(nvml_survey, "GROUPS", {"health": lambda gpu: deeds[gpu]()})
    monkeypatch.setattr(nvml_survey, "HEALTHY_ASK_S", 0.1)
    assert list(nvml_survey._side_by_side("health", [[0], [1], [2]])) == [(0, "soon")]
    ended.set()
    answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    for gpu in (2, 0):
        nvml_survey._answer_to(answers, nvml_survey.GROUPS["health"], [gpu])
    assert answers.get_nowait() == (0, "soon") and answers.empty()


@pytest.mark.parametrize(("available", "count"), [(True, 3), (False, 0)])
def test_torchs_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, available: bool, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert nvml_survey.GROUPS["torch"]() == {"values": count, "notes": []}


def test_cuda_that_does_not_start_is_a_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: 1 / 0)
    told = ["error", "torch.cuda.device_count", "ZeroDivisionError: division by zero"]
    assert nvml_survey.GROUPS["torch"]() == {"trouble": told}


@pytest.mark.parametrize(("deadline_s", "kind"), [(60.0, "hangs"), (5.0, "unknown")])
def test_what_may_be_healthy_is_a_skip(
    session: Session, monkeypatch: pytest.MonkeyPatch, deadline_s: float, kind: str
) -> None:
    answering(monkeypatch, health=on(1, HANGS))
    look = session.look(context(deadline_s), "health")
    assert [trouble["kind"] for trouble in look["troubles"]] == [kind]
    if kind == "unknown":
        with pytest.raises(Skip, match="GPU 1: nvmlX gave no answer, but may be healthy: set a longer --deadline"):
            nvml_survey.complete(context(deadline_s), {"look": look})


def test_a_start_that_may_be_healthy_is_a_skip(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, start=HANGS)
    with pytest.raises(Skip, match="may be healthy"):
        session.look(context(20.0), "health")
    with pytest.raises(Skip, match="NVML does not work"):
        session.look(context(20.0, check="gpu.pcie"), "pcie")


def test_a_fault_of_our_own_blames_no_gpu(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    own = NoReply(NoReplyKind.RAISED, "health", "KeyError: 'x'")
    answering(monkeypatch, health=on(1, own))
    look = session.look(context(), "health")
    with pytest.raises(Skip, match="GPU 1: NVML could not be asked: KeyError: 'x'"):
        nvml_survey.complete(context(), {"look": look})


def test_who_was_disturbed_is_asked_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sound: Answer = {"values": {}, "notes": []}
    answering(monkeypatch, health=[sound, DISTURBED, sound, sound])
    look = session.look(context(), "health")
    assert len(look["gpus"]) == 3 and look["troubles"] == []


def test_who_is_disturbed_again_and_again_blames_no_gpu(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, health=on(1, DISTURBED))
    look = session.look(context(), "health")
    with pytest.raises(Skip, match="GPU 1: NVML could not be asked: the process that asks was stopped"):
        nvml_survey.complete(context(), {"look": look})


def test_a_gpu_whose_driver_crashes_the_process_is_blamed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, health=on(1, NoReply(NoReplyKind.CRASHED, "nvmlX", "ended by SIGSEGV")))
    look = session.look(context(), "health")
    told = [(trouble["kind"], trouble["text"]) for trouble in look["troubles"]]
    assert told == [("died", "the process that asked ended by SIGSEGV")]


def test_in_another_check_what_is_silent_is_a_skip(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, health=on(2, HANGS))
    session.look(context(), "health")
    look = session.look(context(check="gpu.pcie"), "pcie")
    with pytest.raises(Skip, match=r"GPU 2 did not answer, see gpu\.health; the others were checked"):
        nvml_survey.complete(context(check="gpu.pcie"), {"look": look})


def test_a_rank_that_may_read_its_own_gpu_only_looks_at_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Answer = {"trouble": ["permission", "nvmlX", "Insufficient Permissions"]}
    answering(monkeypatch, handle=lambda arguments: handle(arguments) if arguments[0] == 1 else refused)
    ctx = context(rank=1)
    look = session.look(ctx, "health")
    assert list(look["gpus"]) == ["GPU-1"] and nvml_survey.complete(ctx, {"look": look})


def test_where_a_gpu_is_lost_still_one_rank_a_node_looks(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: Answer = {"trouble": ["lost", "nvmlX", "GPU is lost"]}
    answering(monkeypatch, handle=lambda arguments: lost if arguments[0] == 1 else handle(arguments))
    look = session.look(context(rank=1), "health")
    assert look["gpus"] == {} and [(trouble["gpu"], trouble["bus"]) for trouble in look["troubles"]] == [
        (1, "0000:01:00.0")
    ]


def test_a_node_without_gpus_has_nothing_to_look_at(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci, "gpus", list)
    answering(monkeypatch, start={"trouble": ["error", "nvmlInit", "Library Not Found"]})
    with pytest.raises(NotApplicable, match="there is no NVIDIA GPU on this node"):
        session.seen(context())


def test_where_gpus_are_hidden_nobody_knows_where_a_lost_one_is(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci, "gpus", lambda: [f"0000:0{gpu}:00.0" for gpu in range(8)])
    lost: Answer = {"trouble": ["lost", "nvmlX", "GPU is lost"]}
    answering(monkeypatch, handle=lambda arguments: lost if arguments[0] == 1 else handle(arguments))
    session.seen(context())
    assert [(trouble["hidden"], trouble["bus"]) for trouble in session.troubles] == [(True, None)]


@pytest.mark.parametrize(("on_the_bus", "rank", "looks"), [(3, 0, 3), (3, 1, 0), (8, 0, 3), (8, 1, 3)])
def test_one_rank_a_node_looks_but_where_gpus_are_hidden_each_does(
    session: Session, monkeypatch: pytest.MonkeyPatch, on_the_bus: int, rank: int, looks: int
) -> None:
    answering(monkeypatch)
    monkeypatch.setattr(pci, "gpus", lambda: [f"0000:0{gpu}:00.0" for gpu in range(on_the_bus)])
    assert len(session.look(context(rank=rank), "health")["gpus"]) == looks


@pytest.mark.parametrize(("variable", "raises"), [("SLURM_JOB_ID", NotApplicable), ("NOTHING", None)])
def test_a_container_without_the_driver_was_given_no_gpu(
    session: Session, monkeypatch: pytest.MonkeyPatch, variable: str, raises: type[Exception] | None
) -> None:
    monkeypatch.setattr(nvml_survey, "SIGNS", ())
    answering(monkeypatch, start={"trouble": ["error", "nvmlInit", "Library Not Found"]})
    ctx = context(**{variable: "1"})  # type: ignore[arg-type]
    if raises is None:
        assert session.seen(ctx)["system"] is None and session.troubles[0]["kind"] == "driver"
    else:
        with pytest.raises(raises, match="none of the node's 3 GPUs was given to this container"):
            session.seen(ctx)


def test_a_second_start_that_fails_leaves_no_pass(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sound: Answer = {"values": {}, "notes": []}
    lost = {"trouble": ["error", "nvmlInit", "Unknown Error"]}
    answering(monkeypatch, start=[sound, lost], health=on(0, HANGS))
    look = session.look(context(), "health")
    assert [trouble["kind"] for trouble in look["troubles"]] == ["hangs", "driver"]
    with pytest.raises(Skip, match="NVML does not work: Unknown Error"):
        session.look(context(check="gpu.pcie"), "pcie")


def pair(gpu: int, other: int) -> Answer:
    call = f"nvmlDeviceGetP2PStatus with GPU {other}"
    return NoReply(NoReplyKind.TIMED_OUT, call, f"asked by {gpu}", 1.0)


@pytest.mark.parametrize("sick", [0, 1, 2])
def test_of_a_call_on_two_gpus_the_sick_one_is_blamed(
    session: Session, monkeypatch: pytest.MonkeyPatch, sick: int
) -> None:
    hung: list[int] = []

    def place(arguments: list[Any]) -> Answer:
        gpu, others = arguments
        peers = [other for other in others if other != gpu]
        bad = peers if gpu == sick else [other for other in peers if other == sick]
        hung.extend([gpu] if bad else [])
        return pair(gpu, bad[0]) if bad else {"values": {}, "notes": []}

    answering(monkeypatch, place=place)
    look = session.look(context(check="gpu.topology"), "place")
    assert [trouble["gpu"] for trouble in look["troubles"]] == [sick]
    assert len(look["gpus"]) == 2 and set(hung) == {0}  # nobody else has to wait for it


# Real runs

CUDA_PATH = os.pathsep.join(map(str, (running.ROOT / "tests" / "cuda", running.ROOT)))


@needs_machines
@pytest.mark.parametrize(("deed", "fault"), [("8", ""), ("7", "cuda_count"), ("raises", "cuda_raises")])
def test_cuda_is_held_against_nvml(tmp_path: Path, deed: str, fault: str) -> None:
    machine = machines.load("h100_nvswitch", tmp_path)
    more = {"CUDA_DEED": deed, "PYTHONPATH": CUDA_PATH}
    finished = in_machine.run_ranks(machine, tmp_path, 1, "--only", "gpu.inventory", "--backend", "gloo", environ=more)
    found = finished.findings()
    assert ELSEWHERE[fault].is_told_by(found) if fault else found == [], finished.told()
    assert not fault or ELSEWHERE[fault].says in found[0]["message"], finished.told()


@needs_machines
@pytest.mark.more
def test_cuda_that_hangs_is_told(tmp_path: Path) -> None:
    machine = machines.load("consumer", tmp_path)
    more = {"CUDA_DEED": "hangs", "PYTHONPATH": CUDA_PATH}
    arguments = ("--only", "gpu.inventory", "--backend", "gloo", "--deadline", "20")
    finished: Finished = in_machine.run_ranks(machine, tmp_path, 1, *arguments, environ=more)
    assert "torch.cuda.device_count gave no answer within" in str(finished.check("gpu.inventory")["skipped"])
    assert finished.check("gpu.inventory")["status"] == "skip", finished.told()


@needs_machines
@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the system calls of x86-64 only")
def test_no_process_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    machine = machines.load("consumer", tmp_path, {"gpu.1.hang": "nvmlDeviceGetVbiosVersion"})
    run = running.Run(tmp_path)
    words = running.preflight("run", "--level", "quick", "--only", "gpu", "--deadline", "60")
    process = run.start(machine.command(words), in_machine.environment(machine, {}))
    asks = _asking(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    gone, alive = psutil.wait_procs(asks, timeout=20)
    assert gone and not alive


def _asking(supervisor: int) -> list[psutil.Process]:
    """The process that asks, a child of a child of the supervisor, once it hangs: it pauses then."""
    end = time.monotonic() + running.PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            found = [process for child in psutil.Process(supervisor).children() for process in child.children()]
            if any(Path(f"/proc/{process.pid}/syscall").read_text().split()[0] == PAUSE for process in found):
                return found
    raise AssertionError("no process asks")


PAUSE = "34"
"""The number of pause(2) on x86-64."""


def test_without_the_library_pynvml_is_not_imported_and_would_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes longer than all that a quick run measures on a machine without a driver."""
    import pynvml

    def not_there(_name: str) -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("ctypes.CDLL", not_there)
    monkeypatch.setattr(pynvml, "CDLL", not_there)
    with pytest.raises(pynvml.NVMLError) as told:
        pynvml.nvmlInit()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it raises
    with pytest.raises(nvml.NvmlTrouble) as ours:
        nvml.start()
    assert (ours.value.text, ours.value.number) == (str(told.value), told.value.value)
