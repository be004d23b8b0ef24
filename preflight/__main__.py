"""`python -m preflight` and the command `preflight`."""

import os
import sys
from typing import NoReturn

INTERRUPTED, UNFINISHED = 130, 3
"""Exit codes after Ctrl-C: the shell's, for commands about a job; and preflight's own."""


def command() -> None:
    open_missing_descriptors()
    try:
        from preflight.sdk import watch

        name = "".join(sys.argv[1:2])
        if name in watch.WATCHED:
            watch.run(_command, name, sys.argv[2:])
        _command()
    except KeyboardInterrupt:
        _interrupted()


def _command() -> NoReturn:
    try:
        from preflight.cli.main import main

        main(sys.argv[1:])
    except KeyboardInterrupt:
        _interrupted()


def _interrupted() -> NoReturn:
    end_interrupted(sys.argv[1:2] in (["debug"], ["explain"]))


def end_interrupted(for_a_job: bool = False) -> NoReturn:
    """Exits on Ctrl-C while nothing has started that needs cleaning up; a second Ctrl-C changes nothing."""
    import select
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if select.select([], [2], [], 0)[1]:  # not a full pipe
        os.write(2, b"preflight: interrupted\n")
    os._exit(INTERRUPTED if for_a_job else UNFINISHED)


def open_missing_descriptors() -> None:
    """Opens stdin, stdout and stderr where a launcher closed them: else the next file or socket takes the number."""
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w"))  # noqa: SIM115


def forget_current_folder() -> None:
    """Takes the current folder off sys.path: preflight must never run the user's own rich.py or checks/.

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
