"""`python -m preflight` and the command `preflight`."""

import os
import sys

INTERRUPTED, UNFINISHED = 130, 3
"""Exit codes after Ctrl-C: a shell's, where the command speaks for a job; and ours."""


def command() -> None:
    open_missing_descriptors()
    try:
        from preflight.cli.main import main

        main(sys.argv[1:])
    except KeyboardInterrupt:
        end_interrupted(sys.argv[1:2] in (["debug"], ["explain"]))


def end_interrupted(for_a_job: bool = False) -> None:
    """Ctrl-C before anything was begun that would have to be ended; a second one changes nothing."""
    import select
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if select.select([], [2], [], 0)[1]:  # no pipe that is full
        os.write(2, b"preflight: interrupted\n")
    os._exit(INTERRUPTED if for_a_job else UNFINISHED)


def open_missing_descriptors() -> None:
    """A launcher may have closed stdin, stdout or stderr: the first file or socket opened would take its place."""
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w"))  # noqa: SIM115


def forget_current_folder() -> None:
    """Takes the current folder off sys.path: a rich.py or checks/ of the user must never be run by us.

    `python -m` puts it first. It goes last when preflight itself is imported from it (a checkout).
    """
    import preflight

    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing can be imported from it
        return
    kept = [entry for entry in sys.path if os.path.abspath(entry or here) != here]
    holds_us = os.path.dirname(os.path.abspath(preflight.__path__[0])) == here
    sys.path[:] = [*kept, here] if holds_us else kept


if __name__ == "__main__":
    forget_current_folder()
    command()
