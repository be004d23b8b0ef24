"""Asks NVML in a process of its own, since a call on a sick GPU can block for ever and no signal interrupts it.

The process lives as long as the worker, for all checks. Each question (a GPU, a group of calls) has a deadline; when it
passes, the process is killed, the GPU is asked no more, and another process goes on with the others.
"""

import contextlib
import json
import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, TypedDict, TypeVar, cast

from preflight.check import Context, NotApplicable, Skip, ranges
from preflight.checks.gpu import links, nvml, pci
from preflight.checks.gpu.readings import Handle, System

T = TypeVar("T")

HANGS, DIED, NO_DRIVER, CUDA = "hangs", "died", "driver", "cuda"
START_S, HEALTHY_START_S = 60.0, 15.0
"""For the driver's start: without persistence mode it takes seconds a GPU, and 15 s in all can be healthy. Where the
run's deadline leaves less than that, a start that does not end says nothing."""
ASK_S = 5.0
"""A question takes milliseconds on a healthy GPU, a second where it wakes up or its InfoROM is read."""
KILL_S = 1.0
"""A process in uninterruptible sleep does not end; it is left behind."""


class Trouble(TypedDict):
    """A GPU that does not answer as it should."""

    gpu: int | None
    """NVML's number; None: it is the driver as a whole."""
    uuid: str | None
    bus: str | None
    name: str | None
    serial: str | None
    kind: str
    """lost, reset, error, permission, hangs, died, driver."""
    call: str
    text: str
    seconds: float
    met_in: str
    """The check in which it was met, and which tells of it."""


class Seen(TypedDict):
    """What this process may see of the node's GPUs."""

    system: System | None
    gpus: dict[str, Handle]
    """By NVML's number, as text."""
    pci: list[str]
    """Bus ids of the NVIDIA GPUs that the PCI bus has, whoever may use them."""


class Look(TypedDict):
    """What a check got of the GPUs that this rank looks at: {uuid: values}, and what did not answer."""

    gpus: dict[str, Any]
    troubles: list[Trouble]
    notes: dict[str, list[str]]
    """Odd answers, by UUID."""


class _Process:
    """The process that asks."""

    def __init__(self) -> None:
        self.calling = mmap.mmap(-1, 256)
        ours, theirs = multiprocessing.Pipe()
        self.connection: Connection = ours
        self.process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, self.calling), daemon=True
        )
        self.process.start()
        theirs.close()

    def ask(self, group: str, arguments: list[Any], within_s: float) -> dict[str, Any]:
        """The answer, or {"trouble": ...}: hangs, or died."""
        start = time.monotonic()
        try:
            self.connection.send_bytes(json.dumps([group, arguments]).encode())
            if self.connection.poll(within_s):
                return cast("dict[str, Any]", json.loads(self.connection.recv_bytes()))
            kind, text = HANGS, f"no answer within {time.monotonic() - start:.1f} s"
        except (EOFError, OSError):
            self.process.join(KILL_S)
            kind, text = DIED, f"the process that asked ended with {self.process.exitcode}"
        call = self.calling[:].rstrip(b"\0").decode(errors="replace")
        return {"trouble": [kind, call, text], "seconds": time.monotonic() - start}

    def end(self) -> None:
        self.process.kill()
        self.process.join(KILL_S)
        self.connection.close()


def _serve(connection: Connection, calling: mmap.mmap) -> None:
    """What the process runs: it answers until its worker is gone. It keeps no other descriptor of the worker."""
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX") if kept + 1 < 4096 else kept + 1)
    nvml.announce_to(lambda name: _write(calling, name))
    with contextlib.suppress(EOFError, OSError):
        while True:
            group, arguments = json.loads(connection.recv_bytes())
            connection.send_bytes(json.dumps(_answer(group, arguments)).encode())
    os._exit(0)


def _write(calling: mmap.mmap, name: str) -> None:
    calling[:] = name.encode()[:256].ljust(256, b"\0")


def _answer(group: str, arguments: list[Any]) -> dict[str, Any]:
    functions: Mapping[str, Any] = {
        "start": nvml.start, "system": nvml.system, "handle": nvml.handle, "identity": nvml.identity,
        "health": nvml.health, "pcie": links.pcie, "nvlink": links.nvlink, "place": links.place, "torch": _torch_count,
    }  # fmt: skip
    start = time.monotonic()
    try:
        values = functions[group](*arguments)
    except nvml.Trouble as trouble:
        told = [trouble.kind, trouble.call, trouble.text]
        return {"trouble": told, "number": trouble.number, "seconds": time.monotonic() - start}
    except Exception as error:  # ours, or a pynvml of another kind
        return {"trouble": [nvml.ERROR, group, f"{type(error).__name__}: {error}"], "seconds": 0.0}
    return {"values": values, "notes": nvml.take_notes()}


def _torch_count() -> int:
    """How many GPUs CUDA gives torch. Starts the driver's CUDA, which is why it is asked for here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class Session:
    """NVML, for all checks of one worker."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._silent: dict[int | str | None, Trouble] = {}
        """GPUs that are asked no more, and why. None is the driver, CUDA the part of it that torch uses."""
        self._seen: Seen | None = None

    def seen(self, ctx: Context) -> Seen:
        """Raises NotApplicable where there is no NVIDIA GPU. Where NVML does not work, `system` is None."""
        if self._seen is None:
            self._seen = self._look_around(ctx)
        return self._seen

    def _look_around(self, ctx: Context) -> Seen:
        cards = pci.gpus()
        started = self._start(ctx)
        if not started:
            if not cards:
                raise NotApplicable("there is no NVIDIA GPU on this node")
            if confined(ctx.environ) and not os.path.exists("/dev/nvidiactl"):
                raise NotApplicable(f"none of the node's {ranges.count(len(cards), 'GPU')} was given to this container")
            return {"system": None, "gpus": {}, "pci": cards}
        system = self.ask(ctx, "system", None)
        if system is None:
            return {"system": None, "gpus": {}, "pci": cards}
        if not system["count"] and not cards:
            raise NotApplicable("there is no NVIDIA GPU on this node")
        found = {str(gpu): handle for gpu in range(system["count"]) if (handle := self.ask(ctx, "handle", gpu))}
        for trouble in self.troubles:  # NVML counts in the order of the bus
            if trouble["gpu"] is not None and len(cards) == system["count"]:
                trouble["bus"] = cards[trouble["gpu"]]
        return {"system": system, "gpus": found, "pci": cards}

    def _start(self, ctx: Context) -> bool:
        """Whether NVML could be opened. Raises Skip where that is not known."""
        if None in self._silent:
            return False
        if self._process is None:
            self._process = _Process()
            ctx.doing("starting NVML")
            within_s = min(START_S, 0.6 * ctx.deadline_s)
            answer = self._process.ask("start", [], within_s)
            if "trouble" in answer:
                self._meet(ctx, None, answer)
                if answer["trouble"][0] == HANGS and within_s < HEALTHY_START_S:
                    raise Skip(
                        f"NVML did not start within {within_s:.1f} s, which may be healthy: give a longer --deadline"
                    )
                return False
        return True

    def ask(self, ctx: Context, group: str, gpu: int | None, *more: Any, within_s: float = ASK_S) -> Any:
        """The values of a group of calls, or None; then `troubles` has the reason."""
        if gpu in self._silent or not self._start(ctx):
            return None
        assert self._process is not None
        ctx.doing(f"asking NVML: {group}", **({} if gpu is None else {"gpu": gpu}))
        arguments = [*([] if gpu is None else [gpu]), *more]
        answer = self._process.ask(group, arguments, min(within_s, 0.3 * ctx.deadline_s))
        if "trouble" in answer:
            self._meet(ctx, gpu if group != "torch" else CUDA, answer)
            return None
        self.notes = answer["notes"]
        return answer["values"]

    def _meet(self, ctx: Context, who: int | str | None, answer: Mapping[str, Any]) -> None:
        kind, call, text = answer["trouble"]
        handle = (self._seen or {"gpus": {}})["gpus"].get(str(who))
        whole = {None: NO_DRIVER, CUDA: CUDA}
        self._silent[who] = {
            "gpu": who if isinstance(who, int) else None,
            "uuid": handle["uuid"] if handle else None,
            "bus": handle["bus"] if handle else None,
            "name": handle["name"] if handle else None,
            "serial": handle["serial"] if handle else None,
            "kind": kind if isinstance(who, int) else whole[who],
            "call": call,
            "text": text,
            "seconds": round(answer["seconds"], 1),
            "met_in": ctx.check,
        }
        if kind in (HANGS, DIED) and self._process is not None:
            self._process.end()
            self._process = None

    @property
    def troubles(self) -> list[Trouble]:
        """All that were met so far."""
        return list(self._silent.values())

    def look(self, ctx: Context, group: str) -> Look:
        """The values of a group for every GPU that this rank looks at. Raises NotApplicable without a GPU, and Skip
        where NVML does not work and another check has told of it."""
        seen = self.seen(ctx)
        if seen["system"] is None and self._silent[None]["met_in"] != ctx.check:
            raise Skip(f"NVML does not work: {self._silent[None]['text']}")
        found: Look = {"gpus": {}, "troubles": [], "notes": {}}
        numbers = [int(number) for number in seen["gpus"]]
        for number in numbers if looks(ctx, seen) else ():
            more = [[other for other in numbers if other not in self._silent]] if group == "place" else []
            values = self.ask(ctx, group, number, *more)
            uuid = seen["gpus"][str(number)]["uuid"]
            if values is not None:
                found["gpus"][uuid] = values
                if self.notes:
                    found["notes"][uuid] = self.notes
        found["troubles"] = self.troubles
        return found


def looks(ctx: Context, seen: Seen) -> bool:
    """Whether this rank looks at the GPUs that it sees. Where it sees all of the node's, one rank a node does; where a
    cgroup or a container hides some (srun --gpus-per-task), each rank looks at what it sees."""
    hidden = len(seen["pci"]) > len(seen["gpus"])
    return hidden or ctx.rank in ctx.job.one_per_node(ctx.members)


_session = Session()


def session() -> Session:
    """That of this worker."""
    return _session


def torch_has_cuda() -> bool:
    """Not in a run of level quick, which has not imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None


def confined(environ: Mapping[str, str]) -> bool:
    """Whether GPUs may be hidden from this process on purpose: a container (of docker, podman, Kubernetes, enroot), or
    a job of Slurm, which hides those of others by a cgroup."""
    signs = ("/.dockerenv", "/run/.containerenv")
    named = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES", "container")
    return any(map(os.path.exists, signs)) or any(environ.get(name) for name in named)
