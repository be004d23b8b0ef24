"""What `preflight debug` injects into each Python rank of a job, by PYTHONPATH: the rank records its number and what it
raised, and can be asked for its stacks (a signal) and its flight recorder (a message).

A rank is a process that its launcher has numbered, or that has joined a process group (started by mp.spawn, by
Lightning, by a script that numbers its processes). This module imports nothing of preflight, runs on Python 3.8 and
newer, leaves no trace of other processes, and never breaks the job. It costs a few milliseconds at the start.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # typing's own would be an import
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

FOLDER = "PREFLIGHT_DEBUG"
MARK = "PREFLIGHT_DEBUG_RANK"
"""The rank's pid. Its children inherit RANK but are not ranks: a compiler, a spawned DataLoader worker."""
OURS = "preflight"
"""PYTHONFAULTHANDLER, if the user has not set it: the stack of a rank that a signal ends is kept beside its record."""
NOBODY = "0"
"""Instead of the pid, if the process may still become a rank."""
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
"""A launcher is not a rank, even if srun or an operator has numbered it."""
_C10D = "torch.distributed.distributed_c10d"
SOCKETS = "sockets"
"""The folder, of mode 0700, for the sockets at which ranks are asked for their flight recorder."""
APART_S = 1.0
"""Between two dumps of a flight recorder, which is some milliseconds of the rank's time."""
SIGNAL_BELOW_MAX = 7
"""SIGRTMAX - 7 asks for the stacks: a user's own handlers are for SIGUSR1, SIGUSR2 or the first real-time ones."""


class Rank:
    """This process. `folder` holds records/, stacks/ and recorded/; a file is HOST.PID.* there."""

    def __init__(self, folder: str, rank: int | None) -> None:
        """`rank`: None until it has joined a group."""
        self.folder = folder
        self.node = os.uname().nodename
        self.before: Any = sys.excepthook
        self.before_in_thread: Any = None
        self._be(rank)

    def _be(self, rank: int | None) -> None:
        """Also for a process forked from this one."""
        self.pid = os.getpid()
        self.record: dict[str, Any] = {"preflight_record": 1, "rank": rank, "node": self.node, "pid": self.pid}
        self.record["pid_namespace"] = os.readlink("/proc/self/ns/pid")  # a container counts its own

    def install(self) -> None:
        if self.record["rank"] is not None:
            self._begin(_number(("WORLD_SIZE",)))
            self.answer_with_stacks()
            self._watch_end()
        if _C10D in sys.modules:  # forked from a process that has imported it
            self._at_c10d()
            self._watch_init(sys.modules[_C10D])
        else:
            sys.meta_path.insert(0, self)

    def _begin(self, world_size: int | None) -> None:
        import time

        os.environ[MARK] = str(self.pid)
        more = {"local_rank": _number(LOCAL_RANKS), "world_size": world_size, "started": time.time()}
        self.record.update(more, restart=_number(("TORCHELASTIC_RESTART_COUNT",)), cwd=os.getcwd())
        self.write()
        if hasattr(sys.stdout, "reconfigure"):  # the output of a rank that dies is not lost
            sys.stdout.reconfigure(line_buffering=True)

    def _watch_end(self) -> None:
        import atexit

        self.before, sys.excepthook = sys.excepthook, self.on_exception
        atexit.register(self.on_exit)

    def path(self, folder: str, end: str) -> str:
        return os.path.join(self.folder, folder, "%s.%d.%s" % (self.node, self.pid, end))  # noqa: UP031 -- old Pythons

    def write(self) -> None:
        """Writes by rename: readers see the complete record or none."""
        import json

        path = self.path("records", "json")
        with open(path + ".tmp", "w") as file:
            json.dump(self.record, file)
        os.replace(path + ".tmp", path)

    def answer_with_stacks(self) -> None:
        import faulthandler
        import signal

        number = signal.SIGRTMAX - SIGNAL_BELOW_MAX
        if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
            self.stacks = open(self.path("stacks", "stack"), "a")  # noqa: SIM115 -- lives as long as the process
            faulthandler.unregister(number)  # registered by the parent process, with the parent's file
            try:  # faulthandler restores this when Python ends: a rank that is asked then must not be killed
                signal.signal(number, signal.SIG_IGN)
            except ValueError:  # torch is imported by another thread
                pass
            # Not all threads: to read the frames of threads that run has crashed a sound rank (beside Triton's).
            faulthandler.register(number, file=self.stacks, all_threads=False, chain=False)
            if os.environ.get("PYTHONFAULTHANDLER") == OURS:  # a user's own setting: the screen
                faulthandler.enable(file=self.stacks, all_threads=True)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        """Waits for the import of torch.distributed: before that there is nothing to record, and no thread."""
        if name != _C10D or self not in sys.meta_path:
            return None
        try:
            sys.meta_path.remove(self)
            self._at_c10d()
            return self._watched() if self.record["rank"] is None else None
        except Exception:
            return None  # the job goes first

    def _watched(self) -> Any:
        """The spec of the other finders; init_process_group is wrapped after the import."""
        import importlib.util

        spec: Any = importlib.util.find_spec(_C10D)
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self._watch_init(module)

        spec.loader.exec_module = exec_module
        return spec

    def _at_c10d(self) -> None:
        _size_recorder()
        if self.record["rank"] is None:
            os.environ[MARK] = NOBODY  # now: adding a name while native threads read the environment could crash them
            self.answer_with_stacks()  # also for DataLoader workers that it forks before it joins a group
            self._watch_end()
            self._watch_run()
        else:
            self._listen()

    def _watch_init(self, c10d: Any) -> None:
        """A process that joins a group is a rank from then on. No thread waits for it: Python 3.12 warns when a process
        with threads forks."""
        import functools

        original = getattr(c10d, "init_process_group", None)
        if original is None or self.record["rank"] is not None:
            return

        @functools.wraps(original)
        def init_process_group(*words: Any, **more: Any) -> Any:
            made = original(*words, **more)
            try:
                self._join(c10d)
            except Exception:  # noqa: S110 -- the job goes first
                pass
            return made

        for module in (c10d, sys.modules.get("torch.distributed")):
            if getattr(module, "init_process_group", None) is original:
                module.init_process_group = init_process_group  # type: ignore[union-attr]

    def _join(self, c10d: Any) -> None:
        """Called in a new rank, which may be a fork of the prepared process (by a notebook's launcher)."""
        if self.record["rank"] is not None or not c10d.is_initialized():
            return
        if os.getpid() != self.pid:
            self._be(None)
            self.answer_with_stacks()
        self.record["rank"] = c10d.get_rank()
        self._begin(c10d.get_world_size())
        self._listen()

    def _watch_run(self) -> None:
        """A process of multiprocessing does not call sys.excepthook; one of mp.spawn raises SystemExit instead."""
        from multiprocessing.process import BaseProcess

        original = BaseProcess.run

        def run(process: BaseProcess) -> None:
            try:
                original(process)
            except BaseException as error:
                about = error.__context__ if isinstance(error, SystemExit) and error.code else error
                if about is not None and not isinstance(about, SystemExit):
                    self.note(type(about), about, about.__traceback__)
                raise
            finally:
                self.on_exit()  # a forked one runs no atexit

        BaseProcess.run = run  # type: ignore[assignment, method-assign]

    def _listen(self) -> None:
        """Listens in a thread that sleeps in a system call. A forked worker has the socket, but not the thread."""
        import _socket
        import threading

        self.before_in_thread, threading.excepthook = threading.excepthook, self.on_exception_in_thread
        about = os.stat(os.path.join(self.folder, SOCKETS))
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            return  # others could ask, or take the name first
        server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        path = self.path(SOCKETS, "sock")
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        try:  # a socket's path has 107 characters at most
            if os.path.lexists(path):  # of an earlier process with this number
                os.unlink(path)
            server.bind("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))  # noqa: UP031
        finally:
            os.close(folder)
        server.listen(16)
        _thread.start_new_thread(self._serve, (server,))

    def _serve(self, server: Any) -> None:
        """Answers the user who runs this process, and root, at most once a second: a dump takes Python's lock."""
        import _socket
        import struct
        import time

        written = 0.0
        while True:
            try:
                peer = _socket.socket(fileno=server._accept()[0])
                uid = struct.unpack("3i", peer.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))[1]
                peer.close()
            except OSError:  # no descriptor is left
                time.sleep(APART_S)
                continue
            if uid in (0, os.geteuid()):
                time.sleep(max(0.0, written + APART_S - time.monotonic()))
                self.write_recorder()
                written = time.monotonic()

    def write_recorder(self) -> None:
        """Writes the flight recorders, if torch has a group. As JSON: the other format is a pickle."""
        try:
            groups: Any = getattr(sys.modules.get(_C10D), "_world", None)
            trace = _recorded() if groups and groups.pg_names else {}
            if not trace:
                return
            import json

            ranks = {name: sorted(groups.pg_group_ranks[group]) for group, name in groups.pg_names.items()}
            trace["pg_config"] = {name: {"name": name, "ranks": str(those)} for name, those in ranks.items()}
            trace.update(rank=self.record["rank"], node=self.node, pid=self.pid)
            path = self.path("recorded", "rank-%d.json" % self.record["rank"])  # noqa: UP031 -- as torch's own names end
            with open(path + ".tmp", "w") as file:
                json.dump(trace, file)
            os.replace(path + ".tmp", path)
        except Exception:  # noqa: S110 -- the format of torch's records may change
            pass

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.note(kind, error, trace)
        self.before(kind, error, trace)

    def on_exception_in_thread(self, about: Any) -> None:
        self.note(about.exc_type, about.exc_value, about.exc_traceback, thread=getattr(about.thread, "name", ""))
        self.before_in_thread(about)

    def note(self, kind: Any, error: Any, trace: Any, thread: str = "") -> None:
        """Records an exception at once; the first of the main thread stays, apart from one of another thread."""
        try:
            import time
            import traceback

            name = "thread_exception" if thread else "exception"
            if os.getpid() != self.pid or name in self.record or kind is None or self.record["rank"] is None:
                return
            now = time.time()
            text = "".join(traceback.format_exception(kind, error, trace, limit=-100))[-100000:]
            message = text.rstrip().rpartition("\n")[2] if error is None else _text(error)
            about = {"type": kind.__name__, "message": message[:20000], "traceback": text, "time": now}
            self.record[name] = dict(about, thread=thread) if thread else about
            self.write()
            self.write_recorder()
        except Exception:  # noqa: S110
            pass

    def on_exit(self) -> None:
        """The interpreter exits normally, not by a signal or os._exit."""
        try:
            import time

            if os.getpid() != self.pid or self.record["rank"] is None:
                return
            if getattr(sys, "last_type", None) is not None:  # another excepthook did not call ours
                self.note(sys.last_type, sys.last_value, sys.last_traceback)
            self.record["ended"] = time.time()
            self.write()
        except Exception:  # noqa: S110
            pass


def _recorded() -> dict[str, Any]:
    """Of both recorders, of which a group uses one: NCCL's, and that of gloo and the rest."""
    import json

    c10d = sys.modules.get("torch._C._distributed_c10d")
    dumps = [getattr(c10d, name, None) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json")]
    traces = [json.loads(dump(True, False)) for dump in dumps if dump]
    found = {name: value for trace in reversed(traces) for name, value in trace.items()}
    return found and dict(found, entries=[entry for trace in traces for entry in trace.get("entries", ())])


def _size_recorder() -> None:
    """Sets the size unless the user has. A newer torch warns about the older name. 512 entries take 0.1 ms each."""
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    if not any(name in os.environ for name in names):
        is_new = hasattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json")
        os.environ[names[0] if is_new else names[1]] = "512"


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be made)"


def _number(names: tuple[str, ...]) -> int | None:
    texts = [os.environ[name].strip() for name in names if name in os.environ]
    return int(texts[0]) if texts and texts[0].isdigit() else None


def _words() -> list[str]:
    """The command line: sys.argv does not exist yet."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read(100000).decode(errors="replace").split("\0")[:-1]


def _program(words: list[str]) -> str:
    """The script or module that Python runs, without its folder. Its arguments do not count: --strategy deepspeed."""
    for before, word in zip(words, words[1:]):  # noqa: B905, RUF007 -- old Pythons
        if not word.startswith("-") and before not in ("-W", "-X"):
            return word.rpartition("/")[2]
    return ""


def install() -> Rank | None:
    """If this process is a rank, or may become one; otherwise returns None."""
    folder, words = os.environ.get(FOLDER), _words()
    if not folder or _program(words) in LAUNCHERS:
        return None
    made = Rank(folder, _number(RANKS))
    if os.environ.get(MARK, NOBODY) in (NOBODY, str(made.pid)):
        made.install()
        return made
    if "--multiprocessing-fork" in words:  # a spawned DataLoader worker, which may hang
        made.answer_with_stacks()
    return None
