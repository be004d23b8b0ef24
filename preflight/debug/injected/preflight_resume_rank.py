"""What `preflight resume` injects into each Python process of a training, by PYTHONPATH: each step of an optimizer is
recorded, and after a given step the rank waits to be stopped.

Weights, optimizer state and buffers are recorded as two numbers per tensor, its norm and its sum with fixed signs, so
that trainings can be compared within their own rounding. This module imports nothing of preflight, draws no random
number of the training, and never breaks it.
"""

from __future__ import annotations

import os
import sys

import preflight_resume_tensors as tensors  # type: ignore[import-not-found]  # beside this file

TYPE_CHECKING = False  # typing's own would be an import
if TYPE_CHECKING:
    from typing import Any

ASKED = "PREFLIGHT_RESUME"
"""JSON: folder, seed, stop_at, after_save, more, waits_for_term."""
HOLD_S = 600.0
"""A rank that nobody stops goes on."""
POLL_S = 0.02
AFTER_TERM_S = 0.3
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_TORCH = "torch"


class StepRecorder:
    """Of this process. Its file begins with its first step."""

    def __init__(self, asked: Any) -> None:
        self.asked = asked
        self.torch: Any = None
        self.kept: Any = None
        """Tensors, once torch is there."""
        self.file: Any = None
        self.steps = 0
        self.stop_at: int | None = asked["stop_at"]
        self.saved: int | None = None
        """After which step torch.save was called first."""
        self.in_call = False
        self.modules: list[Any] = []
        self.names: dict[int, str] = {}
        self.optimizers: list[Any] = []
        self.before: Any = None
        self._clear()

    def _clear(self) -> None:
        self.batches: list[str] = []
        self.losses: list[Any] = []
        self.buffers: dict[str, tuple[float, float]] = {}
        self.random = ""

    # ---- where torch is imported

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        if name != _TORCH or self not in sys.meta_path:
            return None
        try:
            sys.meta_path.remove(self)
            return self._watched()
        except Exception:
            return None  # the training goes first

    def _watched(self) -> Any:
        import importlib.util

        spec: Any = importlib.util.find_spec(_TORCH)
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                self.watch(module)
            except Exception as error:
                self.complain(error)

        spec.loader.exec_module = exec_module
        return spec

    def watch(self, torch: Any) -> None:
        self.torch, self.kept = torch, tensors.Tensors(torch)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self.asked["seed"])  # what a script does not seed differs from process to process
        optimizer = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(self._guarded(self.before_step))
        optimizer.register_optimizer_step_post_hook(self._guarded(self.after_step))
        self._watch_calls(torch.nn.Module)
        self._watch_backward(torch.autograd)
        self._watch_saves(torch)

    def _guarded(self, hook: Any) -> Any:
        def guarded(optimizer: Any, args: object, kwargs: object) -> None:  # noqa: ARG001 -- as torch calls it
            if self.torch.compiler.is_compiling() or _is_made_up(sys._getframe(1)):
                return
            try:
                with self.torch.no_grad():
                    hook(optimizer)
            except Exception as error:
                self.complain(error)

        return guarded

    def _watch_calls(self, kind: Any) -> None:
        original, compiler = kind.__call__, self.torch.compiler

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 -- takes its place
            if self.in_call or compiler.is_compiling() or not self.torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            self.in_call = True
            try:
                self.note_call(module, (args, kwargs))
                return original(module, *args, **kwargs)
            finally:
                self.in_call = False

        kind.__call__ = __call__

    def _watch_backward(self, autograd: Any) -> None:
        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [tensors] if isinstance(tensors, self.torch.Tensor) else [*tensors]
            self.losses += [root.detach().double().sum() for root in roots if root.numel() == 1]
            return original(roots if len(roots) != 1 else roots[0], *args, **kwargs)

        autograd.backward = backward

    def _watch_saves(self, torch: Any) -> None:
        original = torch.save

        def save(*args: Any, **kwargs: Any) -> Any:
            if self.steps and self.saved is None:
                self.saved = self.steps
                if self.asked["after_save"]:
                    self.stop_at = self.steps + self.asked["more"]
            return original(*args, **kwargs)

        torch.save = save

    # ---- what is recorded

    def note_call(self, module: Any, given: Any) -> None:
        """A call of an outermost module in training: its inputs are the batch."""
        try:
            if not any(module is known for known in self.modules):
                self.modules.append(module)
            if not self.random:
                self.random = self.kept.random_state()
            with self.torch.no_grad():
                self.note_buffers(module)
            batch = [t for t in tensors.tensors_in(given, self.torch.Tensor) if not t.requires_grad]
            if batch:
                self.batches.append(self.kept.digest(batch))
        except Exception as error:
            self.complain(error)

    def note_buffers(self, module: Any) -> None:
        """Before its first forward of a step, which may change them; frozen parameters before the first step only."""
        named = [*module.named_buffers()]
        if not self.steps:
            named += [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        new = {tensors.unwrapped(name): tensor for name, tensor in named if tensors.unwrapped(name) not in self.buffers}
        self.buffers.update(self.kept.summaries(new))

    def before_step(self, optimizer: Any) -> None:
        place = next((at for at, known in enumerate(self.optimizers) if known is optimizer), None)
        if place is None:
            place = len(self.optimizers)
            self.optimizers.append(optimizer)
        weights: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for at, parameter in enumerate(_parameters(optimizer)):
            weights[str(at)] = parameter
            state.update(tensors.entries(str(at), optimizer.state.get(parameter, {}), self.torch.Tensor))
        self.before = {
            "optimizer": place,
            "kind": type(optimizer).__name__,
            "weights": self.kept.summaries(weights),
            "state": self.kept.summaries(state),
            "groups": [tensors.numbers(group, self.torch.Tensor) for group in optimizer.param_groups],
        }

    def after_step(self, optimizer: Any) -> None:
        if self.before is None:
            return
        listed = _parameters(optimizer)
        names = self._names(listed)  # now: a closure has its first forward in the step
        for table in ("weights", "state"):
            self.before[table] = {_renamed(key, names): value for key, value in self.before[table].items()}
        gradients = {name: p.grad for name, p in zip(names, listed) if p.grad is not None}  # noqa: B905
        norms = [norm for norm, _ in self.kept.summaries(gradients).values()]
        random = self.kept.random_state() if self.random else ""
        self.steps += 1
        record = {
            **self.before,
            "step": self.steps,
            "batches": self.batches,
            "buffers": self.buffers,
            "losses": [float(loss) for loss in self.losses],
            "random": self.random,
            "draws": random != self.random,
            "gradient": sum(norm * norm for norm in norms) ** 0.5,
            "saved": self.saved,
        }
        self.before = None
        self._clear()
        self.write(record)
        if self.stop_at is not None and self.steps >= self.stop_at:
            self.hold()

    def _names(self, listed: list[Any]) -> list[str]:
        """Of an optimizer's parameters: those in the module that was called, else their places."""
        if any(id(p) not in self.names for p in listed):
            self.names = {id(p): tensors.unwrapped(name) for m in self.modules for name, p in m.named_parameters()}
        seen: dict[str, int] = {}
        names = []
        for place, parameter in enumerate(listed):
            name = self.names.get(id(parameter), "parameter %d" % place)  # noqa: UP031 -- as the rest of this module
            seen[name] = seen.get(name, 0) + 1
            names.append(name if seen[name] == 1 else "%s (%d)" % (name, seen[name]))  # noqa: UP031
        return names

    # ---- to the folder

    def rank(self) -> tuple[int, int]:
        """(rank, world size)."""
        group = sys.modules.get("torch.distributed")
        if group is not None and group.is_available() and group.is_initialized():
            return group.get_rank(), group.get_world_size()
        number = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), "0")
        world = os.environ.get("WORLD_SIZE", "")
        return int(number), int(world) if world.isdigit() else 1

    def write(self, record: Any) -> None:
        import json

        rank, world = self.rank()
        if self.file is None:
            name = "rank-%d.%d.steps" % (rank, os.getpid())  # noqa: UP031
            self.file = open(os.path.join(self.asked["folder"], name), "w")  # noqa: SIM115 -- lives as long as it does
        self.file.write(json.dumps({**record, "rank": rank, "world": world}) + "\n")
        self.file.flush()

    def hold(self) -> None:
        """Waits to be stopped. Where SIGTERM has a handler of the script's, the rank goes on after it has run."""
        import time

        term = _Term() if self.asked["waits_for_term"] else None
        rank, world = self.rank()
        with open(os.path.join(self.asked["folder"], "rank-%d.held" % rank), "w") as file:  # noqa: UP031
            file.write("%d" % world)  # noqa: UP031
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end and not (term and term.came):
            time.sleep(POLL_S)
        if term:
            term.restore()
        self.stop_at = None

    def complain(self, error: Exception) -> None:
        """Once, for the report: what could not be recorded."""
        path = os.path.join(self.asked["folder"], "not-recorded")
        if not os.path.exists(path):
            import traceback

            with open(path, "w") as file:
                file.write("".join(traceback.format_exception(type(error), error, error.__traceback__)))


class _Term:
    """Notes that SIGTERM has come, and has the script's own handler run."""

    def __init__(self) -> None:
        import signal

        self.came = False
        self.signal = signal
        self.before: Any = signal.getsignal(signal.SIGTERM)
        try:
            if callable(self.before):
                signal.signal(signal.SIGTERM, self._note)
        except ValueError:  # not the main thread
            self.before = None

    def _note(self, number: int, frame: Any) -> None:
        self.came = True
        self.before(number, frame)

    def restore(self) -> None:
        if callable(self.before):
            self.signal.signal(self.signal.SIGTERM, self.before)


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _renamed(key: str, names: list[str]) -> str:
    """ "exp_avg of 0" with the parameter's name."""
    start, of, place = key.rpartition(" of ")
    return start + of + names[int(place)]


def _is_made_up(frame: Any) -> bool:
    """torch.distributed.checkpoint makes the state of a new optimizer by a step without gradients."""
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code.co_name in ("_init_optim_state", "_initialize_optimizer_state"):
            return True
        frame = frame.f_back
    return False


def install() -> None:
    """If a training is being recorded."""
    import json
    import random

    if os.environ.get(ASKED):
        recorder = StepRecorder(json.loads(os.environ[ASKED]))
        random.seed(recorder.asked["seed"])
        sys.meta_path.insert(0, recorder)
