"""`preflight.run()`: the plan of `python -m preflight`, from within a training script.

Each rank starts a separate process for it, as the launcher would, and waits for that: a supervisor forks, ends
orphans and ends itself, which no training process may do, and CUDA does not survive a fork. So it leaves nothing
in the training process: no process group, no thread, no variable, no child.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.engine import identity, local_launch
from preflight.engine.event_loop import DEAD_MAN_S
from preflight.engine.identity import CALL, PARENT, LaunchIdentity
from preflight.engine.shutdown import ALL_S, VERDICT_FD
from preflight.engine.store_seal import SECRET, new_secret
from preflight.errors import UsageError
from preflight.planning.plan import DEADLINES_S
from preflight.results.result import USAGE

END_S = 10.0
"""Time beyond the dead-man's switch; also for a supervisor that was told to end."""
GONE_S = ALL_S + 1.0
"""Time for rank 0's store to free the port, which the job's own store will take. (A rank so late that the job's store
is already there waits this long for nothing.)"""

_calls = itertools.count(1)


@dataclass(frozen=True)
class Verdict:
    """The result of a run; the same on all ranks except for the report."""

    verdict: str
    """pass, warn, fail or error."""
    exit_code: int
    """0 no failure, 1 a failure was found, 3 preflight could not finish its own work."""
    sentence: str
    """The verdict and its first reason."""
    report: dict[str, Any] | None
    """report.json; on rank 0 only."""


def run(
    *,
    level: str | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    plugins: Sequence[str] = (),
    config: str | None = None,
    strict: bool = False,
    deadline_s: float | None = None,
    backend: str | None = None,
    report: str | None = None,
    baseline: str | None = None,
    history: str | None = None,
    keep_days: int | None = None,
    textfile: str | None = None,
    post: str | None = None,
    post_token: str | None = None,
    syslog: bool = False,
    model: str | None = None,
    quiet: bool = False,
) -> Verdict:
    """Checks this job's machines. All ranks call it, with the same arguments, before or after
    `init_process_group`; the arguments are those of the command line (`report` is `--report DIR`, `keep_days`
    `--keep`, `baseline` a report or "auto", `post_token` a file), and `quiet` leaves the screen out.

    Raises UsageError if the arguments or the launcher's variables are wrong. It never ends the training process:
    that is the caller's decision.
    """
    words = {"--level": level, "--config": config, "--deadline": deadline_s, "--backend": backend, "--report": report}
    words |= {"--baseline": baseline, "--model": model, "--history": history, "--keep": keep_days}
    words |= {"--textfile": textfile, "--post": post, "--post-token": post_token}
    arguments = [word for name, value in words.items() if value is not None for word in (name, str(value))]
    for name, values in (("--only", only), ("--skip", skip)):
        arguments += [name, ",".join(values)] if values else []
    arguments += [word for plugin in plugins for word in ("--plugin", plugin)]
    arguments += [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
    arguments += ["--strict"] * strict + ["--syslog"] * syslog
    here, call = identity.from_environ(os.environ), str(next(_calls))
    longest_s = (deadline_s or max(DEADLINES_S.values())) + DEAD_MAN_S + END_S
    descriptor = os.memfd_create("preflight-verdict")
    try:
        environ = {**_environment(here, call), VERDICT_FD: str(descriptor)}
        code = _supervised(arguments, environ, descriptor, quiet, longest_s)
        found = _read(descriptor, code)
    finally:
        os.close(descriptor)
    _leave_the_port(here)
    return found


def _environment(here: LaunchIdentity, call: str) -> dict[str, str]:
    environ = {**os.environ, CALL: call, PARENT: str(os.getpid())}
    environ.pop("TORCHELASTIC_ERROR_FILE", None)  # the job's own: torchrun reads it
    if here.launcher == "local" or here.problems:
        environ |= _group() if _job_serves_its_store() else _alone(here)
    elif _job_serves_its_store():
        environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if "site-packages" not in home and "dist-packages" not in home:  # as this process found it, so must that one
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return environ


def _group() -> dict[str, str]:
    """Without a launcher's variables, or with some of them (Lightning's own launcher sets no RANK), the job's process
    group knows them."""
    from torch import distributed

    store = distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, distributed.TCPStore):  # type: ignore[attr-defined]  # not in __all__
        kind = type(store).__name__
        raise UsageError(
            f"preflight.run(): set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the job has a {kind} only"
        )
    return {
        "RANK": str(distributed.get_rank()), "WORLD_SIZE": str(distributed.get_world_size()),
        "MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def _alone(here: LaunchIdentity) -> dict[str, str]:
    """A job of one rank; nothing where the run is to tell what is wrong with the variables."""
    if here.launcher != "local":
        if here.environ.keys() >= {"WORLD_SIZE", "NODE_RANK", "LOCAL_RANK"} and "RANK" not in here.environ:
            who = "RANK is not set, as where Lightning's Trainer or Fabric has started this process itself"
            where = "in a callback's setup(), or after fabric.launch(); or start the script with torchrun"
            raise UsageError(f"preflight.run(): {who}: call it when the process group is there, {where}")
        return {}
    if multiprocessing.parent_process() is not None:
        who = "in a process of multiprocessing it does not know its rank"
        raise UsageError(f"preflight.run(): {who}: set RANK and WORLD_SIZE, or call it after init_process_group")
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(local_launch.free_port())}
    return {**place, SECRET: new_secret()}


def _job_serves_its_store() -> bool:
    """Whether the job's store has the port, as it does after init_process_group."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


def _supervised(arguments: list[str], environ: dict[str, str], descriptor: int, quiet: bool, longest_s: float) -> int:
    """Runs `python -m preflight run ARGUMENTS` and returns its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "preflight", "run", *arguments], env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else None, pass_fds=(descriptor,),
    )  # fmt: skip
    try:
        return process.wait(longest_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return -signal.SIGKILL
    except BaseException:  # Ctrl-C, or the job's own signal handler: its workers must not outlive it
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _read(descriptor: int, code: int) -> Verdict:
    text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    try:
        verdict: dict[str, Any] = json.loads(text)
    except ValueError:
        return Verdict("error", 3, f"preflight: ERROR: it ended without a verdict (exit status {code})", None)
    if verdict["exit_code"] == USAGE:
        raise UsageError(verdict["sentence"])
    word = verdict["sentence"].split()[1].rstrip(":").lower()
    return Verdict(word, verdict["exit_code"], verdict["sentence"], verdict["report"])


def _leave_the_port(here: LaunchIdentity) -> None:
    """Waits until preflight's store is gone. Without a launcher's store rank 0 served one, at the port where
    init_process_group will look for the job's; it ends when all ranks have said goodbye."""
    if here.launcher == "local" or here.agent_store or here.rank == 0 or _job_serves_its_store():
        return
    address = (here.master_addr, here.master_port or 0)
    with contextlib.suppress(OSError), socket.create_connection(address, GONE_S) as end:  # refused: it is gone
        end.recv(1)  # returns when it ends
