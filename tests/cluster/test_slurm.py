"""In a real Slurm of three nodes: what the launchers, the gate and the hooks do, by what Slurm says afterwards."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.cluster import hook
from tests.hosts import needs_hosts
from tests.slurm import Slurm, needs_slurm, slurm

pytestmark = [needs_hosts, needs_slurm, pytest.mark.hosts, pytest.mark.slurm, pytest.mark.more]
QUICK = ("--level", "quick", "--only", "env.launch,node.limits")
SICK = "preflight:node.limits.shm "


@pytest.fixture(scope="module")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def cluster(running_slurm: Slurm) -> Slurm:
    running_slurm.reset()
    return running_slurm


def ours(cluster: Slurm, name: str, **instead: str) -> str:
    """The hook as `preflight hook` prints it for this cluster; `instead`: other values of its variables."""
    conf = cluster.environment()["SLURM_CONF"]
    text = hook.text(name, {"@BIN@": str(cluster.folder / "bin"), "@SLURM@": "/usr/bin", "@CONF@": conf})
    text = text.replace("options=()", f"options=(--config {cluster.folder}/site.toml)")
    for variable, value in instead.items():
        text, count = re.subn(rf"\b{variable}=\S+", f"{variable}={value}", text, count=1)
        assert count, f"{variable} is not in {name}"
    return text


def site(cluster: Slurm) -> tuple[str, ...]:
    return (*QUICK, "--config", str(cluster.folder / "site.toml"))


def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return loaded


# Launchers


@pytest.mark.parametrize("tasks", [1, 2])
def test_srun_has_all_its_tasks(tasks: int, cluster: Slurm) -> None:
    folder = cluster.folder / "work" / f"srun-{tasks}"
    words = ("srun", "-N3", f"--ntasks-per-node={tasks}", "python", "-m", "preflight", *QUICK, "--report", str(folder))
    done = cluster.call(*words)
    assert done.returncode == 0, done.stdout
    job = report(folder)["job"]
    assert (job["launcher"], job["world_size"], len(job["nodes"])) == ("slurm", 3 * tasks, 3)
    assert [node["node"] for node in job["nodes"]] == [host.name for host in cluster.hosts]


def test_srun_starts_torchrun_on_each_node(cluster: Slurm) -> None:
    folder = cluster.folder / "work" / "torchrun"
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{cluster.hosts[0].name}:29400", "--rdzv-id", "7")
    launcher = (
        "srun",
        "--nodelist=host-a,host-b",
        "--ntasks-per-node=1",
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=2",
        *rendezvous,
    )
    done = cluster.call(*launcher, "-m", "preflight", *QUICK, "--report", str(folder))
    assert done.returncode == 0, done.stdout
    job = report(folder)["job"]
    assert (job["launcher"], job["world_size"], len(job["nodes"])) == ("torchrun", 4, 2), done.stdout


# sbatch, with the gate


def batch(cluster: Slurm, **instead: str) -> str:
    """The example with fewer ranks and checks, and a training that only says so."""
    text = ours(cluster, "sbatch", **instead).replace("#SBATCH --gpus-per-node=8\n", "")
    for there, here in {
        "tasks-per-node=8": "tasks-per-node=1",
        "preflight --all": f"preflight {' '.join(site(cluster))}",
    }.items():
        assert there in text
        text = text.replace(there, here)
    (cluster.folder / "work" / "train.py").write_text("import os; print('training on', os.environ['SLURMD_NODENAME'])")
    return cluster.batch(text)


def trained_on(cluster: Slurm, job: str) -> list[str]:
    return sorted(re.findall(r"training on (\S+)", cluster.output(job)))


def test_a_sound_job_trains(cluster: Slurm) -> None:
    job = batch(cluster)
    assert cluster.until(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", cluster.output(job)
    assert trained_on(cluster, job) == ["host-b", "host-c"], cluster.output(job)


def test_a_sick_job_goes_on_without_the_bad_node(cluster: Slurm) -> None:
    with cluster.full_shared_memory(cluster.hosts[1]):
        job = batch(cluster)
        ended = cluster.until(job, "COMPLETED", "FAILED")
    told = cluster.output(job)
    assert (ended["JobState"], ended["Restarts"], ended["ExcNodeList"]) == ("COMPLETED", "1", "host-b"), told
    assert "gate: a failure was found, so the job is held; bad nodes: host-b" in told
    assert trained_on(cluster, job) == ["host-a", "host-c"], told


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes are left where two are bad."""
    with slurm(tmp_path_factory.mktemp("slurm-4"), size=4) as made:
        yield made


@pytest.mark.parametrize(("most", "state"), [("2", "COMPLETED"), ("1", "FAILED")])
def test_two_bad_nodes_after_each_other_cost_two_requeues(most: str, state: str, four: Slurm) -> None:
    """Slurm takes host-b and host-c, then host-d of the same leaf for host-b, then host-a for host-d."""
    four.reset()
    with four.full_shared_memory(four.hosts[1]), four.full_shared_memory(four.hosts[3]):
        job = batch(four, most_requeues=most)
        ended = four.until(job, "COMPLETED", "FAILED")
    told = four.output(job)
    assert (ended["JobState"], ended["Restarts"]) == (state, most), told
    assert re.findall(r"bad nodes: (\S+) \(report", told) == ["host-b", "host-d"], told
    gives_up = "job.sbatch: given up after 1 of at most 1 requeues; bad nodes of all tries: host-b,host-d\n"
    assert (trained_on(four, job), gives_up in told) == (([], True) if most == "1" else (["host-a", "host-c"], False))


def test_a_sick_job_is_held_and_says_why_when_it_was_requeued_often_enough(cluster: Slurm) -> None:
    with cluster.full_shared_memory(cluster.hosts[1]):
        job = batch(cluster, most_requeues="0")
        ended = cluster.until(job, "COMPLETED", "FAILED")
    told = cluster.output(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "1:0", "0"), told
    assert "[node.limits.shm]" in told and "bad nodes: host-b" in told and trained_on(cluster, job) == [], told
    assert "job.sbatch: given up after 0 of at most 0 requeues; bad nodes of all tries: host-b\n" in told, told


# Prolog


def syslog(cluster: Slurm) -> str:
    path = cluster.folder / "syslog"
    return path.read_text() if path.exists() else ""


def test_a_prolog_drains_a_sick_node_and_the_job_runs_elsewhere(cluster: Slurm) -> None:
    sick = cluster.hosts[0]
    cluster.hook("prolog", ours(cluster, "slurm-prolog"))
    with cluster.full_shared_memory(sick):
        job = cluster.batch("#!/bin/sh\nhostname\n")
        ended = cluster.until(job, "COMPLETED", "FAILED")
    reason, _, who = cluster.node(sick)["Reason"].rpartition(" [")
    assert "DRAIN" in cluster.node(sick)["State"] and who.startswith("root@")
    assert reason.startswith(SICK) and len(reason) <= 128, reason
    assert (ended["JobState"], ended["Restarts"], ended["BatchHost"]) == ("COMPLETED", "1", "host-b")
    assert f"job {job}: {reason}: node drained" in syslog(cluster)


BROKEN = {
    "hangs": "exec sleep 1000",
    "crashes": "kill -SEGV $$",
    "cannot start": "echo 'Fatal Python error: init_fs_encoding' >&2; exit 1",
    "is missing": None,
}


def test_a_prolog_drains_nothing_where_preflight_is_broken(cluster: Slurm) -> None:
    """Each of the three nodes has a fault of its own; and the sick node of the gate is not seen."""
    path = cluster.folder / "bin" / "preflight"
    sound = path.read_text()
    cluster.hook("prolog", ours(cluster, "slurm-prolog", limit_s="3"))
    try:
        for fault, line in BROKEN.items():
            path.unlink(missing_ok=True)
            if line:
                path.write_text(f"#!/bin/bash\n{line}\n")
                path.chmod(0o755)
            done = cluster.call("srun", "-N3", "hostname")
            assert done.returncode == 0, f"{fault}: {done.stdout}"
    finally:
        path.write_text(sound)
        path.chmod(0o755)
    for host in cluster.hosts:
        assert "DRAIN" not in cluster.node(host)["State"]
    assert syslog(cluster).count("no verdict: job not held") >= 3 * len(BROKEN)


# HealthCheckProgram


def test_a_health_check_drains_and_resumes_what_it_has_drained(cluster: Slurm) -> None:
    sick, by_admin = cluster.hosts[1], cluster.hosts[2]
    cluster.said("scontrol", "update", f"NodeName={by_admin.name}", "State=DRAIN", "Reason=fan is loud")
    cluster.hook("health", ours(cluster, "slurm-health"))
    with cluster.full_shared_memory(sick):
        node = cluster.until_node(sick, "DRAIN")
        assert node["Reason"].startswith("preflight-health:node.limits.shm "), node
    cluster.until_node(sick, "-DRAIN", "IDLE")
    assert "sound again, resumed" in syslog(cluster)
    assert "DRAIN" in cluster.node(by_admin)["State"] and cluster.node(by_admin)["Reason"].startswith("fan is loud")
    assert "DRAIN" not in cluster.node(cluster.hosts[0])["State"]


def test_a_health_check_resumes_only_what_has_measured_again(cluster: Slurm) -> None:
    """The check of GPUs measures nothing here: a node that it had drained stays so."""
    node = cluster.hosts[0]
    why = "Reason=preflight-health:gpu.health.hot gpu 3"
    cluster.said("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", why)
    cluster.hook(
        "health", f"{ours(cluster, 'slurm-health')}".replace("exit 0\n", f"touch {cluster.folder}/$node.seen\n")
    )
    seen = cluster.folder / f"{node.name}.seen"
    cluster.wait_for(seen.exists)
    assert "DRAIN" in cluster.node(node)["State"]


# Epilog


LEAVES = """#!/bin/bash
setsid sleep 300 > /dev/null 2>&1 < /dev/null &
sleep 0.5
"""


def test_an_epilog_tells_what_the_job_has_left(cluster: Slurm) -> None:
    cluster.hook("epilog", ours(cluster, "slurm-epilog"))
    job = cluster.batch(LEAVES)
    cluster.until(job, "COMPLETED")
    cluster.wait_for(lambda: f"job {job}: after its end:" in syslog(cluster))
    assert "[node.leftovers.process]" in syslog(cluster) and f"job {job} has left processes" in syslog(cluster)
    sound = cluster.batch("#!/bin/sh\nhostname\n")
    cluster.until(sound, "COMPLETED")
    cluster.until_node(cluster.hosts[0], "IDLE", "-COMPLETING")
    assert f"job {sound}:" not in syslog(cluster)


# pick


def test_pick_takes_the_sound_nodes_of_one_switch(cluster: Slurm) -> None:
    text = f"#!/bin/bash\npreflight pick -N 2 --hostfile hosts -- {' '.join(site(cluster))}\n"
    job = cluster.batch(text + "echo $?\n", "-N3", "--ntasks-per-node=1")
    cluster.until(job, "COMPLETED")
    assert cluster.output(job).splitlines()[-2:] == ["host-b,host-c", "0"], cluster.output(job)
    hosts = (cluster.folder / "work" / "hosts").read_text()
    assert hosts == "host-b slots=1\nhost-c slots=1\n"


def test_pick_ends_with_1_where_too_few_nodes_are_sound(cluster: Slurm) -> None:
    text = f"#!/bin/bash\npreflight pick -N 3 -- {' '.join(site(cluster))}\necho $?\n"
    with cluster.full_shared_memory(cluster.hosts[2]):
        job = cluster.batch(text, "-N3", "--ntasks-per-node=1")
        cluster.until(job, "COMPLETED")
    told = cluster.output(job)
    assert told.endswith("\n1\n") and "2 nodes may be used, 3 are needed; bad nodes: host-c" in told, told


def test_our_folded_lists_are_slurms(cluster: Slurm) -> None:
    from preflight.cluster.host_list import fold

    names = [*(f"gpu-{n}" for n in (3, 17, 18, 19, 9, 10)), "gpu-007", "gpu-008", "r1-n2-ib", "r1-n3-ib", "login"]
    assert sorted(cluster.said("scontrol", "show", "hostnames", fold(names)).split()) == sorted(names)
