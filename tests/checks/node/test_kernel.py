"""Lines of kernel logs and trees of /sys as they look on GPU machines, and real runs on nodes that have them."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.node import kernel
from preflight.checks.node.kernel import Facts, kernel_log
from preflight.checks.node.kernel.gpudirect import Setup
from preflight.checks.node.kernel.kernel_log import KernelLogUnreadable
from preflight.failure_book import xids
from tests import made
from tests.checks.node.test_gpudirect import GPU, SWITCH, tree
from tests.faults import ELSEWHERE
from tests.large import timed
from tests.nodes import run_nodes
from tests.running import Finished

UPTIME_S = 20_000
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid=77, name=python3, GPU has fallen off the bus."
NVLINK = "NVRM: Xid (PCI:0000:0a:00): 74, pid='<unknown>', NVLink: fatal error detected on link {}(0x0, 0x0)"
RECOVERY = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x{} ({}) to 0x{} ({})"
DBE = "NVRM: Xid (PCI:0000:9b:00): 48, An uncorrectable double bit error (DBE) has been detected"
QUIET = ("pci 0000:00:01.0: enabling Extended Tags", "usb 1-1: new high-speed USB device", "NVRM: request_mem ok",
         "mlx5_core 0000:17:00.0 eth2: Link up", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
         "Memory cgroup out of memory: Killed process 7 (stress) total-vm:9kB")  # fmt: skip


def records(*lines: str, every_s: float = 1.0, last_s: float = 300.0, boot: float = UPTIME_S) -> bytes:
    """As the kernel would give them: the last is `last_s` old, each is `every_s` after the one before."""
    first = boot - last_s - every_s * (len(lines) - 1)
    heads = [f"6,{number},{int((first + every_s * number) * 1e6)},-;" for number in range(len(lines))]
    return "".join(f"{head}{line}\n SUBSYSTEM=pci\n" for head, line in zip(heads, lines, strict=True)).encode()


SOUND: Setup = {
    "gpus": ["0000:1b:00.0", "0000:9b:00.0"], "nics": ["0000:17:00.0"], "bare_metal": True, "kernel": "5.15.0-1",
    "driver": "open", "peermem": False, "redirecting": [], "translated": [], "nvswitches": 4, "fabric_manager": True,
}  # fmt: skip


def facts(*lines: str, setup: Mapping[str, Any] | None = None, **more: float) -> Facts:
    found = list(kernel_log.records([records("Linux version 6.8.0", *lines, **more)]))
    events = kernel_log.events(found, UPTIME_S)
    merged: Any = {**SOUND, **(setup or {})}
    return {"log": {"reaches_s": 9000, "uptime_s": UPTIME_S, "events": events}, "setup": merged}


def judged(*nodes: Facts, **settings: Any) -> list[dict[str, Any]]:
    named = {f"node-{rank}": [rank] for rank in range(len(nodes))}
    found = testing.judge(kernel, dict(enumerate(nodes)), nodes=named, settings=settings)
    assert not any("{" in finding["fix"] for finding in found), found
    return found


def told(*lines: str, **more: Any) -> list[tuple[str, str, str]]:
    """(severity, slug, device) of what is found on one of two nodes."""
    found = judged(facts(*QUIET), facts(*lines, **more))
    assert {finding["where"]["node"] for finding in found} <= {"node-1"}
    return [
        (finding["severity"], finding["code"].rpartition(".")[2], finding["where"].get("device", ""))
        for finding in found
    ]


# Lines of the log


PORT = "0000:02:00.0"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (QUIET, []),
        ([LOST], [("fail", "xid", GPU)]),
        (["NVRM: Xid (0000:9B:00): 31, Ch 00000003, engmask 00000101"], [("info", "xid", GPU)]),
        (["NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid=1, Contained: SM"], [("warn", "xid", GPU)]),
        (["NVRM: Xid (PCI:0000:9b:00): 999, new"], [("warn", "xid", GPU)]),
        (["NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x1)"], [("fail", "xid", GPU)]),
        (["NVRM: Xid (PCI:0000:9b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link -1 (0x1)"], [("warn", "xid", GPU)]),
        (["nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"],
         [("fail", "sxid", SWITCH)]),
        (["nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"],
         [("warn", "sxid", SWITCH)]),
        (["nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 2 Minion Link DLREQ interrupt"],
         [("info", "sxid", SWITCH)]),
        ([RECOVERY.format(0, "None", 2, "Node Reboot Required")], [("fail", "recovery", GPU)]),
        ([RECOVERY.format(0, "None", 3, "Drain P2P")], [("warn", "recovery", GPU)]),
        ([LOST, RECOVERY.format(0, "None", 2, "OS Reboot")], [("fail", "xid", GPU)]),
        (["NVRM: GPU at 0000:9b:00.0 has fallen off the bus.", "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."],
         [("fail", "driver", GPU)]),
        ([LOST, "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."], [("fail", "xid", GPU)]),
        (["NVRM: The NVIDIA GPU 0000:9b:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
          "NVRM: fallen off the bus and is not responding to commands."], [("fail", "driver", GPU)]),
        (["NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0xffff:1863)"], [("fail", "driver", GPU)]),
        (["NVRM: API mismatch: the client has the version 535.247.01, but\\x0aNVRM: this kernel module has the"],
         [("warn", "mismatch", "")]),
        (["pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0",
          "nvidia 0000:02:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible"],
         [("fail", "aer", PORT)]),
        (["nvidia 0000:02:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible",
          "pcieport 0000:00:01.0: AER: device recovery successful"], [("warn", "aer", PORT)]),
        (["nvme 0000:02:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"],
         [("warn", "aer", PORT)]),
        (["nvme 0000:02:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"], [("info", "aer", PORT)]),
        (["nvme 0000:02:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"] * 400,
         [("warn", "aer", PORT)]),
        (["INFO: task python3:42 blocked for more than 120 seconds."], [("warn", "hung", "")]),
        (["watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:42]"], [("warn", "hung", "")]),
        (["Out of memory: Killed process 7 (python3) total-vm:9kB"], [("warn", "out_of_memory", "")]),
        (["EDAC MC1: 1 UE memory read error on CPU_SrcID#0"], [("warn", "memory_error", "")]),
        (["{1}[Hardware Error]: event severity: recoverable"], [("warn", "memory_error", "")]),
        (["CPU4: Package temperature above threshold, cpu clock throttled (total events = 9)"],
         [("warn", "throttled", "")]),
        (["mlx5_core 0000:02:00.0: print_health_info:431:(pid 0): synd 0x1: firmware internal error"],
         [("warn", "nic", PORT)]),
        (["mlx5_core 0000:02:00.0: wait_func:1135:(pid 7): MODIFY_CQ(0x403) timeout. Will cause a leak"],
         [("warn", "nic", PORT)]),
        (["NETDEV WATCHDOG: eth0 (bnxt_en): transmit queue 3 timed out"], [("warn", "nic", "")]),
        (["Oops: 0002 [#1] SMP NOPTI"], [("warn", "kernel_bug", "")]),
        (["NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"], [("warn", "hung", "")]),
        (["mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be"], [("warn", "memory_error", "")]),
        (["python3: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)"], [("warn", "out_of_memory", "")]),
        (["nvme nvme0: controller is down; will reset: CSTS=0xffffffff"], [("warn", "disk", "")]),
        (["XFS (md127): log I/O error -5"], [("warn", "disk", "")]),
        (["LustreError: 167-0: s-MDT0000-mdc-ff: This client was evicted by s-MDT0000; in progress operations"],
         [("warn", "file_server", "")]),
        (["amdgpu 0000:02:00.0: amdgpu: GPU reset begin!"], [("fail", "driver", PORT)]),
        (["mlx5_core 0000:02:00.0 eth2: Link down"], []),
        (["mlx5_core 0000:02:00.0 eth2: Link down", "mlx5_core 0000:02:00.0 eth2: Link up"] * 2,
         [("warn", "link_down", PORT)]),
    ],
)  # fmt: skip
def test_a_line_is_understood(lines: Sequence[str], found: list[tuple[str, str, str]]) -> None:
    assert told(*lines) == found


@pytest.mark.parametrize(
    ("later", "severities"),
    [
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86", ["warn", "info"]),
        (RECOVERY.format(1, "GPU Reset Required", 0, "None"), ["warn", "info"]),
        (RECOVERY.format(1, "GPU Reset Required", 0, "None").replace("9b", "9c"), ["fail", "warn"]),
    ],
    ids=["driver loaded", "recovered", "another recovered"],
)
def test_what_was_before_a_new_start_counts_less(later: str, severities: list[str]) -> None:
    before = [DBE, "NVRM: Xid (PCI:0000:9b:00): 63, pid=1, Row Remapper: New row marked for remapping"]
    assert [severity for severity, *_ in told(*before, later, every_s=60)] == severities
    assert [severity for severity, *_ in told(later, *before, every_s=60)] == ["fail", "warn"]


def test_what_the_driver_met_while_it_was_loaded_still_counts() -> None:
    """It probes the GPUs first, and says that it is loaded after."""
    loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86"
    assert told(LOST, loaded) == [("fail", "xid", GPU)]


def test_a_flood_of_one_kind_hides_no_other() -> None:
    flood = [f"Out of memory: Killed process {pid} (job{pid})" for pid in range(300)]
    assert ("fail", "xid", GPU) in told(*flood, LOST)


def test_an_error_of_the_other_end_of_a_link_is_milder() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)"
    assert told(line) == [("warn", "xid", GPU)]


def test_links_that_flap_while_the_node_boots_are_sound() -> None:
    down = ["mlx5_core 0000:02:00.0 eth2: Link down"] * 3
    assert told(*down, last_s=UPTIME_S - 500) == []
    assert len(told(*down, last_s=UPTIME_S - 700)) == 1


def test_equal_lines_are_one_finding_with_its_links_and_its_gpu() -> None:
    named = "NVRM: GPU at PCI:0000:0a:00: GPU-b51b2a4e-0000-1111-2222-333344445555"
    (finding,) = judged(facts(named, NVLINK.format(3), NVLINK.format(3), every_s=60))
    assert finding["where"] == {"node": "node-0", "device": "0000:0a:00.0", "link": 3, "uuid": named[-40:]}
    words = "Xid 74 on link 3, 2 times, first 6 min and last 5 min ago: an NVLink failed; expected none"
    assert finding["message"] == words and "nvidia-smi nvlink -s -i 0000:0a:00.0" in finding["fix"]
    (several,) = judged(facts(NVLINK.format(3), NVLINK.format(14)))
    assert "link" not in several["where"] and "on links 3,14," in several["message"]
    many = judged(facts(LOST, LOST.replace("9b", "9c")))
    assert [found["where"]["device"] for found in many] == ["0000:9b:00.0", "0000:9c:00.0"]


def test_the_table_is_whole() -> None:
    numbers = {number for log, number in xids._table() if log == "xid"}
    from_dcgm = {48, 74, 79, 95, 119, 120, 140, 94, 63, 64, 31, 32, 43, 38, 39, 42, 54, 56, 57, 58, 60, 61, 62, 67, 73,
                 78, 121, 137} - {42}  # fmt: skip
    assert from_dcgm | set(range(144, 151)) | {13, 45, 46, 65, 68, 69, 80, 81, 92, 109, 143} <= numbers
    for row in xids._table().values():
        assert row.severity in ("fail", "warn", "info", "graded") and row.action in xids.ACTIONS
        assert row.source and row.meaning and row.meaning[-1] != "."
    assert all(xids.known("xid", number).severity == "info" for number in (13, 31, 43, 45))


def test_of_512_nodes_one_is_odd() -> None:
    nodes = {rank: facts(*QUIET) for rank in range(512)}
    nodes[300] = facts(*QUIET, *[LOST.replace("9b", f"{bus:02x}") for bus in range(8)])
    named = {f"node-{rank}": [rank] for rank in nodes}
    with timed("node.kernel, 512 nodes of which one is odd"):
        found = testing.judge(kernel, nodes, nodes=named)
    assert {finding["where"]["node"] for finding in found} == {"node-300"} and len(found) == 8


# Reading it


def test_a_file_is_read_across_its_chunks(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(records(QUIET[0], *[LOST] * 1000) + b"6,1,1,-;cut")
    found = list(kernel_log.records(kernel_log.chunks(str(log))))
    assert [record.text for record in found] == [QUIET[0], *[LOST] * 1000]


def test_a_record_of_several_lines_is_one() -> None:
    (record,) = kernel_log.records([b"4,1,2500000,-;caf\\xc3\\xa9 is\\x0a  shut\n DEVICE=+pci:1\n"])
    assert (record.at_s, record.text) == (2.5, "caf\u00e9 is shut")


def test_what_is_older_than_the_window_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(kernel_log, "PATH", str(tmp_path / "kmsg"))
    (tmp_path / "kmsg").write_bytes(records(LOST, DBE, every_s=50, last_s=20, boot=now))
    assert [event["what"] for event in kernel_log.read(100)["events"]] == ["79", "48"]
    read = kernel_log.read(60)
    assert [event["what"] for event in read["events"]] == ["48"] and read["reaches_s"] in (70, 71, 72)


def test_overwritten_records_are_stepped_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the device does it: a read fails once with EPIPE, and at the end with EAGAIN."""
    answers: list[bytes | OSError] = [BrokenPipeError(), records(LOST), BlockingIOError()]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    (tmp_path / "kmsg").touch()
    monkeypatch.setattr("os.read", read)
    found = list(kernel_log.records(kernel_log.chunks(str(tmp_path / "kmsg"))))
    monkeypatch.undo()
    assert [record.text for record in found] == [LOST] and not answers


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/no/kmsg", "No such file"), ("/dev/null", "is not the kernel's"),
        ("/proc/self/mem", "Input/output error"),  # a file that can be opened, and not be read from its beginning
    ],
)  # fmt: skip
def test_what_is_no_log_is_unreadable(path: str, why: str) -> None:
    with pytest.raises(KernelLogUnreadable, match=why):
        list(kernel_log.chunks(path))


def test_an_endless_log_is_read_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kmsg").write_bytes(records(LOST))
    monkeypatch.setattr(kernel_log, "MOST_BYTES", 1)
    assert len(list(kernel_log.chunks(str(tmp_path / "kmsg")))) == 1


def test_a_log_without_a_record_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kmsg").write_text("6,1,soon,-;NVRM: no time\nNVRM: no head\n")
    monkeypatch.setattr(kernel_log, "PATH", str(tmp_path / "kmsg"))
    with pytest.raises(KernelLogUnreadable, match="holds no records"):
        kernel_log.read(100)


def test_the_summary_says_how_far_the_log_reaches() -> None:
    run = Run(made.job(1, 1), (0, 1), {})
    whole, short = facts(*QUIET), facts(LOST)
    assert kernel.summarize({0: whole}, run) == "0 Xids in the kernel log of the last 2 h"
    assert short["log"]
    short["log"]["reaches_s"] = 720
    assert kernel.summarize({0: whole, 1: short}, run) == "1 Xid in the kernel log of the last 12 min"
    assert kernel.summarize({0: {**whole, "log": None}}, run) == ""


# GPUs and network cards


NO_DMABUF = {"driver": "proprietary"}


@pytest.mark.parametrize(
    ("setup", "found"),
    [
        ({}, []),
        ({"kernel": "5.4.0"}, ["warn peermem"]),
        (NO_DMABUF, ["warn peermem"]),
        ({"driver": ""}, []),
        ({**NO_DMABUF, "peermem": True}, []),
        ({**NO_DMABUF, "nics": []}, []),
        ({"redirecting": [PORT]}, ["warn acs"]),
        ({"redirecting": None}, []),
        ({"redirecting": [PORT], "translated": [GPU], "bare_metal": False}, []),
        ({"translated": [GPU]}, ["warn iommu"]),
        ({"translated": [GPU], "gpus": [GPU], "nics": []}, []),
        ({"fabric_manager": False}, ["fail fabric_manager"]),
        ({"fabric_manager": None}, []),
        ({"fabric_manager": False, "nvswitches": 0}, []),
    ],
    ids=str,
)
def test_what_keeps_gpus_and_cards_apart(setup: Mapping[str, Any], found: list[str]) -> None:
    assert [f"{severity} {slug}" for severity, slug, _ in told(setup=setup)] == found


def test_without_a_log_the_rest_is_judged() -> None:
    (found,) = judged({**facts(setup={"redirecting": [PORT]}), "log": None})
    assert found["code"] == "node.kernel.acs"


def test_on_one_node_nothing_goes_over_the_network() -> None:
    assert [finding["severity"] for finding in judged(facts(setup=NO_DMABUF))] == ["info"]


# Real runs


ONLY = ("--only", "node.kernel")
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)


OLDER_S = 10_000
"""How much older a rank finds its machine: links that go down while one boots are no finding."""
AS_OLDER = ("unshare", "--time", "--monotonic", str(OLDER_S), "--boottime", str(OLDER_S), "--fork", "--kill-child")


def logging(folder: Path, name: str, *lines: str, then: str = "true", older_s: float = 0.0) -> str:
    """What a rank begins with to have these lines in its kernel log."""
    boot = time.monotonic() + older_s
    (folder / name).write_bytes(records("Linux version 6.8.0", *lines, last_s=30, boot=boot))
    return f"mount --bind {folder / name} /dev/kmsg && {then}"


def nodes(folder: Path, *lines: str, then: str = "true", older_s: float = 0.0) -> Finished:
    """Three; the second has these lines."""
    before = {rank: logging(folder, f"kmsg-{rank}", *QUIET) for rank in (0, 2)}
    before[1] = logging(folder, "kmsg-1", *QUIET, *lines, then=then, older_s=older_s)
    return run_nodes(folder, 3, *ONLY, before=before, wrap={1: AS_OLDER} if older_s else {})


def is_told(name: str, finished: Finished) -> None:
    found, row = finished.findings(), ELSEWHERE[name]
    assert row.is_told_by(found), finished.told()
    assert any(row.says in finding["message"] for finding in found), finished.told()
    assert {finding["where"]["node"] for finding in found} == {"node-1"}, finished.told()
    assert finished.exit_codes == [row.exit_code] * 3, finished.told()


@needs_mounts
def test_a_lost_gpu_and_a_broken_link_of_a_switch(tmp_path: Path) -> None:
    """What an application did wrong is told beside them, and is no fault of the node."""
    link = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    application = "NVRM: Xid (PCI:0000:9c:00): 31, pid=7, name=python3, MMU Fault"
    others = (
        "NVRM: Xid (PCI:0000:9d:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "NVRM: GPU 0000:9e:00.0: RmInitAdapter failed! (0x62:0xffff:1863)",
    )
    finished = nodes(tmp_path, LOST, link, application, *others)
    is_told("kernel_xid", finished)
    check = finished.check("node.kernel")
    severities = [finding["severity"] for finding in check["findings"]]
    assert sorted(severities) == ["fail", "fail", "fail", "fail", "info"], finished.told()
    assert check["summary"].startswith("3 Xids in the kernel log of the last "), finished.told()


@needs_mounts
def test_troubles_of_the_node(tmp_path: Path) -> None:
    lines = (
        "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
        "INFO: task python3:42 blocked for more than 120 seconds.",
        "Out of memory: Killed process 7 (python3) total-vm:9kB",
        "EDAC MC1: 1 UE memory read error on CPU_SrcID#0",
        "CPU4: Package temperature above threshold, cpu clock throttled (total events = 9)",
        "mlx5_core 0000:02:00.0: print_health_info:431:(pid 0): synd 0x1: firmware internal error",
        *["mlx5_core 0000:02:00.0 eth2: Link down", "mlx5_core 0000:02:00.0 eth2: Link up"] * 2,
        "NVRM: API mismatch: the client 'python3' (pid 7)\\x0aNVRM: has the version 570.86, but\\x0aNVRM: this",
    )
    is_told("kernel_troubles", nodes(tmp_path, *lines, older_s=OLDER_S))


@needs_mounts
def test_disks_file_servers_and_a_bug_of_the_kernel(tmp_path: Path) -> None:
    lines = (
        "kernel BUG at fs/ext4/inode.c:2721!",
        "I/O error, dev nvme2n1, sector 6442712256 op 0x1:(WRITE) flags 0x1000 phys_seg 8 prio class 0",
        "nfs: server 10.7.192.16 not responding, still trying",
        "VFS: file-max limit 1000000 reached",
    )
    is_told("kernel_storage", nodes(tmp_path, *lines))


def places(root: Path) -> str:
    """Mounts a tree over /proc and /sys."""
    whole = ("/sys/class", "/sys/bus/pci/devices", "/proc/driver")
    single = ("/proc/cpuinfo", "/proc/sys/kernel/osrelease")
    return " && ".join(f"mount --bind {root}{place} {place}" for place in (*whole, *single))


@needs_mounts
def test_gpus_and_cards_that_are_kept_apart(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", driver="Kernel Module")
    finished = nodes(tmp_path, then=places(root))
    is_told("kernel_apart", finished)


@pytest.fixture
def unprivileged() -> Iterator[Sequence[str]]:
    """What a command begins with that may not read the kernel log."""
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "0"
    if os.geteuid() != 0 or not shutil.which("setpriv") or not restricted:
        pytest.skip("setpriv makes root one who may not read the kernel log, where that is restricted")
    yield ["setpriv", "--inh-caps=-syslog,-sys_admin", "--bounding-set=-syslog,-sys_admin"]


def test_no_permission_is_a_skip(unprivileged: Sequence[str], tmp_path: Path) -> None:
    finished = run_nodes(tmp_path, 2, *ONLY, wrap={0: unprivileged, 1: unprivileged})
    check = finished.check("node.kernel")
    assert (check["status"], check["findings"]) == ("skip", []), finished.told()
    assert check["skipped"].startswith("the kernel log cannot be read (/dev/kmsg: Operation not permitted): start")


@needs_mounts
def test_without_a_log_the_rest_is_told(tmp_path: Path) -> None:
    no_log = f"mount --bind /dev/null /dev/kmsg && {places(tree(tmp_path / 'root', driver='Kernel Module'))}"
    finished = run_nodes(tmp_path, 2, *ONLY, before={1: no_log})
    of_node_1 = [finding for finding in finished.findings() if finding["where"]["node"] == "node-1"]
    assert ELSEWHERE["kernel_apart"].is_told_by(of_node_1), finished.told()  # node-0 has this machine's own log
    assert "rank 1: the kernel log" in str(finished.check("node.kernel")["skipped"]), finished.told()
