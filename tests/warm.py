"""Ranks that begin with torch and preflight imported, and with what training needs of torch: forked from a process that
waits for orders. The imports are most of what a short run takes, and the same in every test. In all else they are as
`python -m preflight` would start them.

Two such processes serve a test session, all of its workers: with hash seeds of their own, since ranks whose sets have
one order would hide what hangs on it. They end with the last worker. Started cold, and not from here, are the ranks of
torchrun and of tests/test_sound.py.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from preflight.planning import registry
from tests import entering

if TYPE_CHECKING:
    from tests.hosts import Host

TESTS = Path(__file__).parent
MARK = "PREFLIGHT_TEST_MARK"
BLANK = "0" * 32
MESSAGE = 2**17
"""Bytes; what does not fit one is not asked for."""
CHANGING = {str(file.parent) for file in TESTS.glob("*/sitecustomize.py")}
"""On PYTHONPATH. Their sitecustomize waits for a module of preflight, and changes nothing of torch's import."""
LATE = str(TESTS / "sick")
"""One of them: its sitecustomize waits for modules that no rank has imported when it is forked (NOT_YET), so preflight
need not be imported anew, a quarter of a second per rank."""
NOT_YET = ("preflight.train_smoke.trainer.train", "preflight.checks.gpu.compute.workload")
FOLDERS = {str(TESTS.parent), str(TESTS / "plugins"), *CHANGING}
EARLY = ("PYTHON", "TORCH_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "LD_", "MALLOC_")
"""Names that Python, torch or a library reads once: with others than here a rank starts cold."""


def fits(env: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Whether a rank with this environment may be forked from a process that has the usual one."""
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    names = {name for name in (*env, *usual) if name.startswith(EARLY) and name != "PYTHONPATH"}
    is_usual = set(folders) <= FOLDERS and all(env.get(name) == usual.get(name) for name in names)
    return is_usual and len(json.dumps(dict(env))) < MESSAGE // 2


class Child:
    """What tests use of subprocess.Popen."""

    def __init__(self, forker: "Forker", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forker = forker

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._forker.channel], [], [], left)[0]:
                raise subprocess.TimeoutExpired(["preflight"], timeout or 0.0)
            self._forker.hear()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """One process that forks, as the tests see it. The first worker of the session that needs it starts it."""

    def __init__(self, number: int, env: Mapping[str, str]) -> None:
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        place = Path(tempfile.gettempdir(), f"preflight-tests-{session}-{number}")
        self._children: dict[int, Child] = {}
        self.channel = _new_socket()
        with _locked():
            try:
                self.channel.connect(str(place))
            except OSError:
                _serve_at(place, self.channel, env)

    def fork(
        self, module: str, words: Sequence[str], env: Mapping[str, str], folder: Path, log: int, host: "Host | None",
        before: str,
    ) -> Child:  # fmt: skip
        order = {
            "module": module,
            "words": words,
            "env": env,
            "folder": str(folder),
            "host": host and [host.namespace, host.name, str(host.folder)],
            "before": before,
        }
        socket.send_fds(self.channel, [json.dumps(order).encode()], [log])
        child = None
        while child is None:
            child = self.hear()
        return child

    def hear(self) -> Child | None:
        """One message: a child was born (it is returned), or has ended."""
        told = json.loads(self.channel.recv(MESSAGE) or b"{}")
        assert told, "the process that forks is gone"
        if "code" in told:
            self._children.pop(told["pid"]).returncode = told["code"]
            return None
        self._children[told["pid"]] = Child(self, told["pid"])
        return self._children[told["pid"]]


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """By one process of this checkout at a time."""
    folder = os.open(TESTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _serve_at(place: Path, channel: socket.socket, env: Mapping[str, str]) -> None:
    """Starts the process, with this channel to it."""
    place.unlink(missing_ok=True)
    with _new_socket() as listener:
        listener.bind(str(place))
        listener.listen()
        channel.connect(str(place))
        command = [sys.executable, "-m", "tests.warm", str(listener.fileno()), str(place)]
        usual = {**env, "PYTHONPATH": str(TESTS.parent), MARK: BLANK}
        subprocess.Popen(
            command, env=usual, cwd=TESTS.parent, pass_fds=[listener.fileno()], start_new_session=True
        )  # fmt: skip


_forkers: list[Forker] = []


def start(
    rank: int, words: Sequence[str], env: Mapping[str, str], usual: Mapping[str, str], folder: Path, log: int,
    host: "Host | None" = None, before: str = "", module: str = "preflight",
) -> Child:  # fmt: skip
    """`python -m` this module with these words. `env`: its own environment, which fits the `usual` one. `host`: of
    tests/hosts.py, where it runs. `before`: lines of a shell, done first (entering.prepare)."""
    if not _forkers:
        _forkers.extend(Forker(number, usual) for number in range(2))
    return _forkers[rank % 2].fork(module, words, env, folder, log, host, before)


# In the process that forks


def _serve(listener: socket.socket, place: Path) -> None:
    """Until the tests have gone."""
    mark = _place_of_mark()
    _import_what_ranks_need()
    awake, wakes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    channels = {listener.accept()[0]}
    owners: dict[int, socket.socket] = {}
    while channels or not _is_closed(listener, place):
        watched: list[Any] = [*channels, listener, awake]
        ready, _, _ = select.select(watched, [], [])
        if listener in ready:
            channels.add(listener.accept()[0])
        if awake in ready:
            os.read(awake, 4096)
        for channel in channels & set(ready):
            message, logs, _, _ = socket.recv_fds(channel, MESSAGE, 1)
            if not message:
                channels.remove(channel)
                continue
            pid = os.fork()
            if not pid:
                _become(json.loads(message), logs[0], mark)
            os.close(logs[0])
            owners[pid] = channel
            channel.send(json.dumps({"pid": pid}).encode())
        _reap(owners)


def _is_closed(listener: socket.socket, place: Path) -> bool:
    """From now on, if no other worker has just come."""
    with _locked():
        has_come = bool(select.select([listener], [], [], 0)[0])
        if not has_come:
            place.unlink()
        return not has_come


def _import_what_ranks_need() -> None:
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as preflight does: no thread may be left running
        import torch._dynamo
        import torch.distributed.fsdp  # noqa: F401 -- both are half of what a short training takes
    for package in ("preflight.cli", "preflight.engine", "preflight.results"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for source in registry.sources().values():
        registry.load(source)
    assert not set(NOT_YET) & set(sys.modules), "tests/sick waits for them"
    gc.freeze()
    gc.enable()


def _reap(owners: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            told = {"pid": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}
            with contextlib.suppress(OSError):  # its test has gone
                owners.pop(ended[0]).send(json.dumps(told).encode())


def _place_of_mark() -> int:
    """Where the kernel has put it, and /proc/<pid>/environ shows it: by it the tests find the processes of a run."""
    texts = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    places: list[int] = list(itertools.takewhile(bool, texts))  # type: ignore[arg-type]  # of c_void_p: numbers
    text = next(place for place in places if ctypes.string_at(place) == f"{MARK}={BLANK}".encode())
    return text + len(MARK) + 1


def _become(order: dict[str, Any], log: int, place: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(source, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        ctypes.memmove(place, order["env"][MARK].encode(), len(BLANK))
        os.environ.clear()
        os.environ.update(order["env"])
        if order["host"]:
            entering.enter(*order["host"])
        if order["before"]:
            entering.prepare(order["before"])
        os.chdir(order["folder"])
        sys.argv = ["", *order["words"]]
        folders = order["env"]["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = [order["folder"], *folders, *(path for path in sys.path if path != str(TESTS.parent))]
        random.seed()
        sys.modules["torch"].seed()  # it has drawn one when it was imported, as each rank would
        sys.modules.pop("sitecustomize", None)
        if CHANGING - {LATE} & set(folders):
            _forget_preflight()
        with contextlib.suppress(ImportError):
            importlib.import_module("sitecustomize")
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forget_preflight() -> None:
    """It is imported anew, and a sitecustomize sees it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "preflight"]:
        del sys.modules[name]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
