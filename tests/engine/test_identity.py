import socket
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from preflight.engine import identity, local_launch
from preflight.sdk.addresses import UP, Address

PLAIN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
TORCHRUN = {
    **PLAIN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-1@1",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
CRAY = {
    "PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1", "PALS_APID": "f00-ba",
}  # fmt: skip
"""Cray MPICH under PALS, as on Polaris and Aurora."""
FLUX = {"PMI_RANK": "5", "PMI_SIZE": "8", "FLUX_TASK_RANK": "5", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_ID": "f1"}
JSRUN = {"PMIX_RANK": "5", "JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8", "JSM_NAMESPACE_LOCAL_RANK": "1"}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NODELIST": "gpu[01-02]"}
STEP = {
    **BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[01-02]", "SLURMD_NODENAME": "gpu02",
}  # fmt: skip
DAEMON = {
    **STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", **OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0",
    "PMIX_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
"""mpirun inside an allocation: its ranks inherit the step of the one daemon a node."""


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (PLAIN, ("env", 3, 8, None, None, None)),
        ({**PLAIN, "LOCAL_RANK": "1", "NODE_RANK": "2"}, ("env", 3, 8, 1, None, 2)),
        (TORCHRUN, ("torchrun", 3, 8, 1, 2, 1)),
        ({**TORCHRUN, "PREFLIGHT_OWN_RANKS": "1"}, ("own", 3, 8, 1, 2, 1)),
        (OPEN_MPI, ("mpi", 3, 4, 3, 4, None)),
        (HYDRA, ("mpi", 1, 2, 1, 2, None)),
        (CRAY, ("mpi", 5, 8, 1, 4, None)),
        (FLUX, ("mpi", 5, 8, 1, None, None)),
        (JSRUN, ("mpi", 5, 8, 1, None, None)),
        (STEP, ("slurm", 2, 4, 0, None, 1)),
        ({**STEP, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, ("slurm", 2, 4, 0, None, 1)),
        ({**STEP, "PMI_RANK": "2", "PMI_SIZE": "4"}, ("slurm", 2, 4, 0, None, 1)),
        (DAEMON, ("mpi", 0, 4, 0, 2, None)),
        ({**DAEMON, "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
         ("mpi", 1, 4, 1, 2, None)),
        ({}, ("local", 0, 1, None, None, None)),
    ],
    ids=["plain", "plain nodes", "torchrun", "own", "open mpi", "hydra", "cray", "flux", "jsrun", "slurm",
         "slurm with pmix", "slurm with pmi",
         "mpirun in slurm", "another mpirun in slurm", "alone"],
)  # fmt: skip
def test_every_launcher_gives_a_place(environ: Mapping[str, str], place: tuple[object, ...]) -> None:
    here = identity.from_environ(environ)
    local = (here.local_rank, here.local_world_size, here.node_rank)
    assert (here.launcher, here.rank, here.world_size, *local) == place
    assert here.problems == ()


def test_torchrun_comes_before_all_others() -> None:
    assert identity.from_environ({**STEP, **OPEN_MPI, **TORCHRUN}).launcher == "torchrun"
    assert identity.from_environ({**STEP, **OPEN_MPI}).launcher == "mpi"


@pytest.mark.parametrize(
    "environ",
    [
        BATCH,
        {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {**STEP, "SLURM_STEP_ID": "batch"},
        {**STEP, "SLURM_STEP_ID": ""},
    ],
    ids=["sbatch without srun", "a step of one task", "the batch step by name", "no step"],
)
def test_one_process_of_slurm_is_alone(environ: Mapping[str, str]) -> None:
    here = identity.from_environ(environ)
    assert (here.launcher, here.rank, here.world_size) == ("local", 0, 1)


@dataclass
class Wrong:
    environ: dict[str, str]
    variable: str
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong({**PLAIN, "RANK": "x"}, "RANK", "is 'x', not a whole number of at least 0"),
        Wrong({**PLAIN, "RANK": "-1"}, "RANK", "is '-1', not a whole number of at least 0"),
        Wrong({**PLAIN, "RANK": "1.0"}, "RANK", "is '1.0', not a whole number of at least 0"),
        Wrong({**PLAIN, "RANK": " "}, "RANK", "is not set"),
        Wrong({"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK", "is not set"),
        Wrong({**PLAIN, "WORLD_SIZE": "0"}, "WORLD_SIZE", "is '0', not a whole number of at least 1"),
        Wrong({**PLAIN, "WORLD_SIZE": "two"}, "WORLD_SIZE", "is 'two', not a whole number of at least 1"),
        Wrong({"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "WORLD_SIZE", "is not set"),
        Wrong({**PLAIN, "MASTER_ADDR": ""}, "MASTER_ADDR", "is not set"),
        Wrong({**PLAIN, "MASTER_PORT": ""}, "MASTER_PORT", "is not set"),
        Wrong({**PLAIN, "MASTER_PORT": "0"}, "MASTER_PORT", "is '0', not a whole number from 1 to 65535"),
        Wrong({**PLAIN, "MASTER_PORT": "70000"}, "MASTER_PORT", "is '70000', not a whole number from 1 to 65535"),
        Wrong({**PLAIN, "LOCAL_RANK": "a"}, "LOCAL_RANK", "is 'a', not a whole number of at least 0"),
        Wrong({**TORCHRUN, "LOCAL_RANK": ""}, "LOCAL_RANK", "is not set"),
        Wrong({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE", "is '0', not a whole number of at least 1"),
        Wrong({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "?"}, "OMPI_COMM_WORLD_SIZE",
              "is '?', not a whole number of at least 1"),
        Wrong({"PMI_RANK": "0"}, "OMPI_COMM_WORLD_SIZE", "is not set"),
        Wrong({**STEP, "SLURM_PROCID": ""}, "SLURM_PROCID", "is not set"),
        Wrong({**STEP, "SLURM_STEP_NUM_TASKS": "all"}, "SLURM_STEP_NUM_TASKS",
              "is 'all', not a whole number of at least 1"),
    ],
    ids=lambda wrong: f"{wrong.variable} {wrong.says[:12]}",
)  # fmt: skip
def test_a_missing_or_nonsense_variable_is_a_problem(wrong: Wrong) -> None:
    here = identity.from_environ(wrong.environ)
    assert here.problems == ((wrong.variable, wrong.says),)
    assert here.world_size >= 1


def test_a_rank_that_is_no_number_is_no_rank() -> None:
    assert identity.from_environ({**PLAIN, "RANK": "x"}).rank is None


def test_all_that_is_wrong_is_told() -> None:
    here = identity.from_environ({"RANK": "a", "WORLD_SIZE": "b"})
    assert [variable for variable, _ in here.problems] == ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]


def test_spaces_around_a_number_are_forgiven() -> None:
    assert identity.from_environ({**PLAIN, "RANK": " 3 "}).rank == 3


def test_the_agents_store_is_torchruns() -> None:
    assert identity.from_environ(TORCHRUN).agent_store
    assert not identity.from_environ(PLAIN).agent_store
    assert not identity.from_environ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store


def test_restarts_are_counted() -> None:
    assert identity.from_environ(TORCHRUN).restarts == 2
    assert identity.from_environ(PLAIN).restarts == 0


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (PLAIN, "node-0"),
        (STEP, "gpu01"),
        ({**STEP, "MASTER_ADDR": "head"}, "head"),
        (OPEN_MPI, "127.0.0.1"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ""),
        ({**OPEN_MPI, "MASTER_ADDR": "head"}, "head"),
    ],
    ids=["plain", "slurm", "slurm with an address", "mpi on one node", "mpi on two nodes", "mpi with an address"],
)
def test_the_store_is_on_the_first_node(environ: Mapping[str, str], host: str) -> None:
    assert identity.from_environ(environ).master_addr == host


def test_ranks_of_one_step_choose_the_same_port() -> None:
    ports = {identity.from_environ({**STEP, "SLURM_PROCID": str(rank)}).master_port for rank in range(4)}
    (port,) = ports
    assert port is not None and 20000 <= port < 30000


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (STEP, {**STEP, "SLURM_STEP_ID": "1"}),
        (STEP, {**STEP, "SLURM_JOB_ID": "78"}),
        (OPEN_MPI, {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-2@1"}),
    ],
    ids=["steps", "jobs", "mpi jobs"],
)
def test_jobs_beside_each_other_choose_their_own_ports(first: Mapping[str, str], other: Mapping[str, str]) -> None:
    assert identity.from_environ(first).master_port != identity.from_environ(other).master_port


def test_a_given_port_is_taken() -> None:
    assert identity.from_environ({**STEP, "MASTER_PORT": "1234"}).master_port == 1234
    assert identity.from_environ(PLAIN).master_port == 29500


def test_a_node_is_called_as_slurm_calls_it() -> None:
    assert identity.from_environ(STEP).node_name == "gpu02"
    assert identity.from_environ(PLAIN).node_name == socket.gethostname()


def test_the_launchers_number_tells_nodes_apart() -> None:
    keys = [identity.from_environ({**TORCHRUN, "GROUP_RANK": number}).node_key for number in ("0", "1", "1")]
    assert keys[0] != keys[1] == keys[2]


def test_without_a_number_the_machine_tells_nodes_apart() -> None:
    keys = {identity.from_environ({**PLAIN, "RANK": str(rank)}).node_key for rank in range(3)}
    assert len(keys) == 1 and socket.gethostname() in keys.pop()


def test_only_launch_variables_are_shown() -> None:
    here = identity.from_environ({**TORCHRUN, "CUDA_VISIBLE_DEVICES": "1", "API_TOKEN": "sesame", "HOME": "/home/me"})
    assert here.environ == {**PLAIN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
                            "CUDA_VISIBLE_DEVICES": "1"}  # fmt: skip


def test_rank_0_hears_of_the_problems() -> None:
    about = identity.from_environ({**PLAIN, "RANK": "x"}).to_json()
    assert about["rank"] is None
    assert about["problems"] == [("RANK", "is 'x', not a whole number of at least 0")]


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("", ""),
        ("gpu01", "gpu01"),
        ("gpu01,gpu02", "gpu01"),
        ("gpu[007-010,12],x1", "gpu007"),
        ("gpu[12,007-010]", "gpu12"),
        ("login,gpu[1-2]", "login"),
        ("a-b.c[3-4]", "a-b.c3"),
        ("rack1-[08-16]", "rack1-08"),
    ],
)
def test_the_first_host_of_a_slurm_node_list(nodelist: str, host: str) -> None:
    assert identity.first_host(nodelist) == host


def of(interface: str, family: int, text: str) -> Address:
    return Address(interface, UP, family, text, 24)


def test_addresses_leave_out_loopback_and_link_local() -> None:
    listed = [
        of("lo", socket.AF_PACKET, ""), of("lo", socket.AF_INET, "127.0.0.1"), of("eth0", socket.AF_INET, "10.0.0.1"),
        of("lo", socket.AF_INET6, "::1"), of("eth0", socket.AF_INET6, "fe80::1"),
        of("ib0", socket.AF_INET6, "2001:db8::1"),
    ]  # fmt: skip
    assert identity.host_addresses(lambda: listed) == ("10.0.0.1", "2001:db8::1")


def test_addresses_are_few() -> None:
    many = [of(f"veth{number}", socket.AF_INET, f"10.0.{number}.1") for number in range(200)]
    assert len(identity.host_addresses(lambda: many)) == 16


@pytest.mark.parametrize(
    ("nodelist", "first"), [("rack[0-63]_blade[0-41]", "rack0_blade0"), ("gpu[1-2]-ib,x", "gpu1-ib"), ("a,b[1-2]", "a")]
)
def test_a_node_list_with_several_ranges(nodelist: str, first: str) -> None:
    assert identity.first_host(nodelist) == first


@pytest.mark.parametrize(
    "plugin", [{"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, {"PMI_RANK": "3", "PMI_SIZE": "16"}]
)
def test_srun_with_a_pmi_plugin_is_slurm(plugin: dict[str, str]) -> None:
    step = {**STEP, "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "16"}
    assert identity.from_environ({**step, **plugin}) == identity.from_environ(step)


def test_mpirun_inside_an_allocation_is_mpi() -> None:
    daemon = {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    ranks = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    here = identity.from_environ({**daemon, **ranks})
    assert (here.launcher, here.rank, here.world_size) == ("mpi", 9, 16)


def test_mpi_ranks_on_several_nodes_agree_on_the_port() -> None:
    ranks = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALNRANKS": "8", "MASTER_ADDR": "a"}
    assert identity.from_environ(ranks).master_port == identity.TORCH_PORT


def test_a_free_port_is_none_that_the_kernel_gives_to_others() -> None:
    """With the range that Linux has by default."""
    ports = {local_launch.free_port() for _ in range(100)}
    assert len(ports) > 90 and max(ports) < 32768
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", min(ports)))  # it is free


@pytest.mark.parametrize(("port", "is_wrong"), [("0", True), ("1", False), ("65535", False), ("65536", True)])
def test_a_port_is_from_1_to_65535(port: str, is_wrong: bool) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    assert ("MASTER_PORT" in dict(identity.from_environ(environ).problems)) is is_wrong


GOOD_HOSTS = (
    "node-0", "node_0.cluster.local", "10.0.0.1", "10.1", "fd00::1", "::1", "fe80::1%eth0", "ip6-x.", "localhost",
    "gpu007-ib0", "x" * 63, "",
)  # fmt: skip
BAD_HOSTS = {
    "a..b": "not a host name or an address",
    " node0": "without spaces",
    "node0 ": "without spaces",
    "no de": "without spaces",
    "node0\n": "without spaces",
    "node0:29500": "with a port, expected the host alone",
    "[::1]": "expected the IPv6 address without brackets",
    "[fd00::1]:29500": "without brackets, and the port (29500) in MASTER_PORT",
    "tcp://node0:29500": "a URL, expected a host name or an address",
    "node0,node1": "not a host name or an address",
    "gpu[01-02]": "not a host name or an address",
    "$HOSTNAME": "not a host name or an address",
    "10.0.0.1/24": "not a host name or an address",
    ".node0": "not a host name or an address",
    "x" * 64: "not a host name or an address",
    "node0:": "not a host name or an address",
    "::::": "not a host name or an address",
}


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_a_master_that_may_be_a_host(host: str) -> None:
    assert identity.host_problem(host) == ""


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_master_that_cannot_be_a_host(host: str) -> None:
    assert BAD_HOSTS[host] in identity.host_problem(host)
    for environ in (PLAIN, TORCHRUN, OPEN_MPI, STEP):
        ((variable, wrong),) = identity.from_environ({**environ, "MASTER_ADDR": host}).problems
        assert variable == "MASTER_ADDR" and wrong.startswith("is "), wrong
