"""The door to the paths that a user names: a command about saved files runs in a child, and this process watches it.

A file system that does not answer leaves its caller in the kernel, where no time limit of the caller's own applies. So
no call of such a command needs one: whatever it reads or writes, the watcher sees that it has waited for one file for
ANSWER_S, names it, and ends. Commands that start processes ask for each path by `preflight.sdk.paths`.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from preflight.sdk import prctl, relay, system_call
from preflight.sdk.relay import Relay
from preflight.sdk.system_call import FileWait, not_answered

WATCHED = (
    "checkpoint", "explain", "diff", "history", "profile", "hook", "nodes", "list", "describe", "show", "completion",
)  # fmt: skip
"""The commands that run so. The others start processes, and are those that a launcher, a terminal or Slurm knows."""
ANSWER_S = 20.0
"""No call has taken so long on a file system that answers: a server of NFS that fails over takes about 15 s
(nfsd's lease and grace times are for opens; reads go on)."""
LOOK_S, END_S = 0.25, 2.0
"""Between two looks at the child; and how long it may take to end after a signal."""
UNFINISHED = 3
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Callable[[], NoReturn], name: str, given: list[str]) -> NoReturn:
    """Runs `command`, which exits, in a child; exits as that does, or with 3 and a sentence if it waits for a file for
    longer than ANSWER_S. `given`: the command's arguments, for where the kernel does not tell the file."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by a parent, it would hide how the child ends
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *PASSED})
    parent, relays = os.getpid(), relay.pipes()
    try:
        pid = os.fork()
    except OSError:  # no process can be started: an answer without a watcher is better than none
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        command()
    if pid == 0:
        if not prctl.end_with_parent(parent, signal.SIGKILL):
            os._exit(UNFINISHED)
        for pipe in relays:
            pipe.take()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        command()
    try:
        for pipe in relays:
            pipe.start()
    except RuntimeError:
        _give_up(pid, "preflight: no thread can be started (ulimit -u, pids.max), so there is no answer\n")
    _watch(pid, relays, name, given)


def _watch(pid: int, relays: list[Relay], name: str, given: list[str]) -> NoReturn:
    wait: FileWait | None = None
    since, end = time.monotonic(), float("inf")
    while True:
        came = signal.sigtimedwait({signal.SIGCHLD, *PASSED}, LOOK_S)
        _end_as(pid, relays)
        now = time.monotonic()
        if came is not None and came.si_signo in PASSED:
            if came.si_code <= 0:  # sent to this process alone: a terminal sends its own to the child, too
                os.kill(pid, came.si_signo)
            end = min(end, now + END_S)
        if now > end:
            _give_up(pid, "")
        seen = system_call.wait_of(pid)
        if seen is None or seen != wait:
            wait, since = seen, now
        elif now - since > ANSWER_S:
            _give_up(pid, f"preflight: {name}: {not_answered(seen.path or ' '.join(given), now - since, seen.call)}\n")


def _end_as(pid: int, relays: list[Relay]) -> None:
    """Exits as the child has, if it has."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)  # a reader that does not read holds this up
    for pipe in relays:
        pipe.finish()
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    if -code in PASSED:  # the shell is told by which signal
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    _say(f"preflight: its process was ended by {how} (dmesg tells if memory ran out), so there is no answer\n")
    os._exit(UNFINISHED)


def _give_up(pid: int, sentence: str) -> NoReturn:
    """Leaves the child behind if it cannot be killed."""
    _say(sentence)
    os.kill(pid, signal.SIGKILL)
    os._exit(UNFINISHED)


def _say(sentence: str) -> None:
    import select

    if sentence and sys.stderr is not None and select.select([], [2], [], 0)[1]:  # not a full pipe
        os.write(2, sentence.encode(errors="replace"))
