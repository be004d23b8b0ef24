import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight import testing
from preflight.checks.env import variables
from preflight.checks.env.variables import knowledge
from preflight.nccl import config_files, parameters
from preflight.nccl import version as nccl_version
from preflight.nccl.hca_names import strtoll
from tests import running
from tests.checks.comm import at_work
from tests.faults import ELSEWHERE
from tests.standin import library

KINDS = set(knowledge.READERS)


def facts(values: Mapping[str, str], **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"origin": {}, "conf_lines": [], "conf_missing": "", "hcas": []}
    return {"values": dict(values), **empty, **more}


def said(values: Mapping[str, str], backend: str = "gloo", **more: Any) -> list[tuple[str, str]]:
    """(severity and slug, message) of one rank with this environment."""
    found = testing.judge(variables, {0: facts(values, **more)}, backend=backend)
    return [
        (f"{finding['severity']} {finding['code'].removeprefix('env.variables.')}", finding["message"])
        for finding in found
    ]


# The table


def test_every_row_has_a_kind_a_weight_and_a_source() -> None:
    for row in knowledge.table().values():
        assert row.kind in KINDS and row.differs in ("fail", "warn", "own") and row.source, row
        assert row.status in ("", "build", "deprecated", "removed", "absent"), row
        assert bool(row.note) == bool(row.leftover or row.status in ("deprecated", "removed", "absent")), row


def test_the_table_has_no_name_twice() -> None:
    path = Path(knowledge.__file__).with_name("variables.tsv")
    names = [line.partition("\t")[0] for line in path.read_text().splitlines()]
    assert len(set(names)) == len(names) and len(knowledge.table()) == len(names) - 1


@pytest.mark.parametrize(
    ("text", "number"), [("1", (1, True)), ("0x10", (16, True)), ("010", (8, True)), ("4M", (4, False)),
                         ("true", (0, False)), ("-2", (-2, True)), (" 3", (3, True)), ("3 ", (3, False)),
                         ("08", (0, False))],
)  # fmt: skip
def test_numbers_are_read_as_c_reads_them(text: str, number: tuple[int, bool]) -> None:
    assert strtoll(text, 0) == number


# One variable

CASES = [
    ("NCCL_IB_DISABLE", "true", "warn wrong_value", "NCCL reads it as 0; expected 0 or 1"),
    ("NCCL_BUFFSIZE", "4M", "warn wrong_value", "reads it as 4"),
    ("NCCL_NTHREADS", "0200", "warn wrong_value", "reads it as 128"),
    ("NCCL_IB_TIMEOUT", "99", "warn wrong_value", "expected a number from 0 to 31"),
    ("NCCL_DEBUG", "DEBUG", "warn wrong_value", "it is ignored; expected VERSION or WARN"),
    ("NCCL_DEBUG_SUBSYS", "INIT,GRAF", "warn wrong_value", "GRAF is ignored"),
    ("NCCL_P2P_LEVEL", "4", "warn wrong_value", "has changed between versions"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "one", "warn wrong_value", "expected a number from 1 to 32"),
    ("OMP_NUM_THREADS", "0", "warn wrong_value", "each rank takes every core"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10s", "warn wrong_value", "torch reads it as 10"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4", "warn wrong_value", "expected a number from 0 to 3"),
    ("TORCH_DISTRIBUTED_DEBUG", "FULL", "fail wrong_value", "torch refuses it on import"),
    ("NCCL_SOCKET_IFNAM", "eth0", "warn unknown", "did you mean NCCL_SOCKET_IFNAME?"),
    ("NCCL_RUN_DIAGNOSTIC", "1", "warn unknown", "did you mean NCCL_RUN_DIAGNOSTICS?"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLIN", "1", "warn unknown", "did you mean TORCH_NCCL_ASYNC_ERROR_HANDLING?"),
    ("CUDA_VISIBLE_DEVICE", "0", "warn unknown", "did you mean CUDA_VISIBLE_DEVICES?"),
    ("NCCL_HOUSE_STYLE", "1", "info unknown", "expected a known name, or a plugin's"),
    ("NCCL_TIMEOUT", "1800", "warn no_effect", "expected init_process_group(timeout=...)"),
    ("NCCL_HEARTBEAT_TIMEOUT_SEC", "600", "warn no_effect", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    ("NCCL_IB_CUDA_SUPPORT", "1", "warn no_effect", "no longer has such a variable, expected NCCL_NET_GDR_LEVEL"),
    ("NCCL_BLOCKING_WAIT", "0", "info deprecated", "expected TORCH_NCCL_BLOCKING_WAIT"),
    ("NCCL_MAX_NCHANNELS", "4", "info deprecated", "NCCL_MAX_CTAS"),
    ("NCCL_P2P_DISABLE", "1", "warn leftover", "go through host memory"),
    ("CUDA_LAUNCH_BLOCKING", "1", "warn leftover", "every kernel is waited for"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "warn leftover", "hangs for ever"),
    ("NCCL_PROTO", "LL128", "info leftover", "corrupts data"),
    ("NCCL_SOCKET_IFNAME", "eth0, eth1", "warn wrong_grammar", "names with commas and no spaces"),
    ("NCCL_SOCKET_IFNAME", '"eth0"', "warn wrong_grammar", "exactly these characters"),
    ("GLOO_SOCKET_IFNAME", "^lo", "fail wrong_grammar", "full names, like eth0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "finding", "words"), CASES)
def test_a_value_that_was_not_meant_is_found(name: str, value: str, finding: str, words: str) -> None:
    (found, message), *rest = said({name: value})
    assert found == finding and not rest
    assert message.startswith(name) and words in message


@pytest.mark.parametrize(
    ("name", "value"),
    [(case[0], "") for case in CASES if case[2].endswith("wrong_value") or case[2].endswith("wrong_grammar")],
)
def test_an_empty_value_is_the_same_as_none(name: str, value: str) -> None:
    assert said({name: value}) == []


@pytest.mark.parametrize(("value", "finds"), [("0", 0), ("31", 0), ("32", 1)])
def test_both_ends_of_a_range_belong_to_it(value: str, finds: int) -> None:
    assert len(said({"NCCL_IB_TIMEOUT": value})) == finds


def test_torch_refuses_on_nccl_only() -> None:
    values = {"TORCH_NCCL_BLOCKING_WAIT": "on"}
    assert [variable for variable, _ in said(values, "nccl")] == ["fail wrong_value"]
    assert [variable for variable, _ in said(values, "gloo")] == ["warn wrong_value"]


@pytest.mark.parametrize("value", ["ten", "99999999999"])
def test_torch_refuses_what_is_no_integer(value: str) -> None:
    (found,) = said({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": value}, "nccl")
    assert found[0] == "fail wrong_value" and "expected a whole number" in found[1]


def test_hca_names_are_beginnings() -> None:
    hcas = ["mlx5_0", "mlx5_1", "mlx5_10"]
    (found,) = said({"NCCL_IB_HCA": "mlx5_1"}, hcas=hcas)
    assert found[0] == "warn wrong_grammar" and "also takes mlx5_10" in found[1]
    for value, mended in (("mlx5_1", "=mlx5_1"), ("^mlx5_1", "^=mlx5_1")):
        (finding,) = testing.judge(variables, {0: facts({"NCCL_IB_HCA": value}, hcas=hcas)})
        assert finding["fix"] == f"Write NCCL_IB_HCA='{mended}'."
    for value in ("mlx5", "=mlx5_1", "mlx5_0"):
        assert said({"NCCL_IB_HCA": value}, hcas=hcas) == []


def test_ib_may_be_off_where_there_is_none() -> None:
    assert said({"NCCL_IB_DISABLE": "1"}) == []
    assert [card for card, _ in said({"NCCL_IB_DISABLE": "1"}, hcas=["mlx5_0"])] == ["warn leftover"]


SOUND = {
    "NCCL's diagnostics": {
        "NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1", "NCCL_DIAGNOSTICS_ECC_THRESHOLD": "0",
        "NCCL_DIAGNOSTICS_IB_BW_TIMEOUT": "30", "NCCL_PROGRESS_COUNTERS": "1",
        "NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC": "60",
    },
    "an NVIDIA image": {
        "NCCL_VERSION": "2.27.3", "CUDA_VERSION": "12.9.1", "CUDA_DRIVER_VERSION": "575.57",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_CACHE_DISABLE": "1", "CUDA_MODULE_LOADING": "LAZY", "TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "TORCH_CUDNN_V8_API_ENABLED": "1",
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "0", "CUDA_ARCH_LIST": "7.5 8.0",
    },
    "EFA": {
        "FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1", "NCCL_DEBUG": "INFO",
        "OFI_NCCL_NIC_DUP_CONNS": "1", "NCCL_SOCKET_IFNAME": "^docker,lo", "NCCL_BUFFSIZE": "8388608",
        "NCCL_P2P_NET_CHUNKSIZE": "524288", "NCCL_TUNER_PLUGIN": "/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so",
    },
    "TCPX": {
        "NCCL_NET": "FasTrak", "NCCL_FASTRAK_CTRL_DEV": "eth0", "NCCL_FASTRAK_NUM_FLOWS": "2", "NCCL_CROSS_NIC": "0",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2", "NCCL_NVLSTREE_MAX_CHUNKSIZE": "131072",
        "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/etc/x", "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    },
    "InfiniBand": {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1", "NCCL_IB_GID_INDEX": "-1", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_SL": "1",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_TOPO_FILE": "/opt/topo.xml",
        "UCX_TLS": "rc,sm", "UCX_NET_DEVICES": "mlx5_0:1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_CUMEM_ENABLE": "-2",
        "NCCL_SHARP_DISABLE": "0", "NCCL_IBEXT_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    },
    "torch": {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "8,2", "TORCH_DISTRIBUTED_DEBUG": "info",
        "TORCH_NCCL_ENABLE_MONITORING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_HOME": "/data",
        "TORCH_LOGS": "+dynamo",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "true", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600", "TORCH_CPP_LOG_LEVEL": "INFO",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_images_and_clouds_set_is_sound(name: str) -> None:
    assert [
        card for card in said(SOUND[name], "nccl", hcas=["mlx5_0", "mlx5_3"]) if not card[0].startswith("info")
    ] == []


# Between ranks

NODES = {"a": [0, 1], "b": [2, 3], "c": [4, 5], "d": [6, 7]}


def between(values: Mapping[int, Mapping[str, str]]) -> list[dict[str, Any]]:
    everyone = {rank: facts(values.get(rank, values[-1])) for rank in range(8)}
    found = testing.judge(variables, everyone, nodes=NODES)
    return [finding for finding in found if finding["code"] == "env.variables.differs"]


def test_the_odd_rank_is_named_with_what_the_others_have() -> None:
    (found,) = between({-1: {"NCCL_CROSS_NIC": "0"}, 5: {"NCCL_CROSS_NIC": "1"}})
    assert found["where"] == {"node": "c", "rank": 5, "variable": "NCCL_CROSS_NIC"} and found["severity"] == "fail"
    assert found["message"] == "NCCL_CROSS_NIC is '1', expected '0' as on 7 of 8 ranks"


def test_half_against_half_names_nobody() -> None:
    (found,) = between({-1: {"NCCL_CROSS_NIC": "0"}, **{rank: {} for rank in range(4)}})
    assert found["where"] == {"variable": "NCCL_CROSS_NIC"}
    assert "not set on ranks 0-3, '0' on ranks 4-7" in found["message"]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_HOSTID", "UCX_NET_DEVICES", "NCCL_ROOT"])
def test_what_each_rank_may_have_its_own_of_is_not_compared(name: str) -> None:
    assert between({-1: {}, **{rank: {name: str(rank)} for rank in range(3)}}) == []


@pytest.mark.parametrize(
    ("name", "severity"), [("NCCL_HOUSE_STYLE", "warn"), ("CUDA_HOUSE_STYLE", "info"), ("UCX_TLS", "warn")]
)
def test_what_is_not_known_is_compared_too(name: str, severity: str) -> None:
    (found,) = between({-1: {}, 3: {name: "1"}})
    assert (found["severity"], found["where"]["rank"]) == (severity, 3)


def test_another_interface_on_one_node_is_a_warning() -> None:
    found = between(
        {-1: {"NCCL_SOCKET_IFNAME": "eth0"}, 2: {"NCCL_SOCKET_IFNAME": "ib0"}, 3: {"NCCL_SOCKET_IFNAME": "ib0"}}
    )
    assert [(finding["severity"], finding["where"]["node"]) for finding in found] == [("warn", "b")] * 2


def test_a_line_of_a_file_is_named() -> None:
    (found,) = testing.judge(variables, {0: facts({}, conf_lines=[("/etc/nccl.conf", 3, "export NCCL_DEBUG")])})
    assert (found["severity"], found["where"]) == ("warn", {"file": "/etc/nccl.conf", "line": 3})
    assert found["message"] == "the line sets a variable 'export NCCL_DEBUG', expected NCCL_DEBUG"


def test_what_all_ranks_have_is_said_once_and_of_no_rank() -> None:
    found = testing.judge(variables, {rank: facts({"NCCL_TIMEOUT": "9"}) for rank in range(8)}, nodes=NODES)
    assert [finding["where"] for finding in found] == [{"variable": "NCCL_TIMEOUT"}]


# NCCL's files


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_environment_wins_over_the_first_file_and_that_over_etc(tmp_path: Path) -> None:
    own = written(tmp_path / ".nccl.conf", "# a comment\nNCCL_A=own\nNCCL_B=own\nNCCL_EMPTY=\nnonsense\n")
    etc = written(tmp_path / "etc", "NCCL_A=etc\nNCCL_B=etc\nNCCL_C=etc")
    conf = config_files.read({"NCCL_A": "environment"}, str(tmp_path), etc)
    assert conf["settings"] == {
        "NCCL_B": {"value": "own", "origin": own}, "NCCL_EMPTY": {"value": "", "origin": own},
        "NCCL_C": {"value": "etc", "origin": etc},
    }  # fmt: skip
    assert (conf["odd_lines"], conf["missing"]) == ([], "")


def test_nccl_conf_file_stands_in_for_the_users_own(tmp_path: Path) -> None:
    written(tmp_path / ".nccl.conf", "NCCL_A=own\n")
    named = written(tmp_path / "named", "NCCL_B=named\nNCCL_C = 1\nexport NCCL_D=1\n")
    conf = config_files.read({"NCCL_CONF_FILE": named}, str(tmp_path), str(tmp_path / "none"))
    assert set(conf["settings"]) == {"NCCL_B"}
    assert conf["odd_lines"] == [(named, 2, "NCCL_C "), (named, 3, "export NCCL_D")]
    missing = config_files.read({"NCCL_CONF_FILE": "~/x"}, str(tmp_path), str(tmp_path / "none"))
    assert missing["missing"] == "~/x" and missing["settings"] == {}


@pytest.mark.parametrize(
    ("nccl", "home", "read"),
    [("2.27.5", "there", {}), ("2.29.7", None, {}), ("2.30.3", "there", {"NCCL_A"}), ("2.30.3", None, {}),
     ("", "there", {"NCCL_A"})],
)  # fmt: skip
def test_whose_home_it_is_depends_on_nccl(
    nccl: str, home: str | None, read: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$HOME since 2.30, before that the password file's: "other" here."""
    for name in ("there", "other"):
        (tmp_path / name).mkdir()
    written(tmp_path / "there" / ".nccl.conf", "NCCL_A=1\n")
    monkeypatch.setattr(nccl_version, "installed", lambda: nccl)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path / "other")))
    environ = {"HOME": str(tmp_path / home)} if home else {}
    assert set(config_files.read(environ, system="/none")["settings"]) == set(read)
    written(tmp_path / "other" / ".nccl.conf", "NCCL_B=1\n")
    is_old = nccl.startswith("2.2")
    assert set(config_files.read(environ, system="/none")["settings"]) == ({"NCCL_B"} if is_old else set(read))


def test_lines_and_values_of_a_file_are_found_on_real_ranks(tmp_path: Path) -> None:
    path = written(tmp_path / "nccl.conf", "NCCL_IB_DISABLE = 1\nNCCL_P2P_DISABLE=1\n")
    ranks = running.plain_ranks(3, NCCL_CONF_FILE="/not/there")
    ranks[1]["NCCL_CONF_FILE"] = path
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.variables")
    told = finished.told()
    assert ELSEWHERE["nccl_conf"].is_told_by(finished.findings()), told
    where = {finding["code"].rpartition(".")[2]: finding["where"] for finding in finished.findings()}
    assert where["conf_line"] == {"node": where["differs"]["node"], "rank": 1, "file": path, "line": 1}, told
    assert where["differs"]["file"] == path and where["leftover"]["variable"] == "NCCL_P2P_DISABLE", told


@pytest.mark.skipif(not library.can_build, reason="the stand-in needs gcc")
def test_what_a_plugin_sets_and_one_that_hangs_are_found_on_real_ranks(tmp_path: Path) -> None:
    environ = at_work.written(tmp_path, {}, {}) | {
        "PREFLIGHT_TEST_LIBNCCL": str(library.nccl(tmp_path)),
        "NCCL_CONF_FILE": "",
    }
    ranks = [{**rank, **environ} for rank in running.plain_ranks(4, NCCL_NET_GDR_LEVEL="PIX")]
    ranks[1]["PLUGIN_NCCL_CROSS_NIC"] = "2"
    ranks[2]["PLUGIN_HANGS"] = "1"
    (tmp_path / "report").mkdir()
    finished = running.run_ranks(tmp_path / "report", ranks, "--only", "env.variables")
    for row in ("nccl_parameters", "nccl_parameters_hang"):
        finds = ELSEWHERE[row].finds
        of_code = [finding for finding in finished.findings() if f"{finding['severity']} {finding['code']}" in finds]
        assert len(of_code) == 1 and ELSEWHERE[row].is_told_by(of_code), finished.told()
        assert ELSEWHERE[row].says in of_code[0]["message"], finished.told()
    assert len(finished.findings()) == 2, finished.told()


@pytest.mark.skipif(not library.can_build, reason="the stand-in needs gcc")
def test_nccls_parameters_are_those_of_the_job_and_a_crash_is_said(tmp_path: Path) -> None:
    """Not those of preflight's worker, which sets NCCL_DEBUG for itself."""
    run = (
        "import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); os.environ['NCCL_DEBUG'] = 'INFO';"
        "from preflight.nccl import parameters; print(parameters.ask({'NCCL_DEBUG': 'WARN'}))"
    )
    command = [sys.executable, "-c", run, str(library.nccl(tmp_path))]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=running.ROOT).stdout
    assert said == "{'NCCL_CROSS_NIC': '<unset>', 'NCCL_DEBUG': 'WARN', 'NCCL_PARAM_DUMP_ALL': 'true'}\n"
    environ = {**os.environ, "PLUGIN_CRASHES": "1"}
    crashed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=running.ROOT, env=environ)
    assert crashed.stdout == "ended by SIGABRT\n"


def test_where_no_libnccl_is_loaded_or_it_has_no_such_call_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parameters.ask({}) is None
    monkeypatch.setattr(parameters, "loaded", lambda: "libc.so.6")
    assert parameters.ask({}) is None
    ranks = {0: facts({}, parameters={"NCCL_A": "1"}), 1: facts({}, parameters=None), 2: facts({})}
    assert testing.judge(variables, ranks) == []


def test_half_of_the_parameters_against_half_names_nobody_and_a_variables_difference_is_told_once() -> None:
    sides = {rank: facts({}, parameters={"NCCL_CROSS_NIC": str(rank)}) for rank in range(2)}
    (found,) = testing.judge(variables, sides)
    assert found["where"] == {"variable": "NCCL_CROSS_NIC"} and "NCCL itself reads" in found["message"]
    both = {rank: facts({"NCCL_CROSS_NIC": str(rank)}, parameters={"NCCL_CROSS_NIC": str(rank)}) for rank in range(2)}
    (found,) = testing.judge(variables, both)
    assert "NCCL itself" not in found["message"]


def test_a_pipe_for_a_file_and_a_value_of_a_megabyte_are_no_hang_and_no_fault(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert config_files.read({"NCCL_CONF_FILE": str(tmp_path / "pipe")}, str(tmp_path), "/none")["missing"]
    ranks = running.plain_ranks(2, NCCL_DEBUG="x" * 100_000, UCX_A="y" * 100_000, UCX_B="z" * 100_000)
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.variables")
    (found,) = finished.findings()
    assert found["where"] == {"variable": "NCCL_DEBUG"} and len(found["message"]) < 300, finished.told()


@pytest.mark.parametrize("name", ["NCCL_TUNER_CONFIG_PATH", "NCCL_TX_BINDINGS", "NCCL_UNIX_CLIENT_PREFIX"])
def test_what_plugins_document_is_known(name: str) -> None:
    assert said({name: "/x"}) == []
