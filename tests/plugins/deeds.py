"""Real misdeeds, done by a plugin check at an exact moment of a real run."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOREVER = 1000


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def supervisor() -> int:
    return os.getppid()


def launcher() -> int:
    return parent_of(supervisor())


def store() -> int:
    """The process that serves the store: named by the test, or torchrun's agent."""
    return int(os.environ.get("TEST_STORE_PID") or launcher())


def do(deed: str) -> Any:
    """Does it; returns the facts, where it comes back at all."""
    action = _DEEDS.get(deed)
    if action is None:
        raise LookupError(f"no such deed: {deed}")
    facts = action()
    return {"fine": True} if facts is None else facts


def _raise() -> None:
    raise ValueError("on purpose")


def _flood() -> None:
    for _ in range(200):
        print("x" * 100_000)


def _family() -> None:
    """Threads, a child, and a child in a session of its own."""
    threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True).start()
    subprocess.Popen(["sleep", str(FOREVER)])
    subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)


def _shared_memory() -> None:
    """As a DataLoader worker leaves it when it is killed together with torch's shared-memory manager."""
    with open(f"/dev/shm/torch_{os.getpid()}_1_0", "wb") as file:
        file.write(bytes(4096))
    os.kill(os.getpid(), signal.SIGKILL)


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER)


def _kill(who: Any, number: int) -> Any:
    def deed() -> None:
        os.kill(who(), number)
        time.sleep(FOREVER)

    return deed


def _interrupt_twice() -> None:
    os.kill(supervisor(), signal.SIGINT)
    time.sleep(1.5)  # what lies closer together is one Ctrl-C
    os.kill(supervisor(), signal.SIGINT)
    time.sleep(FOREVER)


def _freeze_then_return() -> None:
    os.kill(store(), signal.SIGSTOP)


def _channel_nonsense() -> Any:
    """Writes well-formed nonsense into every socket it holds."""
    message = b'{"kind": "banana", "seconds": "none", "step": []}'
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), len(message).to_bytes(4, "big") + message)


def _abort() -> None:
    os.abort()


def _slow_text() -> None:
    """What a careless pattern would take minutes over."""
    print("a." * 40_000)
    raise ValueError("on purpose")


def _stop_supervisor_for(seconds: float) -> Any:
    """Stops it, and a process of its own resumes it."""

    def deed() -> None:
        pid = supervisor()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # the pause itself is the fault
        os.kill(pid, signal.SIGCONT)

    return deed


def _interrupt_group() -> None:
    os.killpg(os.getpgid(launcher()), signal.SIGINT)
    time.sleep(FOREVER)


def _cut_link() -> None:
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    time.sleep(FOREVER)


def _wait_for_file() -> None:
    """Says that it has begun by a file, and waits for another one."""
    Path(os.environ["TEST_BEGUN"]).touch()
    while not os.path.exists(os.environ["TEST_AWAITED"]):
        time.sleep(0.01)  # nobody tells of a file


_DEEDS: dict[str, Any] = {
    "": lambda: None,
    "raise": _raise,
    "sys_exit": lambda: sys.exit(3),
    "hang_python": lambda: time.sleep(FOREVER),
    "hang_gil": lambda: ctypes.PyDLL(None).sleep(FOREVER),
    "hang_subprocess": lambda: subprocess.run(["sleep", str(FOREVER)], check=False) and None,
    "ignore_sigterm": _deaf,
    "stop_itself": _kill(os.getpid, signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "exit_7": lambda: os._exit(7),
    "kill_itself": _kill(os.getpid, signal.SIGKILL),
    "flood": _flood,
    "nan": lambda: {"value": [1.0, float("nan")]},
    "object": lambda: {"value": object()},
    "no_dict": lambda: [1],
    "too_large": lambda: {"value": "x" * 5_000_000},
    "family": _family,
    "shared_memory": _shared_memory,
    "kill_supervisor": _kill(supervisor, signal.SIGKILL),
    "stop_supervisor": _kill(supervisor, signal.SIGSTOP),
    "term_supervisor": _kill(supervisor, signal.SIGTERM),
    "interrupt_supervisor": _kill(supervisor, signal.SIGINT),
    "interrupt_supervisor_twice": _interrupt_twice,
    "kill_launcher": _kill(launcher, signal.SIGKILL),
    "freeze_store": _freeze_then_return,
    "cut_link": _cut_link,
    "channel_nonsense": _channel_nonsense,
    "abort": _abort,
    "slow_text": _slow_text,
    "stop_supervisor_5s": _stop_supervisor_for(5.0),
    "stop_supervisor_20s": _stop_supervisor_for(20.0),
    "hang_up_supervisor": lambda: os.kill(supervisor(), signal.SIGHUP),
    "interrupt_group": _interrupt_group,
    "wait_for_file": _wait_for_file,
    "pause": lambda: time.sleep(2.5),  # long enough for rank 0 to look for the dead
    "kill_store": lambda: os.kill(store(), signal.SIGKILL),
}
