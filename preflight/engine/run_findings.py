"""Findings that belong to no check: ranks that never came or were lost, the store, interruptions, bugs in preflight."""

import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges
from preflight.core.action import engine_action
from preflight.core.exceptions import ENGINE, in_one_line, place_of
from preflight.core.finding import RUN, RUN_SLUGS, Reported
from preflight.core.job import Job, Node
from preflight.engine import job_owner
from preflight.engine.child import LimitReached
from preflight.engine.endpoint import Astray, is_everywhere
from preflight.engine.identity import LaunchIdentity
from preflight.engine.job_owner import PortInUse
from preflight.engine.participant import NoCoordinator, Participant
from preflight.engine.process_group import TorchBroken
from preflight.engine.same_rank import holder_of, others_here, owner_of
from preflight.engine.store import TAKEN, shared_port
from preflight.engine.store_client import StoreLost
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.store_seal import SECRET
from preflight.engine.torch_import import TorchUnread
from preflight.hangs.blame import FIXES
from preflight.results.result import Result

NAMED_ONE_BY_ONE = 16
STILL_S = 8.0
"""After a gap this long between two turns of its loop a supervisor cannot judge others: they may have given up."""


def run_result(findings: list[Reported]) -> Result:
    """The result that holds them in the report."""
    return Result(RUN, "The run itself: its ranks, its store, its end.", findings=findings)


def run_finding(severity: str, slug: str, message: str, fix: str, where: Mapping[str, Any] | None = None) -> Reported:
    assert slug in RUN_SLUGS
    return Reported(
        severity=severity,
        code=f"{RUN}.{slug}",
        message=message,
        where=dict(where or {}),
        fix=fix,
        action=engine_action(severity, slug),
    )


def never_came(
    job: Job, waited_s: float, strangers: Iterable[Mapping[str, Any]] = (), master_addr: str = ""
) -> list[Reported]:
    """Findings for ranks that never joined: one each, or one for all of many. `strangers`: who came instead."""
    came_on = rank_ranges.count(len(job.nodes), "node")
    came = f"{job.world_size - len(job.missing)} of {job.world_size} ranks, on {came_on}, did"
    text = f"never arrived at the store within {waited_s:.0f} s; {came}"
    twice = [stranger for stranger in strangers if stranger["why"] == "duplicate"]
    for stranger in twice[:1]:  # there may be no time left for env.launch, which names all
        text += f"; process {stranger['pid']} on {stranger['node']} calls itself rank {stranger['rank']}, too"
    fix = "Was it started? Can its node reach MASTER_ADDR:MASTER_PORT? See its own output: does it still import torch?"
    if is_everywhere(master_addr):
        fix += f" MASTER_ADDR is {master_addr}: it leads to rank 0 only from rank 0's own node."
    if len(job.missing) <= NAMED_ONE_BY_ONE:
        return [run_finding("fail", "lost", text, fix, job.where(rank)) for rank in job.missing]
    nodes = [node for node, _ in job.missing_on]
    return [replace(run_finding("fail", "lost", text, fix), ranks=rank_ranges.to_text(job.missing), nodes=nodes)]


def gone(rank: int, job: Job, why: str) -> Reported:
    """The finding for a rank that was lost between checks, or whose loss ended the run."""
    return run_finding("fail", "lost", why, FIXES["lost"], job.where(rank))


def no_time(checks: Sequence[str], deadline_s: float) -> Reported:
    """The finding for checks that were left out: what was not measured has not passed."""
    text = f"no time was left for {', '.join(checks)} within the run's deadline of {deadline_s:.0f} s"
    return run_finding("error", "deadline", text, "Give the run more time (--deadline), or fewer checks (--only).")


def stalled(rank: int | None, job: Job, how: str) -> Reported:
    """The finding for a supervisor that stood still: the ranks that gave up on it are not to blame."""
    where = job.where(rank) if rank is not None else {}
    fix = "Was it stopped (SIGSTOP, a suspended job), or is its node starved of CPU? Check its load."
    return run_finding("error", "stalled", how, fix, where)


def store_lost(why: StoreLost, launch: LaunchIdentity) -> Reported:
    """Usually this rank cannot tell which side is at fault. Exceptions are a name that does not resolve and a port that
    is taken: with these the job cannot start either."""
    where = {"node": launch.node_name}
    if "does not resolve" in str(why):
        fix = f"On that node: getent ahosts {launch.master_addr}; correct it, or add the name to DNS or /etc/hosts."
        return run_finding(
            "fail", "rendezvous", f"{why}, expected an address", fix, {**where, "variable": "MASTER_ADDR"}
        )
    if TAKEN in str(why):
        theirs = holder_of(launch.master_port or 0)
        if theirs and launch.owner and job_owner.is_other_job(launch.owner, theirs):
            return port_in_use(shared_port(launch, theirs))
        fix = f"Find the process: ss -ltnp 'sport = :{launch.master_port}'; end it, or set a different MASTER_PORT."
        text = f"port {launch.master_port}, where rank 0 serves the store, is taken by another process, expected free"
        return run_finding("fail", "rendezvous", text, fix, {**where, "variable": "MASTER_PORT"})
    if "refused" in str(why) and not launch.agent_store:  # the way there is open
        fix = (
            "Was rank 0 started? See its output: it serves the store once it has imported torch, which takes long on a "
        )
        fix += "slow file system (then give all ranks a longer --deadline)."
        return run_finding("error", "store_lost", f"{why}; seen from {launch.node_name}", fix)
    who = "torchrun's agent" if launch.agent_store else "rank 0"
    serves = f"Is {who}, which serves {launch.master_addr}:{launch.master_port}, alive"
    fix = f"{serves}, and is the way to its node open (firewall, route, interface)?"
    return run_finding("error", "store_lost", f"{why}; seen from {launch.node_name}", fix)


def no_process(limit: str, where: Mapping[str, Any]) -> Reported:
    """The finding for a supervisor that cannot start a process or open a file. `limit`: which one was reached."""
    text = f"no process can be started, or no file opened: {limit}; expected room for about 20 per rank"
    return run_finding("fail", "no_process", text, FIXES["no_process"], where)


def astray(text: str) -> Reported:
    """The finding for a MASTER_ADDR that names another node than rank 0's. No node is at fault."""
    fix = (
        "Set MASTER_ADDR to the node of rank 0, the first one of this job's own list and not of a sorted or an earlier "
        'one: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1 under Slurm.'
    )
    return run_finding("fail", "rendezvous", text, fix, {"variable": "MASTER_ADDR"})


def port_in_use(text: str) -> Reported:
    """The finding for a port that two jobs have: both jobs report it, and no node is at fault."""
    fix = (
        "Give each job a MASTER_PORT of its own (under srun or mpirun without one, preflight has one for each job), "
        "or end the other job. If both are one job, give every process its own RANK."
    )
    return run_finding("fail", "rendezvous", text, fix, {"variable": "MASTER_PORT"})


def foreign_writer(why: ForeignWriter, launch: LaunchIdentity) -> Reported:
    """The finding for what no rank of this run can have written. No rank is to blame for it."""
    text = f"something else writes into the store at {launch.master_addr}:{launch.master_port}: {why}"
    fix = (
        "End the other process, or another job with this MASTER_PORT; close the port to other users, or set the same "
        f"{SECRET} (16 random digits or more) on all ranks. All nodes need one version of preflight."
    )
    return run_finding("fail", "foreign_writer", text, fix)


def same_rank(others: Sequence[int], why: Exception, launch: LaunchIdentity) -> Reported:
    """The finding for two processes with one rank. Only rank 0 serves the store, so two of them block each other."""
    who = f"process {others[0]}" if len(others) == 1 else f"processes {', '.join(map(str, others))}"
    text = f"{who} on this node and this one both call themselves rank {launch.rank} of {launch.world_size}; {why}"
    fix = f"End the other one (ps -fp {others[0]}), or give each process its own RANK."
    return run_finding(
        "fail",
        "launch",
        f"{text}; expected every rank once",
        fix,
        {
            "node": launch.node_name,
            "rank": launch.rank,
            "variable": "RANK",
        },
    )


def interrupted(how: str) -> Reported:
    fix = "Find out what ended it (scancel, a time limit, Ctrl-C), then run it again."
    return run_finding("error", "interrupted", f"the run was interrupted: {how}", fix)


def own_fault(error: Exception) -> Reported:
    """The finding for a bug in preflight, which must not cost the other ranks their verdict."""
    text = f"a fault of preflight itself: {in_one_line(error)}{place_of(error, ENGINE)}"
    found = run_finding("error", "fault", text, "Please report it, with this report.")
    return replace(found, evidence={"stack": traceback.format_exc()})


def without_verdict(why: Exception, launch: LaunchIdentity, follower: Participant | None, still_s: float) -> Reported:
    """The finding that says why a rank ends without rank 0's verdict."""
    if still_s >= STILL_S:
        how = f"this supervisor stood still for {still_s:.0f} s, and then {why}"
        return stalled(launch.rank, own_job(launch, follower), how)
    if follower is not None and follower.rank_0_is_dead():
        others = [rank for rank in follower.dead_beside_me() if rank != 0]
        beside = f" (so is {rank_ranges.ranks(others)})" if others else ""
        text = f"rank 0's supervisor is dead{beside}, and with it the verdict; this rank {why}"
        fix = "Check the node's dmesg: did the OOM killer end it?"
        return run_finding("fail", "lost", text, fix, own_job(launch, follower).where(0))
    if launch.problems:
        every = "; ".join(f"{name} {what}" for name, what in launch.problems)
        fix = "Fix the launcher's command line or script, or use torchrun, which sets them all."
        where = {"node": launch.node_name, "variable": launch.problems[0][0]}
        return run_finding(
            "fail", "launch", f"this process was started wrongly and could not join: {every}", fix, where
        )
    if isinstance(why, ForeignWriter):
        return foreign_writer(why, launch)
    if isinstance(why, TorchUnread):
        return _unread(why, own_job(launch, follower).where(launch.rank or 0))
    if isinstance(why, TorchBroken):
        fix = "Repair the installation until this works on the node: python -c 'import torch.distributed'"
        return run_finding(
            "fail", "torch", f"{why}, expected it to work", fix, own_job(launch, follower).where(launch.rank or 0)
        )
    if isinstance(why, LimitReached):
        return no_process(str(why), {"node": launch.node_name})
    if isinstance(why, Astray):
        return astray(str(why))
    if isinstance(why, PortInUse):
        return port_in_use(str(why))
    if launch.rank == 0 and isinstance(why, (StoreLost, NoCoordinator)) and (others := others_here(os.environ)):
        theirs = owner_of(others[0])
        if theirs and launch.owner and job_owner.is_other_job(launch.owner, theirs):
            return port_in_use(shared_port(launch, theirs))
        return same_rank(others, why, launch)
    if isinstance(why, StoreLost):
        return store_lost(why, launch)
    if isinstance(why, NoCoordinator):
        fix = "Check rank 0's own output and its node."
        return run_finding("fail", "lost", str(why), fix, own_job(launch, follower).where(0))
    and_rank_0 = "" if launch.rank == 0 else ", and rank 0 gave no verdict"
    return interrupted(f"rank {launch.rank} {why}{and_rank_0}")


def _unread(why: TorchUnread, where: Mapping[str, Any]) -> Reported:
    """A file system that is slow is no failure: the run needs more time. One that does not answer is."""
    if why.is_slow:
        fix = "Give the run more time (--deadline), or put the environment on a local disk."
        return run_finding("error", "deadline", f"{why}; the run's deadline left no more time", fix, where)
    fix = "No job whose environment is there can start: check its mount and server on that node (mount, dmesg)."
    return run_finding("fail", "torch", str(why), fix, where)


def own_job(launch: LaunchIdentity, follower: Participant | None) -> Job:
    """The job as far as this rank knows it."""
    if follower is not None and follower.job is not None:
        return follower.job
    rank = launch.rank or 0
    node = Node(launch.node_name, launch.node_rank or 0, (rank,))
    return Job(launch.launcher, max(launch.world_size, rank + 1), "gloo", (node,))
