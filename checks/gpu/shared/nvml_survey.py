"""Queries NVML about the node's GPUs, with a deadline for each query, and decides which GPUs this rank looks at.

A query is one group of calls on one GPU. All GPUs are queried in parallel; those that do not answer are queried alone.
When a deadline passes, the querying process (a Probe) is killed, the GPU is not queried again, and another process
continues with the others. The check in which a GPU stopped answering reports it.
"""

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

from preflight.check import Context, NoReply, NoReplyKind, NotApplicable, Probe, Skip, ranges
from preflight.checks.gpu.shared import links, nvml, other_gpus, pci
from preflight.checks.gpu.shared.readings import Handle, System

T = TypeVar("T")
NO_NVML = "NVML does not work"
"""The start of a skip's reason."""
PERMISSION, NO_DRIVER, CUDA = nvml.NO_PERMISSION, "driver", "cuda"
HANGS, DIED, UNKNOWN = "hangs", "died", "unknown"
"""No answer in time; the querying process crashed; undecidable."""
DISTURBED = NoReplyKind.DISTURBED.value

START_S, ASK_S = 60.0, 5.0
"""For the driver to start, and for a query."""
WITHIN_S = {"system": START_S, "handle": 20.0, "torch": START_S}
"""Queries that may start the driver or initialize a GPU: without persistence mode that takes seconds per GPU."""
HEALTHY_S = {"start": 30.0, "system": 30.0, "torch": 30.0, "handle": 5.0}
"""What these may take on a sound node with eight GPUs. If the run's deadline leaves less, silence proves nothing."""
HEALTHY_ASK_S = 2.0
"""Usually milliseconds, but a second if the GPU wakes up or its InfoROM is read."""
SHARE = 0.3
"""Share of a check's deadline for one query; twice as much for the driver's start."""


class GpuTrouble(TypedDict):
    """A GPU that does not answer properly."""

    gpu: int | None
    """NVML's number; None for the driver as a whole."""
    uuid: str | None
    bus: str | None
    serial: str | None
    hidden: bool
    """Whether other GPUs are hidden from this rank, so that the number is only valid for it."""
    kind: str
    """lost, reset, error, permission, hangs, died, driver, cuda; unknown: it may be sound."""
    call: str
    text: str
    seconds: float
    met_in: str
    """The check that encountered and reports it."""


class SeenGpus(TypedDict):
    """The node's GPUs that this process may see."""

    system: System | None
    gpus: dict[str, Handle]
    """By NVML's number, as text."""
    pci: list[str]
    """Bus ids of all NVIDIA GPUs on the PCI bus, usable or not."""
    partial: bool
    """Whether some of these are hidden from this process or unreadable. (A lost GPU is listed.)"""


class GpuLook(TypedDict):
    """What a check read from the GPUs that this rank looks at: {uuid: values}, and what did not answer."""

    gpus: dict[str, Any]
    numbers: dict[str, int]
    """NVML's numbers by UUID."""
    troubles: list[GpuTrouble]
    notes: dict[str, list[str]]
    """Calls that ended with an odd error, by UUID: "nvmlDeviceGetSerial: Unknown Error"."""


class Unanswered(NamedTuple):
    """Why there is no answer."""

    kind: str
    call: str
    text: str
    seconds: float


def _torch_count() -> int:
    """How many GPUs CUDA shows torch. Initializes CUDA, which may hang, so it is called here."""
    import torch

    nvml.announce("torch.cuda.device_count")
    try:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception as error:
        raise nvml.NvmlTrouble(nvml.ERROR, "torch.cuda.device_count", f"{type(error).__name__}: {error}") from None


def _noting(group: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Makes a group of calls return {"values", "notes"}, or {"trouble": [kind, call, text]}."""

    def answer(*arguments: Any) -> dict[str, Any]:
        nvml.take_notes()
        try:
            return {"values": group(*arguments), "notes": nvml.take_notes()}
        except nvml.NvmlTrouble as trouble:
            return {"trouble": [trouble.kind, trouble.call, trouble.text]}

    return answer


_READ: Mapping[str, Callable[..., Any]] = {
    "start": nvml.start, "system": nvml.system, "handle": nvml.handle, "identity": nvml.identity,
    "health": nvml.health, "pcie": links.pcie, "nvlink": links.nvlink, "place": links.place, "torch": _torch_count,
}  # fmt: skip
GROUPS = {name: _noting(group) for name, group in _READ.items()}


def _side_by_side(group: str, questions: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """(GPU, answer) as they arrive: one thread per GPU, since calls take milliseconds on some machines, and there are a
    hundred per GPU. Does not wait for GPUs that take far longer than the others. `questions`: the group's arguments,
    starting with the GPU's number."""
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for question in questions:
        each = partial(_answer_to, answers, GROUPS[group], question)
        threading.Thread(target=each, daemon=True).start()
    began, patience_s = time.monotonic(), None
    with contextlib.suppress(queue.Empty):
        for _ in questions:
            yield answers.get(timeout=patience_s)
            patience_s = max(HEALTHY_ASK_S / 2, 2 * (time.monotonic() - began))


def _answer_to(
    answers: "queue.SimpleQueue[tuple[int, Any]]", group: Callable[..., Any], question: Sequence[Any]
) -> None:
    with contextlib.suppress(Exception):  # our own fault: reported when this GPU is queried alone
        answers.put((question[0], group(*question)))


class Session:
    """NVML, for all checks of one worker."""

    def __init__(self) -> None:
        self._probe = Probe({**GROUPS, "side_by_side": _side_by_side})
        self._started: int | None = None
        """The pid of the process that has NVML open."""
        self._silent: dict[int | str | None, GpuTrouble] = {}
        """GPUs that are no longer queried, and why. The key None is the driver, CUDA the part of it that torch uses."""
        self._seen: SeenGpus | None = None
        self._notes: list[str] = []

    def seen(self, ctx: Context) -> SeenGpus:
        """The GPUs. Raises NotApplicable if there is no NVIDIA GPU. If NVML does not work, `system` is None."""
        if self._seen is None:
            self._seen = self._look_around(ctx)
        return self._seen

    def _look_around(self, ctx: Context) -> SeenGpus:
        cards = pci.gpus()
        system = self.ask(ctx, "system", None) if self._start(ctx) else None
        fails = None in self._silent and self._silent[None]["kind"] == NO_DRIVER
        if fails and cards and confined(ctx.environ) and not os.path.exists("/dev/nvidiactl"):
            raise NotApplicable(f"none of the node's {ranges.count(len(cards), 'GPU')} was given to this container")
        if not cards and (system is None or not system["count"]):
            if why := other_gpus.not_looked_at():
                raise Skip(why)
            raise NotApplicable("there is no NVIDIA GPU on this node")
        if system is None:
            return {"system": None, "gpus": {}, "pci": cards, "partial": False}
        count = system["count"]
        found = {str(gpu): handle for gpu in range(count) if (handle := self.ask(ctx, "handle", gpu))}
        partial = len(cards) > count or any(trouble["kind"] == PERMISSION for trouble in self.troubles)
        for trouble in self.troubles:
            trouble["hidden"] = partial
            if trouble["gpu"] is not None and len(cards) == count:  # NVML counts in the order of the bus
                trouble["bus"] = cards[trouble["gpu"]]
        return {"system": system, "gpus": found, "pci": cards, "partial": partial}

    def _start(self, ctx: Context) -> bool:
        """Whether NVML could be opened. Raises Skip if that is unknown."""
        if None in self._silent:
            return False
        if self._started is None or self._started != self._probe.pid:
            ctx.doing("starting NVML")
            answer = self._answer("start", [], min(START_S, 2 * SHARE * ctx.deadline_s))
            if isinstance(answer, Unanswered):
                trouble = self._meet(ctx, None, answer)
                if trouble["kind"] == UNKNOWN:
                    raise Skip(trouble["text"])
                self._probe.end()  # nothing is asked any more
                return False
            self._started = self._probe.pid
        return True

    def ask(self, ctx: Context, group: str, gpu: int | None, *more: Any) -> Any:
        """The values of a group of calls, or None; then `troubles` has the reason. Raises Skip like `_start`."""
        within_s = min(WITHIN_S.get(group, ASK_S), SHARE * ctx.deadline_s)
        for _ in range(2):  # again, if something disturbed the process
            if gpu in self._silent or not self._start(ctx):
                return None
            ctx.doing(f"asking NVML: {group}", **({} if gpu is None else {"gpu": gpu}))
            answer = self._answer(group, [*([] if gpu is None else [gpu]), *more], within_s)
            if not isinstance(answer, Unanswered) or answer.kind != DISTURBED:
                break
        if isinstance(answer, Unanswered):
            self._meet(ctx, gpu if group != "torch" else CUDA, answer)
            return None
        self._notes = answer["notes"]
        return answer["values"]

    def _answer(self, group: str, arguments: list[Any], within_s: float) -> dict[str, Any] | Unanswered:
        start = time.monotonic()
        reply = self._probe.ask(group, *arguments, deadline_s=within_s)
        if isinstance(reply, NoReply):
            if reply.refused is not None:  # the engine names the limit
                raise OSError(reply.refused, os.strerror(reply.refused))
            return _why(group, reply, within_s)
        answer: dict[str, Any] = reply.value
        if "trouble" in answer:
            kind, call, text = answer["trouble"]
            return Unanswered(kind, call, text, time.monotonic() - start)
        return answer

    def _meet(self, ctx: Context, who: int | str | None, why: Unanswered) -> GpuTrouble:
        handle = self._seen["gpus"].get(str(who)) if self._seen else None
        self._silent[who] = {
            "gpu": who if isinstance(who, int) else None,
            "uuid": handle["uuid"] if handle else None,
            "bus": handle["bus"] if handle else None,
            "serial": handle["serial"] if handle else None,
            "hidden": self._seen is not None and self._seen["partial"],
            "kind": _kind(who, why.kind),
            "call": why.call,
            "text": why.text,
            "seconds": round(why.seconds, 1),
            "met_in": ctx.check,
        }
        return self._silent[who]

    @property
    def troubles(self) -> list[GpuTrouble]:
        return list(self._silent.values())

    def look(self, ctx: Context, group: str) -> GpuLook:
        """The values of a group for every GPU that this rank looks at. Raises NotApplicable without a GPU, and Skip if
        NVML does not work and another check has reported it."""
        seen = self.seen(ctx)
        if None in self._silent and self._silent[None]["met_in"] != ctx.check:
            raise Skip(f"{NO_NVML}: {self._silent[None]['text']}")
        found: GpuLook = {"gpus": {}, "numbers": {}, "troubles": [], "notes": {}}
        numbers = [int(number) for number in seen["gpus"]] if looks(ctx, seen) else []
        answers = self._side_by_side(ctx, group, numbers)
        for number in numbers:
            values = self._values(ctx, group, number, numbers, answers.get(number))
            uuid = seen["gpus"][str(number)]["uuid"]
            if values is not None:
                found["gpus"][uuid], found["numbers"][uuid] = values, number
                if self._notes:
                    found["notes"][uuid] = self._notes
        found["troubles"] = self.troubles
        return found

    def _side_by_side(self, ctx: Context, group: str, numbers: list[int]) -> dict[int, Any]:
        """The answers of all GPUs that answer in parallel. The others may be faulty, or wait for one that is: each must
        be queried alone, in another process."""
        asked = [number for number in numbers if number not in self._silent]
        if len(asked) < 2 or not self._start(ctx):
            return {}
        ctx.doing(f"asking NVML: {group}")
        more = [asked] if group == "place" else []
        questions = [[number, *more] for number in asked]
        reply = self._probe.ask("side_by_side", group, questions, deadline_s=min(ASK_S, SHARE * ctx.deadline_s))
        if len(reply.parts) < len(asked):
            self._probe.end()
        return {number: answer for number, answer in reply.parts if "values" in answer}

    def _values(self, ctx: Context, group: str, gpu: int, numbers: list[int], answer: dict[str, Any] | None) -> Any:
        """The values of a GPU that answered with the others, or is queried alone."""
        if answer is not None:
            self._notes = answer["notes"]
            return answer["values"]
        return self._place(ctx, gpu, numbers) if group == "place" else self.ask(ctx, group, gpu)

    def _place(self, ctx: Context, gpu: int, numbers: list[int]) -> Any:
        """A call on two GPUs may hang because of either: one that also hangs with a third is faulty, else the other."""
        others = [other for other in numbers if other not in self._silent]
        if gpu not in others:
            return None
        values = self.ask(ctx, "place", gpu, others)
        first = self._silent.get(gpu)
        peer = re.search(r" with GPU (\d+)$", first["call"]) if first and first["kind"] in (HANGS, DIED) else None
        if first is None or peer is None or first["met_in"] != ctx.check or len(others) < 2:
            return values
        del self._silent[gpu]
        values = self.ask(ctx, "place", gpu, [other for other in others if other != int(peer[1])])
        if values is not None:
            call = first["call"].replace(peer[0], f" with GPU {gpu}")
            self._meet(ctx, int(peer[1]), Unanswered(first["kind"], call, first["text"], first["seconds"]))
        return values


def _kind(who: int | str | None, kind: str) -> str:
    if kind in (UNKNOWN, DISTURBED):
        return UNKNOWN
    if isinstance(who, int):
        return kind
    return CUDA if who == CUDA else NO_DRIVER if kind == nvml.ERROR else kind


def _why(group: str, reply: NoReply, within_s: float) -> Unanswered:
    """Why there is no answer. Blames no GPU if a sound node could take as long, or if it is not the GPU's fault."""
    kind, text = UNKNOWN, f"NVML could not be asked: {reply.text}"
    if reply.kind == NoReplyKind.TIMED_OUT and within_s < HEALTHY_S.get(group, HEALTHY_ASK_S):
        text = f"{reply.call} gave {reply.text}, but may be healthy: set a longer --deadline"
    elif reply.kind == NoReplyKind.TIMED_OUT:
        kind, text = HANGS, reply.text
    elif reply.kind == NoReplyKind.CRASHED:
        kind, text = DIED, f"the process that asked {reply.text}"
    elif reply.kind == NoReplyKind.DISTURBED:
        kind, text = DISTURBED, f"NVML could not be asked: the process that asks {reply.text}"
    return Unanswered(kind, reply.call, text, reply.seconds)


def complete(ctx: Context, facts: T) -> T:
    """The facts of a check. Raises Skip with them if it did not look at some GPU, because that had stopped answering
    before, or may still answer."""
    troubles: list[GpuTrouble] = cast("dict[str, Any]", facts)["look"]["troubles"]
    unsure = [trouble for trouble in troubles if trouble["kind"] == UNKNOWN]
    if unsure:
        gpu = f"GPU {unsure[0]['gpu']}: " if unsure[0]["gpu"] is not None else ""
        raise Skip(f"{gpu}{unsure[0]['text']}", facts)
    missed = {
        trouble["gpu"]: trouble["met_in"]
        for trouble in troubles
        if trouble["met_in"] != ctx.check and trouble["kind"] != PERMISSION
    }
    if gpus := sorted(gpu for gpu in missed if gpu is not None):
        which = f"GPU{'s' if len(gpus) > 1 else ''} {ranges.to_text(gpus)}"
        raise Skip(f"{which} did not answer, see {missed[gpus[0]]}; the others were checked", facts)
    return facts


def looks(ctx: Context, seen: SeenGpus) -> bool:
    """Whether this rank looks at the GPUs that it sees. If it sees all of the node's, only one rank per node does; if a
    cgroup or container hides some (srun --gpus-per-task), each rank looks at what it sees."""
    return seen["partial"] or ctx.rank in ctx.job.one_per_node(ctx.members)


_session = Session()


def session() -> Session:
    return _session


def torch_has_cuda() -> bool:
    """Whether torch is imported, which it is not at level quick, and has CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None


SIGNS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
VARIABLES = (
    "KUBERNETES_SERVICE_HOST", "NVIDIA_VISIBLE_DEVICES", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "container",
    "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "SGE_ROOT", "_CONDOR_SCRATCH_DIR",
)  # fmt: skip


def confined(environ: Mapping[str, str]) -> bool:
    """Whether GPUs may be hidden from this process on purpose: by a container (docker, podman, Kubernetes, enroot,
    apptainer, LXC), or by a scheduler that hides other jobs' GPUs with a cgroup."""
    return any(map(os.path.exists, SIGNS)) or any(environ.get(name) for name in VARIABLES)
