"""A real Slurm on hosts made of network namespaces: slurmctld on the first, a slurmd on each."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import running
from tests.hosts import Host, cluster

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun")
needs_slurm = pytest.mark.skipif(
    not all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in PROGRAMS),
    reason="a real Slurm needs Debian's slurm-wlm and munge",
)
TURN_S = 0.2
SITE = '[severity]\nnode.limits.shm = "fail"\n'
"""A site's configuration, in site.toml."""
NOTHING = "#!/bin/sh\nexit 0\n"
HOOKS = ("prolog", "epilog", "health")
HEALTH = "#!/bin/sh\nexec flock --nonblock {folder}/$SLURMD_NODENAME.lock {folder}/health\n"
"""Slurm starts the next one while the last one runs; here they start every two seconds."""
CONF = """
ClusterName={name}
SlurmctldHost={first}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
TopologyPlugin=topology/tree
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SchedulerParameters=nohold_on_prolog_fail,sched_interval=1,batch_sched_delay=0
MessageTimeout=10
KillWait=5
PrologFlags=Alloc
Prolog={folder}/prolog
Epilog={folder}/epilog
HealthCheckProgram={folder}/health-once
HealthCheckInterval=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """Its commands run on the first host, as root. Jobs find preflight, torchrun and this Python on PATH."""

    folder: Path
    hosts: list[Host]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return running.environment(SLURM_CONF=str(self.folder / "slurm.conf"), PATH=path, **more)

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.hosts[0].command(words), env=self.environment(**more), cwd=self.folder / "work", text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=running.HUNG_S,
        )  # fmt: skip

    def said(self, *words: str) -> str:
        """What a command of Slurm prints, that must work."""
        done = self.call(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout.strip()

    def batch(self, text: str, *options: str, **more: str) -> str:
        """The job's number; its output is in `output`."""
        script = self.folder / "work" / "job.sbatch"
        script.write_text(text)
        return self.submit(script, *options, **more)

    def submit(self, script: Path, *options: str, **more: str) -> str:
        words = ("sbatch", "--parsable", "--output=job-%j.out", "--open-mode=append", *options, str(script))
        done = self.call(*words, **more)
        assert done.returncode == 0, done.stdout
        return done.stdout.split()[-1]

    def output(self, job: str) -> str:
        path = self.folder / "work" / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, number: str) -> dict[str, str]:
        """As scontrol shows it."""
        return _fields(self.said("scontrol", "--oneliner", "show", "job", number))

    def node(self, host: Host) -> dict[str, str]:
        return _fields(self.said("scontrol", "--oneliner", "show", "node", host.name))

    def wait_for(self, is_so: Callable[[], bool], within_s: float = 150) -> None:
        """slurmctld tells nobody."""
        end = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < end, self.log()
            time.sleep(TURN_S)

    def until(self, number: str, *states: str) -> dict[str, str]:
        """Waits for one of these states of the job."""
        self.wait_for(lambda: self.job(number)["JobState"] in states)
        return self.job(number)

    def until_node(self, host: Host, *words: str) -> dict[str, str]:
        """Waits until the node's state holds all of these words; "-DRAIN": not that one."""

        def is_so() -> bool:
            state = self.node(host)["State"].replace("*", "").split("+")
            return all((word[1:] not in state) if word.startswith("-") else (word in state) for word in words)

        self.wait_for(is_so)
        return self.node(host)

    def hook(self, name: str, text: str = NOTHING) -> None:
        """Puts prolog, epilog or health in place, at once."""
        fresh = self.folder / f"{name}.new"
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(self.folder / name)

    def on(self, host: Host, *words: str) -> str:
        """In the mount namespace of the host's slurmd, too."""
        daemon = self.daemons[2 + self.hosts.index(host)].pid
        command = ["nsenter", "-t", str(daemon), "-m", "-n", "-u", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    @contextlib.contextmanager
    def full_shared_memory(self, host: Host) -> Iterator[None]:
        """A sick node: there is no room in its /dev/shm. (With SITE it is a failure, as on GPUs.)"""
        self.on(host, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm")
        self.on(host, "sh", "-c", "cat /dev/zero > /dev/shm/left 2> /dev/null || true")
        try:
            yield
        finally:
            self.on(host, "umount", "-l", "/dev/shm")

    def reset(self) -> None:
        """No jobs, no hooks, all nodes idle."""
        for name in HOOKS:
            self.hook(name)
        self.call("scancel", "--user=root")
        for host in self.hosts:
            if "DRAIN" in self.node(host)["State"] or "DOWN" in self.node(host)["State"]:
                self.call("scontrol", "update", f"NodeName={host.name}", "State=RESUME")
        for host in self.hosts:
            self.until_node(host, "IDLE", "-DRAIN", "-COMPLETING", "-DRAINED")

    def log(self) -> str:
        """The end of what slurmctld has said."""
        return (self.folder / "slurmctld.log").read_text(errors="replace")[-3000:]


def _fields(line: str) -> dict[str, str]:
    """`Name=value Name=value`; a reason has spaces."""
    return {name: value.strip() for name, value in re.findall(r"(\w+)=(.*?)(?=\s+\w+(?:/\w+)?=|$)", line)}


@contextlib.contextmanager
def slurm(folder: Path, size: int = 3) -> Iterator[Slurm]:
    """All of it is gone at the end, with what jobs have left running."""
    with cluster(size) as hosts:
        made = Slurm(folder, hosts)
        _write(made)
        try:
            _start(made)
            for host in hosts:
                made.until_node(host, "IDLE")
            yield made
        finally:
            _end(made)


def _write(made: Slurm) -> None:
    folder = made.folder
    for name in ("state", "work", "bin", *(f"spool-{host.name}" for host in made.hosts)):
        (folder / name).mkdir()
    python = f'PYTHONPATH="{running.ROOT}" exec {sys.executable}'
    for name, words in {"python": "", "preflight": "-m preflight", "torchrun": "-m torch.distributed.run"}.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\n{python} {words} "$@"\n')
    (folder / "bin" / "logger").write_text(f"#!/bin/sh\ncat >> {folder}/syslog\n")
    for path in (folder / "bin").iterdir():
        path.chmod(0o755)
    nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=4" for host in made.hosts)
    text = CONF.format(name=folder.name, first=made.hosts[0].name, folder=folder, nodes=nodes)
    (folder / "slurm.conf").write_text(text)
    (folder / "site.toml").write_text(SITE)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    names = [host.name for host in made.hosts]
    leaves = f"SwitchName=leaf-0 Nodes={names[0]}\nSwitchName=leaf-1 Nodes={','.join(names[1:])}\n"
    (folder / "topology.conf").write_text(f"{leaves}SwitchName=spine Switches=leaf-[0-1]\n")
    for name in HOOKS:
        made.hook(name)
    made.hook("health-once", HEALTH.format(folder=folder))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)


def _start(made: Slurm) -> None:
    folder = made.folder
    munge = [
        f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "seed-file", "log-file")
    ]
    _daemon(made, "munged", ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge])
    conf = f"{folder}/slurm.conf"
    _daemon(made, "slurmctld", made.hosts[0].command(["slurmctld", "-D", "-f", conf]))
    for host in made.hosts:
        _daemon(made, host.name, host.command(["slurmd", "-D", "-N", host.name, "-f", conf]))


def _daemon(made: Slurm, name: str, words: list[str]) -> None:
    with (made.folder / f"{name}.log").open("wb") as log:
        made.daemons.append(
            subprocess.Popen(
                words, env=made.environment(), cwd=made.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        )


def _end(made: Slurm) -> None:
    for daemon in reversed(made.daemons):
        daemon.send_signal(signal.SIGTERM)
    for daemon in reversed(made.daemons):
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
    for host in made.hosts:
        for pid in host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
