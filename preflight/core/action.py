"""What an operator does about a finding: a word for hooks, tickets and controllers to route on."""

from enum import StrEnum


class Action(StrEnum):
    """From the mildest to the gravest. docs/actions.md has them beside the words of DCGM, NVSentinel and clouds."""

    NONE = "none"
    """Nothing, or nothing that a machine could do: a person reads the fix first."""
    FIX_CONFIG = "fix_config"
    """Change a setting, a file, software or code, or end what is left of an earlier job. No part is suspected."""
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
    "out_of_step": Action.FIX_CONFIG,
    "rendezvous": Action.FIX_CONFIG,
    "launch": Action.FIX_CONFIG,
    "backend": Action.FIX_CONFIG,
    "torch": Action.FIX_CONFIG,
}
"""Of the engine's own codes, under a check or preflight.run; of all others none: nothing was measured."""


def engine_action(severity: str, code: str) -> Action:
    """Of a finding of the engine. An error says nothing of the machine, so that there is nothing to do to it."""
    return OF_THE_ENGINE.get(code.rpartition(".")[2], Action.NONE) if severity in ("fail", "warn") else Action.NONE
