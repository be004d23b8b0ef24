"""Signals that end a process, and what they mean for a training job."""

from typing import NamedTuple


class Signal(NamedTuple):
    """What a signal that ended a process means."""

    name: str
    slug: str
    """The slug of the cause."""
    meaning: str
    decides: bool = True
    """The signal alone names the cause. SIGABRT does not: its reason is in the output. Nor do signals that a launcher
    sends to survivors."""


SIGNALS = {
    -1: Signal("SIGHUP", "external_signal", "its terminal or session was closed", decides=False),
    -2: Signal("SIGINT", "external_signal", "it was interrupted from outside", decides=False),
    -4: Signal("SIGILL", "app_crash", "an instruction that this processor does not have"),
    -6: Signal("SIGABRT", "app_crash", "native code aborted; the reason is in its output", decides=False),
    -7: Signal("SIGBUS", "shm_exhausted", "as happens when /dev/shm is full and its memory is touched"),
    -8: Signal("SIGFPE", "app_crash", "a division by zero in native code"),
    -9: Signal("SIGKILL", "host_oom_kill", "sent by the kernel when the host runs out of memory, or by an operator"),
    -11: Signal("SIGSEGV", "app_crash", "a segmentation fault in native code"),
    -15: Signal("SIGTERM", "external_signal", "it was terminated from outside", decides=False),
}
"""By exit code, as torchrun and Python write it."""
DECISIVE = frozenset(code for code, signal in SIGNALS.items() if signal.decides)
