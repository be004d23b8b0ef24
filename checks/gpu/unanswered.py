"""GPUs that do not answer, or answer some questions with an error: told by the check in which it was met."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Finding, Run
from preflight.checks.gpu.asking import UNKNOWN
from preflight.checks.gpu.probing import CUDA, PERMISSION, Trouble

NO_ANSWER_MEANING = "A GPU, or the driver, does not answer."
NO_ANSWER_FIX = (
    "On {node}: dmesg | grep -i -e nvrm -e xid. Reset the GPU (nvidia-smi -r -i {gpu}) or reboot; if that does not "
    "help, drain the node."
)
_SAID = {
    "lost": "is lost (fallen off the bus)",
    "reset": "needs a reset",
    "hangs": "hangs",
    "died": "ended the process that asked",
    "permission": "may not be read",
    "error": "answers with an error",
}
SHOWN = 3
"""Calls that a sentence names."""


def unanswered(code: Code, check: str, facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """What did not answer in this check, each once a node; what nobody can tell of is a skip (probing.complete)."""
    told: set[tuple[Any, ...]] = set()
    for rank, one in facts.items():
        for trouble in one["look"]["troubles"]:
            # A number of a rank that does not see all GPUs is its own.
            whose = (rank, trouble["gpu"]) if trouble["hidden"] else trouble["gpu"]
            key = run.job.node_of(rank).node, trouble["uuid"] or trouble["bus"] or whose
            if trouble["met_in"] == check and trouble["kind"] != UNKNOWN and key not in told:
                told.add(key)
                yield _unanswered(code, trouble, rank, run)
    yield from _odd_answers(code, facts, run)


def _unanswered(code: Code, trouble: Trouble, rank: int, run: Run) -> Finding:
    node, gpu, what = run.job.node_of(rank).node, trouble["gpu"], f"{trouble['call']}: {trouble['text']}"
    if trouble["kind"] == CUDA:
        fix = "On {node}: dmesg | grep -i xid. Reset the GPU that it names, or reboot; else drain the node."
        return code.fail(f"CUDA does not start: {what}, expected a number of GPUs", node=node, fix=fix)
    if gpu is None:
        fix = "On {node}: nvidia-smi; lsmod | grep nvidia; dmesg | grep -i nvrm. After an update of the driver: reboot."
        return code.fail(f"the driver does not work: {what}, expected NVML to start", node=node, fix=fix)
    bus = f" at {trouble['bus']}" if trouble["bus"] else ""
    text = f"GPU {gpu}{bus} {_SAID[trouble['kind']]}: {what}, expected an answer"
    where = {"node": node, "gpu": gpu, "uuid": trouble["uuid"], "serial": trouble["serial"]}
    if trouble["hidden"] and not trouble["uuid"]:
        where["rank"] = rank
    evidence = {"bus": trouble["bus"], "seconds": trouble["seconds"], "call": trouble["call"]}
    say = code.info if trouble["kind"] == PERMISSION else code.fail  # a cgroup has given it to another job
    return say(text, evidence=evidence, **where)


def _odd_answers(code: Code, facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """Errors that a driver gives for most GPUs are its way."""
    looks = [(rank, one["look"]) for rank, one in facts.items()]
    total = sum(len(look["gpus"]) for _, look in looks)
    common = Counter(note for _, look in looks for notes in look["notes"].values() for note in set(notes))
    told: set[tuple[str, str]] = set()
    for rank, look in looks:
        node = run.job.node_of(rank).node
        for uuid, notes in look["notes"].items():
            odd = [note for note in notes if 2 * common[note] <= total or total == 1]
            if odd and (node, uuid) not in told:
                told.add((node, uuid))
                more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
                text = f"GPU {look['numbers'][uuid]} answers with errors: {'; '.join(odd[:SHOWN])}{more}"
                where = {"node": node, "gpu": look["numbers"][uuid], "uuid": uuid}
                yield code.warn(f"{text}; expected values, as its siblings give", evidence={"errors": odd}, **where)
