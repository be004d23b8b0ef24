"""GPUs that do not answer, or answer with errors: reported by the check that encountered it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Action, Code, Finding, Run, words
from preflight.checks.gpu.shared.nvml_survey import CUDA, PERMISSION, UNKNOWN, GpuTrouble

NO_ANSWER = Code(
    "A GPU, or the driver, does not answer.",
    fix="On {node}: dmesg | grep -i -e nvrm -e xid. Reset the GPU (nvidia-smi -r -i {gpu}) or reboot; if that does not "
    "help, drain the node.",
    action=Action.REBOOT,
    see=("node.kernel",),
)
"""A code of each check that queries NVML (its `PARTS` has this module)."""
_SAID = {
    "lost": "is lost (fallen off the bus)",
    "reset": "needs a reset",
    "hangs": "hangs",
    "died": "ended the process that asked",
    "permission": "may not be read",
    "error": "answers with an error",
}
SHOWN = 3
"""How many calls a sentence names."""


def findings(check: str, facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """What did not answer in this check, once per node; unclear cases are a skip (nvml_survey.complete)."""
    named: set[tuple[Any, ...]] = set()
    for rank, measured in facts.items():
        for trouble in measured["look"]["troubles"]:
            # A rank that does not see all GPUs has its own numbers.
            whose = (rank, trouble["gpu"]) if trouble["hidden"] else trouble["gpu"]
            key = run.job.node_of(rank).node, trouble["uuid"] or trouble["bus"] or whose
            if trouble["met_in"] == check and trouble["kind"] != UNKNOWN and key not in named:
                named.add(key)
                yield _unanswered(trouble, rank, run)
    yield from _odd_answers(facts, run)


def _unanswered(trouble: GpuTrouble, rank: int, run: Run) -> Finding:
    node, gpu, what = run.job.node_of(rank).node, trouble["gpu"], f"{trouble['call']}: {trouble['text']}"
    if trouble["kind"] == CUDA:
        fix = "On {node}: dmesg | grep -i xid. Reset the GPU that it names, or reboot; else drain the node."
        text = f"CUDA does not start: {what}, expected a number of GPUs"
        return NO_ANSWER.fail(text, node=node, fix=fix, action=Action.RESET_GPU)
    if gpu is None:
        fix = "On {node}: nvidia-smi; lsmod | grep nvidia; dmesg | grep -i nvrm. After a driver update: reboot."
        return NO_ANSWER.fail(f"the driver does not work: {what}, expected NVML to start", node=node, fix=fix)
    bus = f" at {trouble['bus']}" if trouble["bus"] else ""
    text = f"GPU {gpu}{bus} {_SAID[trouble['kind']]}: {what}, expected an answer"
    where = {"node": node, "gpu": gpu, "uuid": trouble["uuid"], "serial": trouble["serial"]}
    if trouble["hidden"] and not trouble["uuid"]:
        where["rank"] = rank
    evidence = {"bus": trouble["bus"], "seconds": trouble["seconds"], "call": trouble["call"]}
    say = NO_ANSWER.info if trouble["kind"] == PERMISSION else NO_ANSWER.fail  # a cgroup gave it to another job
    return say(text, evidence=evidence, **where)


def _odd_answers(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """Errors that a driver returns for a minority of GPUs; for most GPUs they are normal for that driver."""
    looks = [(rank, measured["look"]) for rank, measured in facts.items()]
    total = sum(len(look["gpus"]) for _, look in looks)
    common = Counter(note for _, look in looks for notes in look["notes"].values() for note in set(notes))
    named: set[tuple[str, str]] = set()
    for rank, look in looks:
        node = run.job.node_of(rank).node
        for uuid, notes in look["notes"].items():
            odd = [note for note in notes if 2 * common[note] <= total or total == 1]
            if odd and (node, uuid) not in named:
                named.add((node, uuid))
                text = f"GPU {look['numbers'][uuid]} answers with errors: {words.clauses(odd, SHOWN)}"
                where = {"node": node, "gpu": look["numbers"][uuid], "uuid": uuid}
                text += "; expected values, as from its siblings"
                yield NO_ANSWER.warn(text, evidence={"errors": odd}, **where)
