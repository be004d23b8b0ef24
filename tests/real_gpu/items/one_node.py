"""C: the newest NCCL, with which one GPU is a node of several ranks. `new`: under it."""

import json
import lzma
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from preflight.engine.local_launch import free_port
from preflight.nccl import ras
from tests.real_gpu.items import PATIENCE, ROOT, UnexpectedError, Work, codes, item
from tests.real_gpu.items.ranks import (
    APART,
    NEW,
    ONE_NODE,
    ONE_VARIANT,
    SMALL_SWEEPS,
    TOGETHER,
    job,
    needs_one_node,
    places,
    preflight,
    start,
    under_new,
    wait_for,
)  # fmt: skip

CARRIED = ROOT / ".carry" / "libnccl.so.2.xz"
DIAGNOSTICS = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1", "NCCL_DEBUG": "INFO"}


@item("C0", "the slimmed NCCL is unpacked", 20)
def unpacked(work: Work) -> str:
    if work.dry:
        return "not on a CPU"
    NEW.parent.mkdir(parents=True, exist_ok=True)
    part = NEW.with_suffix(".part")
    part.write_bytes(lzma.decompress(CARRIED.read_bytes()))
    part.rename(NEW)
    return f"{NEW.stat().st_size} bytes"


@item("C1", "version 23203 in the process, its parameters known; 2 and 4 ranks on one GPU reduce", 45)
def several_ranks(work: Work) -> str:
    asked = work.run([*under_new(work), *job("parameters")], limit_s=15, name="parameters")
    try:
        found = json.loads(asked.last_line if len(asked.last_line) < 300 else asked.output.strip().splitlines()[-1])
    except ValueError:
        raise UnexpectedError(f"no answer: {asked.last_line}") from None
    work.save("parameters.json", found)
    counts = []
    for world in (2, 4):
        ended = start(
            work,
            places(world, {**TOGETHER, "NCCL_DEBUG": "INFO"}),
            [*under_new(work), *job("once")],
            limit_s=14,
            name=f"of{world}_",
        )
        counts.append(f"{world} ranks: exit {[each.code for each in ended]} {_ways(ended[0].output)}")
        if world == 2 and all(each.code == 0 for each in ended) and not work.dry:
            ONE_NODE.touch()
    known = len(found["parameters"] or ())
    seen = f"version {found['version']} at {found['path']}, {known} parameters; {'; '.join(counts)}"
    return work.expect(found["version"] == 23203 and ONE_NODE.exists(), seen)


def _ways(log: str) -> str:
    return ", ".join(sorted(set(re.findall(r"via (P2P/\S+|SHM/\S+|NET/\S+)", log)))) or "no way told"


def _diagnosed(work: Work, world: int, name: str, more: dict[str, str], own: dict[str, str]) -> tuple[list[str], str]:
    """The lines of NCCL's own diagnostics, and how the ranks ended. `own`: of rank 1."""
    ranks = places(world, {**TOGETHER, **DIAGNOSTICS, **more})
    ranks[1] |= own
    ended = start(work, ranks, [*needs_one_node(work), *job("once")], limit_s=14, name=name)
    lines = [line for each in ended for line in each.output.splitlines() if re.search(r"DIAG|diagnos", line, re.I)]
    return lines, f"exit {[each.code for each in ended]}, {ended[0].seconds:.1f} s"


@item("C2", "NCCL's own diagnostics print their lines, 2 and 4 ranks", 32)
def own_diagnostics(work: Work) -> str:
    found = {world: _diagnosed(work, world, f"of{world}_", {}, {}) for world in (2, 4)}
    work.save("lines.json", found)
    seen = "; ".join(f"{world} ranks: {len(lines)} lines, {how}, {lines[-1:]}" for world, (lines, how) in found.items())
    return work.expect(all(lines for lines, _ in found.values()), seen)


@item("C3", "'NCCL environment: mismatch' for another NCCL_BUFFSIZE; an ECC line at threshold 0", 32)
def diagnostics_of_a_mismatch(work: Work) -> str:
    buffers = _diagnosed(work, 2, "buffer", {}, {"NCCL_BUFFSIZE": "2097152"})
    ecc = _diagnosed(work, 2, "ecc", {"NCCL_DIAGNOSTICS_ECC_THRESHOLD": "0"}, {})
    work.save("lines.json", {"buffers": buffers, "ecc": ecc})
    differs = [line for line in buffers[0] if "mismatch" in line]
    counted = [line for line in ecc[0] if "ECC" in line]
    return work.expect(bool(differs), f"{differs[:2] or buffers[1]}; ECC: {counted[:2] or ecc[1]}")


@item("C4", "RAS answers status, JSON, diagnostics, monitor; a killed rank is told", 45)
def ras_socket(work: Work) -> str:
    if work.dry:
        return "not on a CPU"
    port, answers = free_port(), {}

    def ask(pids: list[int]) -> None:
        if not wait_for(work.folder / "rank0.txt", "at work", 15):
            raise UnexpectedError("the job did not start")
        for name, words in {
            "status": "verbose status", "json": "set format json\nverbose status", "diagnostics": "diagnostics",
            "help": "help",
        }.items():  # fmt: skip
            answers[name] = _asked(port, words, 6)
        answers["ours"] = ras.status(f"localhost:{port}")
        answers["monitor"] = _monitored(port, pids[1])
        for pid in pids:
            _kill(pid)

    ranks = places(2, {**TOGETHER, "NCCL_RAS_ADDR": f"localhost:{port}"})
    start(work, ranks, [*needs_one_node(work), *job("steadily")], limit_s=42, beside=ask)
    for name, text in answers.items():
        work.save(f"{name}.answer", text)
    sizes = {name: len(text) for name, text in answers.items()}
    return work.expect("dead" in answers["monitor"].lower(), f"bytes {sizes}; monitor: {answers['monitor'][-300:]}")


def _asked(port: int, words: str, within_s: float) -> str:
    with socket.create_connection(("localhost", port), within_s) as connection:
        connection.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT 2\n{words}\n".encode())
        return _heard(connection, within_s)


def _heard(connection: socket.socket, within_s: float) -> str:
    end, heard = time.monotonic() + within_s, b""
    while (left := end - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            data = connection.recv(65536)
        except TimeoutError:
            break
        if not data:
            break
        heard += data
    return heard.decode(errors="replace")


def _monitored(port: int, victim: int) -> str:
    """What the monitor says after a rank is killed, and after how many seconds it says that."""
    with socket.create_connection(("localhost", port), 3) as connection:
        connection.sendall(b"CLIENT PROTOCOL 2\nMONITOR all\n")
        first = _heard(connection, 1)
        began = time.monotonic()
        _kill(victim)
        text = first
        while time.monotonic() - began < 14 and "dead" not in text.lower():
            text += _heard(connection, 0.5)
        return f"{text}\n[{time.monotonic() - began:.1f} s after the kill]"


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def _run(work: Work, world: int, *words: str, limit_s: float, **kwargs: Any) -> tuple[list[int], str, str]:
    """(exit codes, screen of rank 0, findings) of preflight on ranks of one node under the newer NCCL."""
    more = kwargs.pop("more", {})
    folder = work.folder / "report"
    arguments = [*words, "--report", str(folder), "--deadline", f"{(limit_s - 5) * PATIENCE:.0f}"]
    ranks = places(world, {**TOGETHER, **more})
    ended = start(work, ranks, [*needs_one_node(work), *preflight(*arguments)], limit_s=limit_s, **kwargs)
    return [each.code for each in ended], ended[0].output, codes(work.findings())


def _transports(screen: str) -> str:
    line = next((line for line in screen.splitlines() if "comm.transports" in line), "no comm.transports")
    return " ".join(line.split())


@item("C5", "--all with 2 ranks as one node: only shared_gpu; P2P or SHM, not sockets", 120)
def whole_plan(work: Work) -> str:
    less = ["--skip", "train,data"] if work.dry else []
    exit_codes, screen, found = _run(work, 2, "--all", *less, *ONE_VARIANT, *SMALL_SWEEPS, limit_s=115)
    fails = [line for line in screen.splitlines() if re.match(r"(FAIL|ERROR|SKIP|WARN)\b", line)]
    others = [each for each in found.split(", ") if "shared_gpu" not in each and each != "no finding"]
    seen = f"exit {exit_codes}; {found}; {_transports(screen)}; {[line[:90] for line in fails]}"
    return work.expect(not others and "Socket" not in _transports(screen), seen)


def _way(name: str, expected: str, more: dict[str, str], only: str, limit_s: float = 26) -> None:
    @item(name, expected, limit_s)
    def way(work: Work) -> str:
        exit_codes, screen, found = _run(work, 2, "--only", only, limit_s=limit_s - 2, more=more)
        return work.expect(
            "no comm.transports" not in _transports(screen), f"exit {exit_codes}; {found}; {_transports(screen)}"
        )


READ = "comm.transports,comm.all_reduce"
_way("C6a", "as it is: ways inside a node; comm.paths times them", {}, "comm.transports,comm.paths", 60)
_way("C6b", "p2p_off for NCCL_P2P_DISABLE=1", {"NCCL_P2P_DISABLE": "1"}, READ)
_way("C6c", "shm_off for NCCL_SHM_DISABLE=1", {"NCCL_SHM_DISABLE": "1"}, READ)
_way("C6d", "P2P without cuMem for NCCL_CUMEM_ENABLE=0", {"NCCL_CUMEM_ENABLE": "0"}, READ)
_way(
    "C6e",
    "SHM without cuMem for NCCL_CUMEM_HOST_ENABLE=0",
    {"NCCL_CUMEM_HOST_ENABLE": "0", "NCCL_P2P_DISABLE": "1"},
    READ,
)


def _apart(name: str, expected: str, flags: list[str], script: str) -> None:
    @item(name, expected, 28)
    def apart(work: Work) -> str:
        new, shell = needs_one_node(work), ["sh", "-c", f'{script} exec "$@"', "sh"]
        folder = work.folder / "report"
        arguments = ["--only", READ, "--report", str(folder), "--deadline", "22"]
        same = {"NODE_RANK": "0", "SLURMD_NODENAME": "node-0"}  # one node to preflight, whatever its host names
        ended = start(
            work, places(2, {**TOGETHER, **same}), [*new, *preflight(*arguments)], limit_s=26,
            before=lambda _: ["unshare", *flags, *shell] if flags else [],
        )  # fmt: skip
        return f"exit {[each.code for each in ended]}; {codes(work.findings())}; {_transports(ended[0].output)}"


_apart("C7a", "ranks in IPC namespaces of their own: what NCCL takes, and what is told", ["--ipc"], "")
_apart(
    "C7b",
    "ranks with a /dev/shm of their own: shm_off or split_node",
    ["--ipc", "--mount"],
    "mount -t tmpfs none /dev/shm;",
)
_apart("C7c", "ranks with host names of their own: split_node", ["--uts"], "hostname rank-$RANK;")


@item("C8", "comm.init.versions: rank 0 with torch's NCCL, rank 1 with the newer one", 30)
def versions(work: Work) -> str:
    folder, new = work.folder / "report", under_new(work)
    words = preflight("--only", "comm.init,env.software", "--report", str(folder), "--deadline", "25")
    ended = start(work, places(2, APART, own_nodes=True), words, limit_s=28, before=lambda rank: new if rank else [])
    found = codes(work.findings())
    return work.expect("versions" in found or "software" in found, f"exit {[each.code for each in ended]}; {found}")


@item("C9a", "rank 1 is stopped before the first collective: it is named", 45, rude=True)
def stopped(work: Work) -> str:
    return _first_hangs(work, "stop", limit_s=42)


@item("C9b", "rank 1's GPU is busy for ever at the first collective: comm.init says so, and comm.paths?", 75, rude=True)
def endless(work: Work) -> str:
    return _first_hangs(work, "endless", limit_s=72, only="comm.init,comm.paths")


def _first_hangs(work: Work, deed: str, limit_s: float, only: str = "comm.init") -> str:
    """With a sitecustomize that does the deed on rank 1 when comm.init is imported."""
    here = Path(__file__).parents[1] / "first_collective"
    ranks = places(2, {**TOGETHER, "FIRST_COLLECTIVE": deed})
    for place in ranks:
        place["PYTHONPATH"] = os.pathsep.join([str(here), str(ROOT)])
    words = preflight("--only", only, "--report", str(work.folder / "report"), "--deadline", f"{limit_s - 6:.0f}")
    began = time.monotonic()
    ended = start(work, ranks, [*needs_one_node(work), *words], limit_s=limit_s)
    found = work.findings()
    messages = " | ".join(f"{each['code']}: {each['message']}" for each in found)
    seen = f"exit {[each.code for each in ended]} after {time.monotonic() - began:.0f} s; {codes(found)}; {messages}"
    return work.expect(any(str((each.get("where") or {}).get("rank")) == "1" for each in found), seen)
