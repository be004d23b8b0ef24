"""Who am I? The one module that reads RANK and related variables."""

import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from preflight.core import node_names
from preflight.engine import job_owner, rank_layout
from preflight.engine.job_owner import JobOwner
from preflight.engine.machine_id import machine_id
from preflight.engine.rank_layout import RankLayout
from preflight.sdk import addresses
from preflight.sdk.addresses import Address, is_address
from preflight.sdk.files import read as read_file

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch's env:// rendezvous and scripts for its launcher rely on."""
ALSO_READ = ("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "CUDA_VISIBLE_DEVICES")
TORCH_PORT = 29500
"""torchrun's own default for MASTER_PORT."""
CALL = "PREFLIGHT_CALL"
"""The variable that says which of several runs in one job this is (see cli/api.py)."""
PARENT = "PREFLIGHT_PARENT"
"""The training process that started this one."""
OWN = "PREFLIGHT_OWN_RANKS"
"""Set for ranks that `preflight run` has started itself (see local_launch.py)."""
LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
"""Set by Open MPI, MPICH's Hydra, Cray MPICH, PALS, Flux, jsrun and srun."""
MOST_RANKS = 10**6
"""A larger number is not a world size, but a job's id."""
STEP_PORTS = 20000
"""The first of 10,000 ports from which Slurm and MPI jobs without MASTER_PORT take theirs: below Linux's
ephemeral range (net.ipv4.ip_local_port_range, from 32768)."""


@dataclass(frozen=True)
class LaunchIdentity:
    """One process's place in the job, as its launcher gave it."""

    launcher: str
    rank: int | None
    """None if the environment does not say, or its value is invalid (see `problems`)."""
    world_size: int
    local_rank: int | None
    """None: derived from the order of the ranks on its node."""
    local_world_size: int | None
    node_rank: int | None
    node_name: str
    node_key: str
    """Equal for all processes of one node and different between nodes, even if host names are equal."""
    master_addr: str
    master_port: int | None
    agent_store: bool
    """Whether the launcher serves a store at master_addr:master_port."""
    restarts: int
    parent: int | None = None
    call: str = ""
    """Set if a training script runs preflight, maybe several times, on one store."""
    problems: tuple[tuple[str, str], ...] = ()
    """(variable, what is wrong with it)"""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The launch variables, for `env.launch`."""
    machine: str = ""
    """See machine_id.py."""
    owner: JobOwner | None = None
    """Which job it belongs to."""
    layout: RankLayout | None = None
    """On which nodes the ranks of the job are to run, as far as its launcher says."""

    def to_json(self) -> dict[str, object]:
        """What rank 0 needs to know about a process."""
        return {
            "launcher": self.launcher,
            "rank": self.rank,
            "world_size": self.world_size,
            "node_rank": self.node_rank,
            "node_name": self.node_name,
            "node_key": self.node_key,
            "machine": self.machine,
            "restarts": self.restarts,
            "problems": list(self.problems),
            "environ": dict(self.environ),
            "owner": self.owner,
            "local_rank": self.local_rank,
            "local_world_size": self.local_world_size,
        }


class _Reader:
    """Reads whole numbers from an environment and notes what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[tuple[str, str]] = []

    def number(self, *names: str, required: bool = False, least: int = 0, most: int = 10**9) -> int | None:
        """The value of the first of these variables that is set; None if there is none or it is invalid."""
        name = next((name for name in names if self._environ.get(name, "").strip()), None)
        if name is None:
            if required:
                self.problems.append((names[0], "is not set"))
            return None
        text = self._environ[name].strip()
        if not re.fullmatch(r"[0-9]{1,20}", text) or not least <= int(text) <= most:
            is_large = most >= MOST_RANKS and text.isdecimal() and int(text) > most
            bounds = f"of at least {least}" if most >= MOST_RANKS and not is_large else f"from {least} to {most}"
            self.problems.append((name, f"is {text!r}, not a whole number {bounds}"))
            return None
        return int(text)


def from_environ(environ: Mapping[str, str]) -> LaunchIdentity:
    """Looks for RANK and WORLD_SIZE (torchrun, plain), then for a Slurm step or MPI; else it is a single rank."""
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _plain(environ)
    if _is_slurm_step(environ):
        return _slurm(environ)
    if "OMPI_COMM_WORLD_RANK" in environ or "PMIX_RANK" in environ or "PMI_RANK" in environ:
        return _mpi(environ)
    return _identity("local", environ, _Reader(environ), rank=0, world_size=1)


def _is_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether it is one of several tasks of srun. An mpirun in an allocation starts one daemon per node by srun: its
    ranks have MPI's rank beside the daemon's SLURM_PROCID, while srun's own PMI plugins give both the same value."""
    if not environ.get("SLURM_STEP_ID", "").isdigit() or environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return False
    ranks = {environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK") if name in environ}
    sizes = {environ[name] for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in environ}
    return ranks <= {environ.get("SLURM_PROCID")} and sizes <= {environ["SLURM_STEP_NUM_TASKS"]}


def _plain(environ: Mapping[str, str]) -> LaunchIdentity:
    read = _Reader(environ)
    launcher = ("own" if OWN in environ else "torchrun") if "TORCHELASTIC_RUN_ID" in environ else "env"
    rank = read.number("RANK", required=True, most=MOST_RANKS)
    world_size = read.number("WORLD_SIZE", required=True, least=1, most=MOST_RANKS)
    if not environ.get("MASTER_ADDR", "").strip():
        read.problems.append(("MASTER_ADDR", "is not set"))
    read.number("MASTER_PORT", required=True, least=1, most=65535)
    return _identity(launcher, environ, read, rank=rank, world_size=world_size)


def _mpi(environ: Mapping[str, str]) -> LaunchIdentity:
    read = _Reader(environ)
    rank = read.number("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", required=True)
    world_size = read.number(
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_SIZE",
        "PMI_SIZE",
        "JSM_NAMESPACE_SIZE",
        "SLURM_STEP_NUM_TASKS",
        required=True,
        least=1,
    )
    local_rank = read.number(*LOCAL_RANKS)
    local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    # All ranks of one node are children of one mpirun or daemon; over several nodes a host must be named.
    one_node = local_size is not None and local_size == world_size
    job = next(filter(None, map(environ.get, ("PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID"))), None)
    name = job or (str(os.getppid()) if one_node else None)
    return _identity(
        "mpi",
        environ,
        read,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_size,
        host="127.0.0.1" if one_node else "",
        port=_port_of(name) if name else TORCH_PORT,
    )


def _slurm(environ: Mapping[str, str]) -> LaunchIdentity:
    read = _Reader(environ)
    rank = read.number("SLURM_PROCID", required=True)
    world_size = read.number("SLURM_STEP_NUM_TASKS", required=True, least=1)
    step = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    return _identity(
        "slurm",
        environ,
        read,
        rank=rank,
        world_size=world_size,
        local_rank=read.number("SLURM_LOCALID"),
        node_rank=read.number("SLURM_NODEID"),
        host=first_host(environ.get("SLURM_STEP_NODELIST", "")),
        port=_port_of(step),
    )


def _identity(
    launcher: str,
    environ: Mapping[str, str],
    read: _Reader,
    *,
    rank: int | None,
    world_size: int | None,
    local_rank: int | None = None,
    local_world_size: int | None = None,
    node_rank: int | None = None,
    host: str = "",
    port: int | None = None,
) -> LaunchIdentity:
    if launcher in ("torchrun", "own", "env"):
        local_rank = read.number("LOCAL_RANK", required=launcher != "env")
        local_world_size = read.number("LOCAL_WORLD_SIZE", required=launcher != "env", least=1)
        node_rank = read.number("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
    master_port = read.number("MASTER_PORT", least=1, most=65535) if environ.get("MASTER_PORT") else port
    if wrong := host_problem(environ.get("MASTER_ADDR", "")):
        read.problems.append(("MASTER_ADDR", wrong))
    node_name = node_names.safe(environ.get("SLURMD_NODENAME") or socket.gethostname())
    parent = _Reader(environ).number(PARENT)
    return LaunchIdentity(
        launcher=launcher,
        rank=rank,
        world_size=world_size or 1,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        node_name=node_name,
        node_key=_node_key(node_rank),
        machine=machine_id(),
        master_addr=environ.get("MASTER_ADDR", "").strip() or host,
        master_port=master_port,
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        parent=parent,
        call=environ.get(CALL, ""),
        restarts=_Reader(environ).number("TORCHELASTIC_RESTART_COUNT") or 0,
        problems=tuple(dict.fromkeys(read.problems)),
        environ={name: environ[name] for name in (*VARIABLES, *ALSO_READ) if name in environ},
        owner=job_owner.owner(launcher, environ, rank, node_name, parent),
        layout=rank_layout.from_environ(launcher, environ, rank),
    )


def host_problem(text: str) -> str:
    """What is wrong with the form of a host name or address, as "is 'a..b', not ..."; "" if nothing is, or if it is
    blank. torch takes it as it is, so that a space makes it a name that nobody has. Names are held against RFC 1123,
    with "_" and letters of other scripts, which resolvers take, too."""
    host = text.strip()
    if not host or is_address(text) or (len(text) <= 253 and re.fullmatch(r"([\w-]{1,63}\.)*[\w-]{1,63}\.?", text)):
        return ""
    if any(character.isspace() for character in text):
        return f"is {text!r}, expected a host name or an address without spaces"
    if "://" in host:
        return f"is {text!r}, a URL, expected a host name or an address"
    if host.startswith("[") and is_address(host[1:].partition("]")[0]):
        rest = host.partition("]")[2]
        port = f", and the port ({rest[1:]}) in MASTER_PORT" if rest else ""
        return f"is {text!r}, expected the IPv6 address without brackets{port}"
    name, _, port = host.rpartition(":")
    if name and ":" not in name and port.isdecimal():
        return f"is {text!r}, with a port, expected the host alone; the port goes into MASTER_PORT"
    return f"is {text!r}, not a host name or an address"


def _node_key(node_rank: int | None) -> str:
    """A key that differs between machines and containers, with the launcher's number of the node: that number alone may
    be stale, for instance if a batch script's environment is carried to another host."""
    number = "" if node_rank is None else f"node {node_rank}"
    return "|".join((number, socket.gethostname(), read_file("/proc/sys/kernel/random/boot_id"), namespace("net")))


def namespace(kind: str) -> str:
    """This process's namespace: process ids (pid) and host names (net) are unique only within one, as in containers."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _port_of(name: str) -> int:
    return STEP_PORTS + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 10000


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: "gpu[007-010,12],x1" gives "gpu007"; "" gives ""."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first.group()) if first else ""


def host_addresses(listed: Callable[[], Iterable[Address]] = addresses.listed) -> tuple[str, ...]:
    """This node's IPv4 and global IPv6 addresses without loopback."""
    texts = (address.text for address in listed() if address.family in (socket.AF_INET, socket.AF_INET6))
    return tuple(text for text in texts if not text.startswith(("127.", "::1", "fe80")))[:16]
