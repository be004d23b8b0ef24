"""Why NCCL's start failed, from made-up logs in the wordings of its versions."""

import pytest

from preflight.check import Job, Node, Outcome, Run
from preflight.checks.comm import init
from tests.checks.comm import made_nccl
from tests.checks.comm.failed_ranks import EXTENDED, IFNAME, LOST, NODES, TIMESTAMP, failed, info, judged, warn
from tests.large import timed

ONE_RANK = [
    # (what its log says, slug, words of the message, variable)
    (IFNAME + warn("Bootstrap : no socket interface found", where="bootstrap.cc:45"), "no_interface",
     "connects the nodes: NCCL_SOCKET_IFNAME=eth9", "NCCL_SOCKET_IFNAME"),
    (warn("Bootstrap : no socket interface found", stamp=TIMESTAMP), "no_interface", "found no network", None),
    (warn("NET/Socket : no interface found"), "no_interface", "found no network interface", None),
    (info("NCCL_SOCKET_IFNAME set to eth9") + warn("NET/Socket : No usable listening interface found"),
     "no_interface", "eth9", "NCCL_SOCKET_IFNAME"),
    (warn("no device found matching exactly mlx9, verify NCCL_OOB_NET_IFNAME"), "no_interface", "network device", None),
    (warn("Cuda failure 'system not yet initialized'"), "fabric_manager", "802", None),
    (warn("Cuda failure 802 'system not yet initialized'", stamp=TIMESTAMP), "fabric_manager", "802", None),
    (warn("Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"), "driver", "refuses", None),
    (warn("Cuda failure 803 'system has unsupported display driver / cuda driver combination'"), "driver", "", None),
    (warn("nvmlInit_v2() failed: Driver/library version mismatch"), "driver", "", None),
    (warn("Cuda failure 'the provided PTX was compiled with an unsupported toolchain.'"), "driver", "", None),
    (warn("Cuda failure 36 'API call is not supported in the installed CUDA driver'"), "driver", "", None),
    (warn("Cuda failure 46 'CUDA-capable device(s) is/are busy or unavailable'"), "gpu_failed", "busy", None),
    (warn("Cuda failure 2 'out of memory'"), "gpu_failed", "NCCL could not allocate memory", None),
    (warn("Cuda failure 'no CUDA-capable device is detected'"), "gpu_failed", "no CUDA-capable device", None),
    (warn("Cuda failure 214 'uncorrectable ECC error encountered'"), "gpu_failed", "uncorrectable ECC", None),
    (warn(EXTENDED), "shared_memory", "/dev/shm/nccl-KWfVyt does not grow to 5967876 bytes", None),
    (warn(f"{EXTENDED}, error: No space left on device (28)"), "shared_memory", "does not grow", None),
    (warn("Call to posix_fallocate failed : No space left on device"), "shared_memory", "does not grow", None),
    (warn("Error while attaching to shared memory segment /dev/shm/nccl-abc (size 4096), error: No such file (2)"),
     "shared_memory", "NCCL does not see /dev/shm/nccl-abc", None),
    (warn("Error while creating shared memory segment /dev/shm/nccl-abc (size 4096)"), "shared_memory",
     "could not create /dev/shm/nccl-abc", None),
    (warn("Cuda failure 719 'unspecified launch failure'"), "gpu_failed", "unspecified launch failure", None),
    (warn("Call to ibv_create_cq failed with error Cannot allocate memory"), "memlock", "ibv_create_cq", None),
    (warn("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12"), "memlock", "ibv_reg_mr", None),
    (warn("Call to ibv_modify_qp failed with error Connection timed out"), "rdma", "(Connection timed out)", None),
    (warn("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT"), "rdma",
     "ibv_modify_qp failed (Connection timed out)", None),
    (warn("Call to ibv_reg_mr failed with error Bad address errno 14"), "rdma", "(Bad address)", None),
    (warn("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 999 'unknown error'."),
     "fabric_manager", "the NVSwitches refuse memory for NVLS", None),
    (warn("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration"), "imex",
     "NVLinks connect 8 ranks", None),
    (warn("ncclOsSocketTryAccept: Accept failed: Too many open files"), "open_files", "open files", None),
    (warn("NET/IB : Got completion from peer 10.0.0.2<41234> with status=4 opcode=0 len=0 vendor err 81 (Send)"),
     "rdma", "local protection", None),
    (warn("NET/IB: Got completion from peer 10.0.0.2<41234> with status=IBV_WC_LOC_PROT_ERR(4) opcode=0"), "rdma",
     "local protection", None),
    (warn("Error: network Sockte not found."), "plugin",
     "NCCL has no network Sockte, expected the one that NCCL_NET names", "NCCL_NET"),
    (warn("Error: failed to create shared memory file /dev/shm/nccl-abc, error Permission denied (13)"),
     "shared_memory", "could not create /dev/shm/nccl-abc (Permission denied)", None),
    (warn("MNNVL (cliqueSize 8) is available but not supported on this system. Check the IMEX configuration."), "imex",
     "NVLinks connect 8 ranks", None),
    (warn("P2P is disabled between NVLINK connected GPUs 2 and 3. This should not be the case given their"),
     "gpu_failed", "NVLinks connect GPUs 2 and 3 of the node, but P2P is off", None),
    (warn("Failed to initialize any NET plugin"), "plugin", "could start no transport", None),
]  # fmt: skip


@pytest.mark.parametrize(("log", "slug", "words", "variable"), ONE_RANK)
def test_the_rank_that_tells_of_a_cause_is_named(log: str, slug: str, words: str, variable: str | None) -> None:
    (finding,) = judged({5: log})
    where = {"node": "node-2", "rank": 5} | ({"variable": variable} if variable else {})
    assert (finding["severity"], finding["code"], finding["where"]) == ("fail", f"comm.init.{slug}", where)
    assert words in finding["message"] and "expected" in finding["message"]
    assert finding["noticed_by"] == "0-4,6-7"
    assert finding["fix"] and "{" not in finding["fix"]


def test_the_log_of_nccl_goes_before_the_output() -> None:
    outcome = failed("nothing")
    object.__setattr__(outcome, "nccl_log", warn(EXTENDED))
    assert [finding["code"] for finding in judged({5: outcome})] == ["comm.init.shared_memory"]


@pytest.mark.parametrize(
    ("stack", "reason", "slug"),
    [
        (f"torch.distributed.DistBackendError: NCCL error\nncclSystemError: System call\nLast error:\n{EXTENDED}\n", "",
         "shared_memory"),
        ("", "RuntimeError: CUDA error: invalid device ordinal", "gpu_failed"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "",
         "fabric_manager"),
        ("", "OutOfMemoryError: CUDA out of memory. Tried to allocate 52.00 MiB.", "gpu_failed"),
        ("", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver"),
    ],
)  # fmt: skip
def test_an_exception_tells_too(stack: str, reason: str, slug: str) -> None:
    (finding,) = judged({5: failed("", stack=stack, reason=reason)})
    assert finding["code"] == f"comm.init.{slug}" and finding["where"]["rank"] == 5


def test_a_variable_that_nccl_does_not_print() -> None:
    """NCCL 2.28.9 with NCCL_NET=Nothing, on an H100."""
    log = info("NET/Plugin: Could not find: libnccl-net.so") + warn("Failed to initialize any NET plugin")
    (finding,) = judged({5: log}, environ={"NCCL_NET": "Nothing"})
    assert finding["where"]["variable"] == "NCCL_NET" and finding["message"].endswith(": NCCL_NET=Nothing")


def test_the_first_cause_in_a_log_counts() -> None:
    log = warn(EXTENDED) + warn("Cuda failure 2 'out of memory'") + warn("Failed to initialize any NET plugin")
    assert [finding["code"] for finding in judged({5: log})] == ["comm.init.shared_memory"]


HARMLESS = [
    "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file",
    "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
    "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    "Failed to open libibverbs.so[.1]",
    "NET/IB : No device found.",
    "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
    "NVLS multicast support is not available on dev 0",
    "Call to connect returned Connection refused, retrying",
    "socketPollConnect: connect to 10.0.0.2<41234> returned Connection refused, retrying (2/34) after sleep for 200",
    "MNNVL busId 0x4000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",
    "NCCL_CUMEM_HOST is off, falling back to a /dev/shm/ based implementation",
    "Call to ibv_query_ece not supported",
    "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 7 > 4)",
    "init.cc:1393 -> 3 [Async thread]",
]
SURVIVORS = [
    "socketProgress: Connection closed by remote peer gpu02<41234>",
    "Net : Connection closed by remote peer gpu02<41234>",
    "socketProgressOpt: Call to recv from 10.0.0.2<41234> failed : Connection reset by peer",
    "Net : Call to recv from 10.0.0.2<41234> failed : Broken pipe",
    "[Service thread] Accept failed Resource temporarily unavailable",
    "Socket recv failed while polling for opId=0x7f00",
    "Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0",
    "Cuda failure 1 'invalid argument'",
    "Cuda failure 'operation not supported'",
    "NET/IB : Got completion from peer 10.0.0.2<41234> with error 5, opcode 0, len 0, vendor err 244",
    "NCCL version mismatch with remote peer 10.0.0.2<28028> (local: 22703, remote 22605)",
    "remote process exited or there was a network error",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_give_nothing(text: str) -> None:
    assert judged(dict.fromkeys(range(8), info(text))) == []


@pytest.mark.parametrize("text", SURVIVORS)
def test_what_the_survivors_say_is_no_cause(text: str) -> None:
    assert judged(dict.fromkeys(range(8), warn(text))) == []


def test_a_sound_start_says_nothing_though_a_log_has_the_words() -> None:
    outcomes = {rank: Outcome("measured", log_tail=warn(EXTENDED)) for rank in range(8)}
    assert judged(outcomes) == []
    assert judged(dict.fromkeys(range(8), info(f"NCCL WARNING {EXTENDED}"))) == []


def test_gloo_has_no_log_of_nccl() -> None:
    placed = (Node("node-0", 0, (0, 1)),)
    run = Run(Job("torchrun", 2, "gloo", placed), (0, 1), {0: failed(warn(EXTENDED)), 1: failed()})
    assert list(init.judge({}, run)) == []


# Several ranks


def test_all_ranks_of_a_node_with_a_full_shm() -> None:
    found = judged({4: warn(EXTENDED), 5: warn(EXTENDED)})
    assert [finding["where"]["rank"] for finding in found] == [4, 5] and len(
        {finding["message"] for finding in found}
    ) == 1


@pytest.mark.parametrize("stamp", ["", TIMESTAMP])
def test_unlike_versions(stamp: str) -> None:
    texts = {
        rank: warn(f"Mismatched NCCL version detected : rank 5 version 22602 rank {rank} version 22703", stamp=stamp)
        for rank in (0, 1, 2, 3, 4, 6, 7)
    }
    texts[5] = warn("Mismatched NCCL version detected : rank 0 version 22703 rank 5 version 22602", stamp=stamp)
    (finding,) = judged(texts)
    assert (finding["code"], finding["where"]) == ("comm.init.versions", {"node": "node-2", "rank": 5})
    assert finding["message"] == "has NCCL 2.26.2, expected 2.27.3 as on 7 of 8 ranks named"
    assert finding["noticed_by"] == "0-4,6-7"


def test_two_versions_on_two_ranks_name_nobody() -> None:
    text = warn("Mismatched NCCL version detected : rank 1 version 22602 rank 0 version 22703")
    (finding,) = judged({0: text, 1: text}, {"node-0": (0,), "node-1": (1,)}, world=2)
    assert finding["where"] == {} and finding["message"].startswith("NCCL is '2.27.3' on rank 0, '2.26.2' on rank 1")


def test_two_ranks_on_one_gpu() -> None:
    text = "Duplicate GPU detected : rank {} and rank {} both on CUDA device 3b000"
    (finding,) = judged({2: warn(text.format(2, 3)), 3: warn(text.format(3, 2))})
    assert (finding["code"], finding["where"]) == (
        "comm.init.duplicate_gpu",
        {"node": "node-1", "rank": 2, "peer_rank": 3},
    )
    assert finding["message"] == "rank 2 and rank 3 share one GPU (PCI 3b000), expected one each"
    assert finding["noticed_by"] == "0-1,4-7"


def test_nccl_230_does_not_say_which_ranks_share_a_gpu() -> None:
    text = warn("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this")
    (finding,) = judged(dict.fromkeys(range(8), text))
    assert (finding["code"], finding["where"], finding["noticed_by"]) == ("comm.init.duplicate_gpu", {}, "0-7")


def test_nccl_counts_the_members() -> None:
    """Rank 0 was lost before: NCCL's rank 1 is the job's rank 2."""
    outcomes = {rank: failed(warn("Duplicate GPU detected : rank 1 and rank 2 both on CUDA device 3b000"))
                for rank in range(1, 8)}  # fmt: skip
    placed = tuple(Node(name, at, tuple(ranks)) for at, (name, ranks) in enumerate(NODES.items()))
    run = Run(Job("torchrun", 8, "nccl", placed), tuple(outcomes), outcomes)
    (finding,) = init.judge({}, run)
    assert (finding.where["rank"], finding.where["peer_rank"]) == (2, 3)


def test_a_bad_rdma_path_that_two_nodes_tell_of_names_neither() -> None:
    text = warn("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1")
    (finding,) = judged({2: text, 4: text})
    assert finding["where"] == {} and finding["message"].endswith("on ranks 2,4") and finding["noticed_by"] == "0-7"


def test_a_worker_that_died_of_sigbus() -> None:
    (finding,) = judged({5: Outcome("crashed", reason="died of SIGBUS", signal="SIGBUS")})
    assert (
        finding["code"] == "comm.init.shared_memory"
        and "SIGBUS" in finding["message"]
        and finding["where"]["rank"] == 5
    )
    assert judged({5: Outcome("crashed", reason="died of SIGSEGV", signal="SIGSEGV")}) == []


SILENT = [
    "NET/IB : Got completion from peer 10.0.0.3<41234> with error 12, opcode 0, len 0, vendor err 129",
    "NET/IB: Got completion from peer 10.0.0.3<41234> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0",
    "NET/IB: Got completion from peer 10.0.0.3<41234> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)",
]


@pytest.mark.parametrize("text", SILENT)
def test_an_hca_that_does_not_answer(text: str) -> None:
    (finding,) = judged({0: warn(text), 2: warn(text), 6: warn(text)})
    assert (finding["code"], finding["where"]) == ("comm.init.rdma", {"node": "node-2"})
    assert finding["message"].startswith("ranks 0,2,6 got no answer from node-2 at 10.0.0.3 (RDMA status 12")
    (two,) = judged({0: warn(text)})
    assert two["where"] == {}


# Many


def test_one_of_1024_ranks_is_the_cause() -> None:
    noise = made_nccl.log(made_nccl.Machine(), 0)
    log = (noise * (60_000 // len(noise) + 1))[:60_000]
    ended = {rank: failed(f"{log}\ngpu01:1:1 [0] {LOST}\n") for rank in range(1024)}
    ended[517] = failed(f"{log}\n{warn(EXTENDED)}")
    placed = tuple(Node(f"node-{at}", at, tuple(range(8 * at, 8 * at + 8))) for at in range(128))
    run = Run(Job("torchrun", 1024, "nccl", placed), tuple(ended), ended)
    with timed("comm.init, 1,024 ranks that failed, one of them the cause"):
        (finding,) = init.judge({}, run)
    assert finding.where == {"node": "node-64", "rank": 517} and finding.noticed_by == "0-516,518-1023"


def test_1024_ranks_with_one_cause() -> None:
    ended = {rank: failed(IFNAME + warn("Bootstrap : no socket interface found")) for rank in range(1024)}
    placed = tuple(Node(f"node-{at}", at, tuple(range(8 * at, 8 * at + 8))) for at in range(128))
    run = Run(Job("torchrun", 1024, "nccl", placed), tuple(ended), ended)
    with timed("comm.init, 1,024 ranks with one cause"):
        found = list(init.judge({}, run))
    assert len(found) == 1024 and len({finding.message for finding in found}) == 1
