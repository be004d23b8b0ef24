"""EFA: libfabric shows all of a node's devices, and all nodes have the same libfabric and NCCL plugin for it.

NCCL cannot use Amazon's EFA itself; its plugin aws-ofi-nccl does, over libfabric's provider `efa`. On nodes with such
devices one rank runs `fi_info -p efa` (fi_info(1)), in a process that may hang, and looks for the plugin where NCCL and
Amazon's installer put it. net.rdma compares the devices themselves, and comm.transports what NCCL chose. Sends
nothing: measuring loopback bandwidth would need libfabric's fabtests, which are rarely installed.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Severity,
    vote,
    words,
)
from preflight.checks.net.shared import hca
from preflight.sdk.probe import NoReply, Probe

PLAN = Plan(Scope.NODE, Level.STANDARD, deadline_s=30, estimate_s=1.0)

NO_ANSWER = Code(
    "libfabric does not answer.",
    fix="There: fi_info -p efa; dmesg | grep -i efa. NCCL's plugin makes the same query: drain the node, or reload the "
    "driver (modprobe -r efa; modprobe efa).",
    action=Action.REBOOT,
)
MISSING = Code(
    "libfabric does not show an EFA device that the node has.",
    fix="There: fi_info -p efa; ls -l /dev/infiniband; ulimit -l. Give the container all of /dev/infiniband, and "
    "install the EFA software of one release.",
)
VERSIONS = Code(
    "Nodes have different versions of libfabric or of NCCL's plugin for it.",
    fix="Install one release of the EFA software on all nodes, or start one image.",
)
NO_PLUGIN = Code(
    "A node has EFA devices, but no plugin that lets NCCL use them.",
    fix="Install aws-ofi-nccl there, and point LD_LIBRARY_PATH or NCCL_NET_PLUGIN to its libnccl-net-ofi.so.",
)

AMAZON = "0x1d0f"
"""Amazon's PCI vendor id. Its only RDMA device is EFA (the kernel's drivers/infiniband/hw/efa)."""
INSTALLED = "/opt/amazon/efa/bin"
"""Where Amazon's installer puts fi_info, which may not be in PATH."""
FOLDERS = (
    "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "/opt/amazon/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib",
    "/usr/local/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
)  # fmt: skip
"""Where the installer, images and packages put the plugin, if LD_LIBRARY_PATH does not lead to it."""
NAMES = ("libnccl-net-ofi.so", "libnccl-net.so")
LARGEST = 64 * 1024 * 1024
"""How many bytes of a plugin to read; it has a few million."""
PATIENCE_S, KILL_S = 5.0, 2.0
"""To wait for fi_info, which takes a few tenths of a second; to kill one that hangs."""


class Facts(TypedDict):
    devices: list[str]
    """Device names from /sys."""
    seen: list[str] | None
    """Devices that libfabric shows; None if there is no fi_info, or it did not answer."""
    silent: str
    """Why fi_info did not answer."""
    error: str
    """What fi_info says if it shows no device."""
    libfabric: str
    """Its version, or "" if unknown."""
    plugin: str
    """The version of aws-ofi-nccl; "" if it was not found, or does not say."""
    path: str | None
    """The plugin's path; "" if not found, None if the search did not end."""


def measure(ctx: Context, root: str = "") -> Facts:
    """`root`: where tests have a tree with /sys."""
    devices = [name for name in hca.names(root) if hca.vendor(name, root) == AMAZON]
    facts: Facts = {
        "devices": devices,
        "seen": None,
        "silent": "",
        "error": "",
        "libfabric": "",
        "plugin": "",
        "path": "",
    }
    if not devices:
        raise NotApplicable("there is no EFA device in /sys/class/infiniband", facts)
    environ = {name: ctx.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "NCCL_NET_PLUGIN")}
    with Probe({"plugin": _plugin, "libfabric": _libfabric}) as probe:
        ctx.doing("looking for aws-ofi-nccl")
        found = probe.ask("plugin", environ, deadline_s=PATIENCE_S)
        facts["path"], facts["plugin"] = (None, "") if isinstance(found, NoReply) else found.value
        ctx.doing("fi_info -p efa")
        asked = probe.ask("libfabric", environ["PATH"], deadline_s=2 * (PATIENCE_S + KILL_S))
    if isinstance(asked, NoReply):
        facts["silent"] = asked.text
    elif asked.value is not None:
        facts["libfabric"], facts["seen"], facts["error"], facts["silent"] = asked.value
    return facts


def _libfabric(path: str) -> tuple[str, list[str] | None, str, str] | None:
    """(version, devices, why there are none, why there is no answer); None without fi_info. A device has a domain per
    endpoint type: "rdmap0s31-rdm", "rdmap0s31-dgrm"."""
    program = shutil.which("fi_info", path=f"{path}{os.pathsep}{INSTALLED}")
    if program is None:
        return None
    try:
        version = re.search(r"^libfabric: (\S+)", _run(program, "--version").stdout, re.MULTILINE)
        ended = _run(program, "-p", "efa")
    except subprocess.TimeoutExpired:
        return "", None, "", f"no answer within {PATIENCE_S:g} s"
    domains = re.findall(r"^ *domain: (\S+?)(?:-rdm|-dgrm)?$", ended.stdout, re.MULTILINE)
    error = ended.stderr.strip()[:200] or (f"exit status {ended.returncode}" if ended.returncode else "")
    return version[1] if version else "", list(dict.fromkeys(domains)), error, ""


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    """A command that cannot be killed blocks this process, which the caller then abandons."""
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=PATIENCE_S
    )


def _plugin(environ: Mapping[str, str]) -> tuple[str, str]:
    """(path, version) of the first file that NCCL would find and that contains the plugin's name."""
    named = environ["NCCL_NET_PLUGIN"]
    names = (named, f"libnccl-net-{named}.so", *NAMES) if named else NAMES
    folders = [*filter(None, environ["LD_LIBRARY_PATH"].split(":")), *FOLDERS]
    for path in (os.path.join(folder, name) for folder in folders for name in names):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                version = re.search(rb"aws-ofi-nccl ([\w.+-]{1,40})", file.read(LARGEST))
            if version:
                return path, version[1].decode()
    return "", ""


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    with_efa = {rank: reading for rank, reading in facts.items() if reading["devices"]}
    severity = Severity.FAIL if run.job.backend == "nccl" else Severity.WARN
    for rank, reading in with_efa.items():
        node, number = run.job.node_of(rank).node, len(reading["devices"])
        unseen = [name for name in reading["devices"] if name not in (reading["seen"] or ())]
        if reading["silent"]:
            text = f"fi_info -p efa: {reading['silent']}, expected its devices in tenths of a second"
            yield NO_ANSWER.finding(severity, text, node=node)
        elif reading["seen"] is not None and unseen:
            why = f" ({reading['error']})" if reading["error"] else ""
            text = f"libfabric shows {number - len(unseen)} of {number} EFA devices{why}, expected all"
            text += f"; {words.some(unseen, 4)} {'is' if len(unseen) == 1 else 'are'} missing"
            yield MISSING.finding(severity, text, node=node)
    yield from _without_plugin(with_efa, run)
    for called, versions in _versions(with_efa).items():
        yield from _differing(called, versions, run)


def _versions(facts: Mapping[int, Facts]) -> dict[str, dict[int, str]]:
    """Versions by component and rank, without unknown ones."""
    libfabric = {rank: reading["libfabric"] for rank, reading in facts.items() if reading["libfabric"]}
    return {
        "libfabric": libfabric,
        "aws-ofi-nccl": {rank: reading["plugin"] for rank, reading in facts.items() if reading["plugin"]},
    }


def _without_plugin(with_efa: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Blames a node only if other nodes have the plugin: it may be in a place that was not searched."""
    without = [rank for rank, reading in with_efa.items() if reading["path"] == ""]
    if run.job.backend != "nccl" or not without:
        return
    if len(without) == len(with_efa):
        text = "aws-ofi-nccl is in no node's LD_LIBRARY_PATH or usual places; expected it, else NCCL uses sockets"
        yield NO_PLUGIN.info(text)
        return
    for rank in without:
        text = f"aws-ofi-nccl was not found, expected it as on {len(with_efa) - len(without)} of {len(with_efa)} nodes"
        yield NO_PLUGIN.warn(f"{text}: NCCL uses sockets there", node=run.job.node_of(rank).node)


def _differing(called: str, versions: Mapping[int, str], run: Run) -> Iterator[Finding]:
    votes = vote(versions.items())
    for rank, version in votes.odd():
        text = f"{called} is {version}, expected {votes.usual} as on {votes.share('node')}"
        yield VERSIONS.warn(text, node=run.job.node_of(rank).node)
    if not votes.unanimous and not votes.decided:
        sides = [
            f"{version} on {words.some(run.job.node_of(rank).node for rank in ranks)}"
            for version, ranks in votes.ranks_of.items()
        ]
        yield VERSIONS.warn(f"{called} is {words.some(sides)}, expected one version")


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    numbers = sorted({len(reading["devices"]) for reading in facts.values()})
    of = " to ".join(dict.fromkeys((str(numbers[0]), str(numbers[-1]))))
    parts = [
        f"{called} {' and '.join(sorted(set(found.values())))}" for called, found in _versions(facts).items() if found
    ]
    return ", ".join([f"{of} EFA device{'' if numbers[-1] == 1 else 's'} per node", *parts])
