"""Faults of CUDA and of ranks on NCCL: what they print and leave, and what `explain` and `node.kernel` make of it."""

import contextlib
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.real_gpu.items import Work, codes, item
from tests.real_gpu.items.evidence import QUICK_END, beside, card, explain, fault, kernel_since, one
from tests.real_gpu.items.launch import HERE, JOBS, ON_ONE_GPU, PLAIN_LAUNCH, command, plain_ranks
from tests.real_gpu.items.ranks import NEW

SMALL_SHM = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
APP = ("explain.app_crash",)
SANITIZED = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at write_far+0x90 in kernels.cu:2
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f0000000400 is out of bounds
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to \
cudaDeviceSynchronize.
unspecified launch failure
========= ERROR SUMMARY: 33 errors
"""


def dumped_hang(folder: Path) -> None:
    """The dumps that torch would write: rank 1 has not entered the sixth all-reduce."""
    import pickle

    from tests.explain.made_dumps import call, dump

    over = [call(number, size=1024) for number in range(1, 6)]
    for rank in range(3):
        entries = over if rank == 1 else [*over, call(6, size=1024, over=False)]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(*entries, world=3)))


@item("D3", "rank 1 is named from torch's own log and dumps", 50, rude=True)
def hang_of_torch_alone(work: Work) -> str:
    dumps = work.folder / "dumps"
    dumps.mkdir(exist_ok=True)
    prefix = str(dumps / "nccl_trace_rank_")
    env = {
        "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": prefix, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
    }  # fmt: skip
    if work.dry:
        dumped_hang(dumps)
    right, seen = fault(
        work, "left_out", ("explain.collective_mismatch", "explain.slow_rank_timeout"), ranks=3,
        rank=1, env=env, limit_s=40, paths=["dumps"],
    )  # fmt: skip
    sizes = {path.name: path.stat().st_size for path in sorted(dumps.iterdir())}
    by_log = codes(explain(work, "log.txt", name="explain-without-dumps")[:1])
    return work.expect(right and len(sizes) == 3, f"{seen}; dumps {sizes}; by the log alone: {by_log}")


@item("D4", "the watchdog's heartbeat text of rank 1; explain blames rank 1 or nobody", 40, rude=True)
def heartbeat(work: Work) -> str:
    env = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "8", "TORCH_NCCL_ENABLE_MONITORING": "1"}
    since = time.monotonic()
    ended = work.run(command("holds_the_gil", 2), limit_s=35, env={**ON_ONE_GPU, **QUICK_END, **env})
    heard = sorted(set(re.findall(r"[^\n]*(?:[Hh]eartbeat|GIL)[^\n]*", ended.output)))
    found = explain(work, "log.txt")
    blamed = {(each["where"] or {}).get("rank") for each in found}
    seen = f"exit {ended.code}; {len(heard)} lines: {heard[0][:200] if heard else 'none'}; {codes(found)}; "
    return work.expect(bool(heard) and blamed <= {1, None}, seen + kernel_since(work, since, ended.output))


@item("E1", "app_crash, Xid 31 or 13; node.kernel tells an info", 25, rude=True)
def out_of_bounds(work: Work) -> str:
    right, seen = fault(work, "out_of_bounds", APP, limit_s=15)
    work.preflight(
        "run",
        "--level",
        "quick",
        "--only",
        "node.kernel",
        "--report",
        "report",
        limit_s=20,
        name="kernel-run",
        env=HERE,
    )
    above = [found for found in work.findings() if "xid" in found["code"]]
    has_xid = work.dry or re.search(r"Xid (?:.*, )?(?:31|13)\b", seen) is not None
    return work.expect(right and has_xid and not above, f"{seen}; node.kernel above info: {codes(above)}")


@item("E2", "app_crash: a device-side assert", 20, rude=True)
def bad_index(work: Work) -> str:
    return one(work, "bad_index", APP, limit_s=14)


@item("E3", "app_crash three times", 40, rude=True)
def three_texts(work: Work) -> str:
    """Of the last, no kernel runs: the driver refuses it."""
    jobs = ("misaligned", "stack_overflow", "too_many_resources")
    told = [fault(work, job, APP, limit_s=10, name=job) for job in jobs]
    return work.expect(all(right for right, _ in told), " || ".join(seen for _, seen in told))


@item("E4a", "gpu_oom, from torch's text", 20, rude=True)
def out_of_memory(work: Work) -> str:
    return one(work, "out_of_memory", ("explain.gpu_oom",), limit_s=14)


@item("E4b", "gpu_oom, from NCCL's text on a full card", 35, rude=True)
def nccl_out_of_memory(work: Work) -> str:
    """The card is full for the seconds that this takes: nothing else should run on it."""
    return one(work, "nccl_out_of_memory", ("explain.gpu_oom",), ranks=2, limit_s=28)


@item("E4c", "shm_exhausted or nccl_cumem while the card is empty, not gpu_oom", 40, rude=True)
def small_shm(work: Work) -> str:
    before = ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh"]
    expected = ("explain.shm_exhausted", "explain.nccl_cumem")
    sockets = fault(work, "starts", expected, ranks=2, limit_s=18, before=before, name="sockets")
    started = "the sum is 2" in (work.folder / "sockets.txt").read_text()
    told = [(sockets[0] or started, sockets[1] + ("; NCCL started all the same" if started else ""))]
    if NEW.exists():
        env = {"LD_PRELOAD": str(NEW), "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_P2P_DISABLE": "1"}
        told.append(fault(work, "starts", expected, ranks=2, limit_s=18, before=before, env=env, name="one-node"))
    return work.expect(all(right for right, _ in told), " || ".join(seen for _, seen in told))


@item(
    "E5", "gpu.compute ends within its deadline beside an endless kernel; SIGKILL frees the card in 5 s", 50, rude=True
)
def endless_kernel(work: Work) -> str:
    since = time.monotonic()
    with beside(work, "endless", "the kernel runs") as process:
        during = card(work, "smi-during")
        words = (
            "--level",
            "standard",
            "--only",
            "gpu.compute,gpu.health",
            "--deadline",
            str(12),
            "--report",
            "report",
        )
        ended = work.preflight("run", *words, limit_s=16, name="beside", env=HERE)
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        process.wait(timeout=10)
    gone_s = time.monotonic() - killed
    after = card(work)
    time.sleep(1)
    later = card(work, "smi-later")
    found = codes(work.findings()) if (work.folder / "report" / "report.json").exists() else "no report"
    seen = f"exit {ended.code} after {ended.seconds:.1f} s: {found}; killed: gone in {gone_s:.1f} s; during {during}; "
    seen += f"after {after}; a second later {later}; {kernel_since(work, since, f'pid {process.pid}')}"
    return work.expect(ended.code != 124 and gone_s < 5, seen)


def ras_after(work: Work, address: str, words: str, log: str) -> threading.Thread:
    """Asks NCCL's RAS two seconds after the log says this, and saves the answer."""

    def ask() -> None:
        end = time.monotonic() + 25
        while words not in _read(work.folder / log):
            if time.monotonic() > end:
                return
            time.sleep(0.1)
        time.sleep(2)
        host, _, port = address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as ras:
            ras.sendall(b"verbose status\n")
            answer = b""
            while part := ras.recv(65536):
                answer += part
                work.save("ras.txt", answer.decode(errors="replace"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@item("E6", "remote_peer_failure or external_signal on the survivors' words; who died is rank 1", 40, rude=True)
def killed_in_all_reduce(work: Work) -> str:
    env = plain_ranks(3)
    asking = ras_after(work, env["NCCL_RAS_ADDR"], "kills itself", "log.txt")
    expected = (
        "explain.remote_peer_failure",
        "explain.external_signal",
        "explain.slow_rank_timeout",
        "explain.app_crash",
    )
    words = [*PLAIN_LAUNCH, *command("killed")]
    right, seen = fault(work, "killed", expected, limit_s=30, words=words, env=env)
    asking.join(timeout=8)
    ras = " ".join(_read(work.folder / "ras.txt").split()) or "none"
    return work.expect(right, f"{seen}; RAS: {ras[-160:]}")


@item("E7", "gpu_arch_unsupported", 25, rude=True)
def other_arch(work: Work) -> str:
    return one(work, "other_arch", ("explain.gpu_arch_unsupported",), limit_s=18)


@item("E8a", "app_crash: CUDA in a forked worker", 20, rude=True)
def forked_loader(work: Work) -> str:
    return one(work, "forked_loader", APP, limit_s=14)


@item("E8b", "invalid_device_ordinal", 20, rude=True)
def no_such_gpu(work: Work) -> str:
    return one(work, "no_such_gpu", ("explain.invalid_device_ordinal",), limit_s=14)


@item("E8c", "duplicate_gpu; gpu.health names the neighbor", 45, rude=True)
def shared_gpu(work: Work) -> str:
    right, seen = fault(work, "shares_gpu", ("explain.duplicate_gpu",), ranks=2, limit_s=18)
    with beside(work, "holds_memory", "it is held"):
        work.preflight(
            "run",
            "--level",
            "quick",
            "--only",
            "gpu.health",
            "--report",
            "report",
            limit_s=15,
            name="beside",
            env=HERE,
        )
    found = codes(work.findings())
    return work.expect(right and "gpu.health" in found, f"{seen}; beside a neighbor: {found}")


@item("E9", "app_crash from compute-sanitizer's text", 35, rude=True)
def sanitized(work: Work) -> str:
    if work.dry:
        work.save("canned", SANITIZED)
        words = ["sh", "-c", "cat canned; exit 1"]
    else:
        source, program = str(JOBS / "kernels.cu"), str(work.folder / "far")
        built = work.run(["nvcc", "-DWITH_MAIN", "-lineinfo", source, "-o", program], limit_s=15, name="nvcc")
        if built.code:
            raise RuntimeError(f"nvcc: {built.last_line}")
        words = ["compute-sanitizer", "--error-exitcode", "1", program]
    return one(work, "compute-sanitizer", APP, words=words, limit_s=15)


@item("E10a", "the log of a loss that turns NaN: explain blames neither GPU nor network", 35)
def turns_nan(work: Work) -> str:
    ended = work.run(command("turns_nan"), limit_s=25, env=ON_ONE_GPU)
    found = explain(work, "log.txt")
    blames = any(word in each["code"] for each in found for word in ("gpu_hw", "network", "ib_", "remote", "oom"))
    seen = f"exit {ended.code}; {ended.last_line}; explain: {codes(found)}"
    return work.expect("loss nan" in ended.output and not blames, seen)


@item("E10b", "steps slow from step 30 on; explain blames no hardware; train.speed beside a neighbor", 70)
def slows_down(work: Work) -> str:
    ended = work.run(command("slows_down"), limit_s=30, env=ON_ONE_GPU)
    times = [float(ms) for ms in re.findall(r"\| ([\d.]+) ms", ended.output)]
    before, since = sorted(times[5:29] or [0.0]), sorted(times[31:] or [0.0])
    found = codes(explain(work, "log.txt"))
    with beside(work, "computes", "it computes"):
        words = ("--level", "full", "--only", "train.speed", "--report", "report", "--deadline", str(28))
        speed = work.preflight("run", *words, limit_s=32, name="speed", env=ON_ONE_GPU)
    medians = f"{before[len(before) // 2]:.1f} ms, then {since[len(since) // 2]:.1f} ms"
    seen = f"exit {ended.code}; {medians}; explain: {found}; train.speed beside a neighbor: exit {speed.code}, "
    return work.expect(bool(times) and "hw_fault" not in found, seen + codes(work.findings()))


# Lines that only a broken machine's kernel writes


def injected(bus: str) -> list[str]:
    short = bus.lower().removesuffix(".0")
    return [
        f"NVRM: Xid (PCI:{short}): 94, pid=4711, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
        f"NVRM: Xid (PCI:{short}): 119, pid=4711, name=python3, Timeout after 6s of waiting for RPC response!",
        f"NVRM: Xid (PCI:{short}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        f"nvidia {bus.lower()}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible",
        "Kernel panic - not syncing: Fatal hardware error!",
    ]


def _bus(work: Work) -> str:
    """As the kernel writes it: 0000:00:05.0."""
    if work.dry:
        return "0000:1b:00.0"
    asked = work.run(["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"], limit_s=10, name="bus")
    return "0000:" + asked.last_line.partition(":")[2]


def _into_log(work: Work, lines: Sequence[str]) -> list[str]:
    """Writes them into the kernel log; dry into a file that comes over it. Returns the words before preflight."""
    if not work.dry:
        with open("/dev/kmsg", "wb", buffering=0) as log:
            for line in lines:
                log.write(f"<3>{line}\n".encode())
        return []
    now = int((time.monotonic() - 5) * 1e6)
    work.save("kmsg", "".join(f"3,{number},{now + number},-;{line}\n" for number, line in enumerate(["Linux", *lines])))
    over = 'mount --bind "$1" /dev/kmsg; shift; exec "$@"'
    return [*work.on_card(), "unshare", "--mount", "sh", "-ec", over, "sh", str(work.folder / "kmsg")]


@item("E11", "xid 79, 94, 119, sxid and aer are told, each with its device", 40)
def kernel_lines(work: Work) -> str:
    lines = injected(_bus(work))
    work.save("injected.txt", "\n".join(lines))
    words = [*_into_log(work, lines), sys.executable, "-m", "preflight", "run", "--level", "quick", "--only", "node"]
    env = {**work.card_environ(), **HERE}
    ended = work.run([*words, "--report", "report"], limit_s=25, name="node", env=env)
    report = json.loads((work.folder / "report" / "report.json").read_text())
    (check,) = [check for check in report["checks"] if check["check"] == "node.kernel"]
    told = [f"{found['severity']} {found['code']} {found['message']}" for found in check["findings"]]
    work.save("told.txt", "\n".join(told))
    wanted = ("Xid 79", "Xid 94", "Xid 119", "SXid 20034", "node.kernel.aer")
    missing = [want for want in wanted if not any(want in line for line in told)]
    seen = f"exit {ended.code}; {' | '.join(told)}"
    return work.expect(not missing and ended.code == 1, (f"not told: {', '.join(missing)}; " if missing else "") + seen)
