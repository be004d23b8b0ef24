"""Ranks that begin with torch imported, and with what training needs of it: forked from a process that waits for
orders. The import is most of what a short run takes, and the same in every test. In all else they are as
`python -m preflight` would start them.

Two such processes serve a test session, with hash seeds of their own: ranks whose sets have one order would hide what
hangs on it. Started cold, and not from here, are the ranks of torchrun and of tests/test_sound.py.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests import entering

if TYPE_CHECKING:
    from tests.hosts import Host

TESTS = Path(__file__).parent
MARK = "PREFLIGHT_TEST_MARK"
BLANK = "0" * 32
MESSAGE = 2**17
"""Bytes; what does not fit one is not asked for."""
FOLDERS = {
    str(path) for path in (TESTS.parent, TESTS / "plugins", *(file.parent for file in TESTS.glob("*/sitecustomize.py")))
}
"""On PYTHONPATH. Their sitecustomize waits for a module of preflight, and changes nothing of torch's import."""
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
    """One process that forks, as the tests see it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._children: dict[int, Child] = {}
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        usual = {**env, "PYTHONPATH": str(TESTS.parent), MARK: BLANK}
        self._process = subprocess.Popen(
            command, env=usual, cwd=TESTS.parent, pass_fds=[theirs.fileno()], start_new_session=True
        )  # fmt: skip
        theirs.close()

    def fork(
        self, words: Sequence[str], env: Mapping[str, str], folder: Path, log: int, host: "Host | None", before: str
    ) -> Child:
        order = {
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

    def close(self) -> None:
        self.channel.close()
        self._process.wait()


_forkers: list[Forker] = []


def start(
    rank: int, words: Sequence[str], env: Mapping[str, str], usual: Mapping[str, str], folder: Path, log: int,
    host: "Host | None" = None, before: str = "",
) -> Child:  # fmt: skip
    """`python -m preflight` with these words. `env`: its own environment, which fits the `usual` one. `host`: of
    tests/hosts.py, where it runs. `before`: lines of a shell, done first (entering.prepare)."""
    if not _forkers:
        _forkers.extend(Forker(usual) for _ in range(2))
        for forker in _forkers:
            atexit.register(forker.close)
    return _forkers[rank % 2].fork(words, env, folder, log, host, before)


# In the process that forks


def _serve(channel: socket.socket) -> None:
    """Until the tests have gone."""
    place = _place_of_mark()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as preflight does: no thread may be left running
        import torch._dynamo
        import torch.distributed.fsdp  # noqa: F401 -- both are half of what a short training takes
    gc.freeze()
    gc.enable()
    awake, wakes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([channel.fileno(), awake], [], [])
        if channel.fileno() in ready:
            message, logs, _, _ = socket.recv_fds(channel, MESSAGE, 1)
            if not message:
                return
            pid = os.fork()
            if not pid:
                _become(json.loads(message), logs[0], place)
            os.close(logs[0])
            channel.send(json.dumps({"pid": pid}).encode())
        else:
            os.read(awake, 4096)
        _reap(channel)


def _reap(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            told = {"pid": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}
            channel.send(json.dumps(told).encode())


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
        with contextlib.suppress(ImportError):
            importlib.import_module("sitecustomize")
        runpy.run_module("preflight", run_name="__main__", alter_sys=True)
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


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
