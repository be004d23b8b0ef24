"""`preflight run` without a launcher: starts ranks on this machine, through torch's launcher."""

import contextlib
import os
import re
import signal
import socket
import sys

from preflight.engine.identity import OWN
from preflight.engine.store_seal import SECRET, new_secret
from preflight.results.destinations import Output

CPU_RANKS = 2
BELOW_EPHEMERAL = range(10_000, 29_000)
TRIES = 20
LAUNCHER_S = 60.0
"""Time for the launcher itself in addition to its ranks' deadline; after that the kernel ends it."""


def ranks_here() -> int:
    """One rank per GPU that this process may use, by the device files (no driver call that could hang);
    2 on a CPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev")):
        return len([word for word in visible.split(",") if word.strip()]) or CPU_RANKS
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev")) or CPU_RANKS


def free_port() -> int:
    """A port that was free on 127.0.0.1 a moment ago. Below Linux's ephemeral ports if possible: the kernel may give
    one of those to another process before it is used, and ranks import torch first."""
    for _ in range(TRIES):
        port = BELOW_EPHEMERAL[
            int.from_bytes(os.urandom(4)) % len(BELOW_EPHEMERAL)
        ]  # the user's own `random` stays as it is
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def loopback_works() -> bool:
    """Whether 127.0.0.1 works, over which the ranks meet; if it is down (a bare network namespace), the launcher would
    wait for 15 minutes."""
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError:
        return False
    return True


def _import_torch(deadline_s: float) -> int:
    """Returns 0, or the exit code after a sentence. The launcher then has its signals as it had them."""
    from preflight.engine.event_loop import EventLoop, Interrupted
    from preflight.engine.process_group import TorchBroken
    from preflight.engine.torch_import import TorchUnread, import_watched

    handled = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    loop, complain = EventLoop(deadline_s), Output().complain
    signal.setitimer(signal.ITIMER_REAL, deadline_s + LAUNCHER_S)
    try:
        import_watched(loop, complain)
    except TorchUnread as why:
        complain(f"{'ERROR' if why.is_slow else 'FAIL'}: {why}: no rank was started")
        return 3 if why.is_slow else 1
    except TorchBroken as why:
        complain(f"FAIL: {why}, expected it to work: no rank was started")
        return 1
    except Interrupted as why:
        complain(f"it {why}: no rank was started")
        return 3
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handled.items():
            signal.signal(number, handler)
    return 0


def launch(arguments: list[str], deadline_s: float) -> int:
    """Starts `python -m preflight ARGUMENTS` on every rank and returns the exit code they ended with."""
    if not loopback_works():
        sys.stderr.write(
            "preflight: 127.0.0.1 cannot be reached on this machine (ip link set lo up): no rank was started\n"
        )
        return 3
    if code := _import_torch(deadline_s):
        return code
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from preflight.engine import loopback_rendezvous

    # The ranks report what happened; the launcher's messages would only bury that.
    logging.disable(logging.CRITICAL)
    # As torchrun does, with a warning: several ranks share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[OWN] = "1"
    os.environ[SECRET] = new_secret()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks_here(),
        run_id=os.urandom(16).hex(),
        rdzv_backend=loopback_rendezvous.register(),
        local_addr=loopback_rendezvous.ADDRESS,
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "preflight", *arguments)
    except ChildFailedError as failed:
        codes = [failure.exitcode for failure in failed.failures.values()]
        return max((code for code in codes if code > 0), default=3)
    except SignalException:
        return 3
    return 0
