"""What an operator does about a finding: one word that hooks, tickets and controllers can route on."""

from enum import StrEnum


class Action(StrEnum):
    """From the mildest to the most drastic. docs/actions.md maps them to the terms of DCGM, NVSentinel and clouds."""

    NONE = "none"
    """Nothing, or nothing that can be automated: a person reads the fix first."""
    FIX_CONFIG = "fix_config"
    """Change a setting, a file, software or code, or end what is left of an earlier job. No hardware is suspected."""
    RESTART_JOB = "restart_job"
    """Start the job again, without the nodes that the finding names."""
    RESET_GPU = "reset_gpu"
    """Once nothing runs on it, reset the GPU that the finding names (or all of the node)."""
    REBOOT = "reboot"
    """Drain the node and reboot it; power it off and on where the fix says so."""
    REPLACE = "replace"
    """Take the node out of service: have the part that the finding names tested, reseated, repaired or replaced."""


TO_A_NODE = (Action.RESET_GPU, Action.REBOOT, Action.REPLACE)
OF_THE_ENGINE = {
    "crashed": Action.RESTART_JOB,
    "timed_out": Action.RESTART_JOB,
    "lost": Action.RESTART_JOB,
    "raised": Action.RESTART_JOB,
    "desync": Action.FIX_CONFIG,
    "no_process": Action.FIX_CONFIG,
    "rendezvous": Action.FIX_CONFIG,
    "foreign_writer": Action.FIX_CONFIG,
    "launch": Action.FIX_CONFIG,
    "backend": Action.FIX_CONFIG,
    "torch": Action.FIX_CONFIG,
}
"""Actions of the engine's own codes, under a check or preflight.run. The others have none: nothing was measured."""


def engine_action(severity: str, code: str) -> Action:
    """The action of one of the engine's findings. An error says nothing about the machine, so its action is none."""
    return OF_THE_ENGINE.get(code.rpartition(".")[2], Action.NONE) if severity in ("fail", "warn") else Action.NONE
