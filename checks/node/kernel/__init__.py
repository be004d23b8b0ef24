"""Kernel: its log shows no faults, and nothing keeps GPUs and network cards from reaching each other over PCIe.

Reads the last two hours of /dev/kmsg, before the run uses any GPU: Xids and SXids with their meaning, PCIe errors
(AER), hung and killed tasks, bugs of the kernel, errors of memory, disks, file servers and network cards. A fault
counts one severity less if the driver has been reloaded since, or reports a recovery. Then reads how GPUs reach each
other and the network cards over PCIe: nvidia_peermem or DMA-BUF, ACS, IOMMU; and the fabric manager on nodes with
NVSwitches. Skips if the log cannot be read.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Level,
    Plan,
    Run,
    Scope,
    Severity,
    Skip,
    option,
    ranges,
    words,
)
from preflight.checks.node.kernel import gpudirect, kernel_log
from preflight.checks.node.kernel.gpudirect import Setup
from preflight.checks.node.kernel.kernel_log import Event, KernelLog
from preflight.failure_book import xids
from preflight.failure_book.book import kernel_rows

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.3)

WINDOW_S = option(float, 7200.0, "how many seconds of the kernel log count")
AER_A_MINUTE = option(float, 31.0, "warn if PCIe corrects at least this many errors of a device per minute")
"""PCIe's limit for 16 lanes of generation 5: one wrong bit in 1e12 (DCGM's rule for PCIe replays)."""

XID = Code(
    "The driver has reported an error of a GPU (Xid).",
    fix="See the finding: the fix depends on the Xid.",
    action=Action.RESET_GPU,
)
SXID = Code(
    "The driver has reported an error of an NVSwitch (SXid).",
    fix="See the finding: the fix depends on the SXid.",
    action=Action.RESET_GPU,
)
RECOVERY = Code("The driver asks for a GPU to be recovered.", fix=xids.ACTIONS["reset"], action=Action.RESET_GPU)
DRIVER = Code("The driver cannot reach or initialize a GPU.", fix=xids.ACTIONS["reboot"], action=Action.REBOOT)
MISMATCH = Code(
    "A program's libraries and the GPU driver have different versions.",
    fix="After an upgrade of the driver: reboot. In a container: start it with the NVIDIA container toolkit, and "
    "without a driver of its own (cat /proc/driver/nvidia/version).",
)
AER = Code(
    "A PCIe device had errors (AER).",
    fix="lspci -vvv -s {device} shows its link; have the card, riser or cable reseated, or replaced if it goes on.",
    action=Action.REPLACE,
)
HUNG = Code(
    "Tasks hung in the kernel.",
    fix="See what hangs (ps -eo pid,stat,wchan:32,cmd | grep ' D'); often a file system or a driver does not "
    "answer; reboot if it persists.",
    action=Action.REBOOT,
)
KERNEL_BUG = Code(
    "The kernel hit a bug of its own (oops).",
    fix="Read the lines after it (dmesg -T); reboot the node, and update its kernel or the named driver if it recurs.",
    action=Action.REBOOT,
)
OUT_OF_MEMORY = Code(
    "The node ran out of memory: the kernel killed processes, or found no free pages.",
    fix="See what takes the memory (ps aux --sort=-rss), and whether a job has left processes behind.",
)
MEMORY_ERROR = Code(
    "Memory or CPU had uncorrected errors.",
    fix="See rasdaemon (ras-mc-ctl --errors) or the BMC's log for the module; drain the node and have it replaced.",
    action=Action.REPLACE,
)
THROTTLED = Code(
    "The CPU overheated and slowed down.",
    fix="Check fans and air flow (ipmitool sensor); ask the data center.",
    action=Action.REPLACE,
)
OPEN_FILES = Code(
    "All processes of the node together opened as many files as the kernel allows.",
    fix="cat /proc/sys/fs/file-nr; raise fs.file-max (sysctl), and see who holds the files (lsof).",
)
DISK = Code(
    "A disk, or the file system on it, had errors.",
    fix="smartctl -a or nvme smart-log on the device; drain the node, and have the disk replaced.",
    action=Action.REPLACE,
)
FILE_SERVER = Code(
    "A file server (NFS, Lustre) did not answer.",
    fix="findmnt -t nfs,nfs4,lustre; df -h on the mount; ping the server, and ask its operators.",
    action=Action.NONE,
)
NIC = Code(
    "A network card has failed: its firmware, its power or its cable, or it stopped sending.",
    fix="Update it (mlxfwmanager) and power-cycle the node; replace the card if the error returns.",
    action=Action.REBOOT,
)
LINK_DOWN = Code(
    "The link of a network card has gone down.",
    fix="ethtool {interface} and ethtool -m {interface}; clean or replace cable and transceiver, check the switch.",
    action=Action.REPLACE,
)
PEERMEM = Code(
    "Network cards cannot reach GPU memory directly; data goes through the host.",
    fix="modprobe nvidia-peermem, and write nvidia-peermem into /etc/modules-load.d/nvidia-peermem.conf; or install "
    "the driver's open kernel modules.",
)
ACS = Code(
    "PCIe switches redirect traffic between GPUs and network cards to the CPU (ACS).",
    fix="Turn ACS off in the BIOS, or at every boot for each port: setpci -s {device} ECAP_ACS+0x6.w=0000",
)
IOMMU = Code(
    "An IOMMU translates the traffic between GPUs and network cards, or refused some of it.",
    fix="Boot with iommu=pt on the kernel's command line, or turn the IOMMU (VT-d, AMD-Vi) off in the BIOS.",
)
FABRIC_MANAGER = Code(
    "The fabric manager is not running; without it CUDA does not start on GPUs with NVSwitches (error 802).",
    fix="systemctl enable --now nvidia-fabricmanager (in the driver's version); see journalctl -u nvidia-fabricmanager",
)

BY_SLUG = {
    "xid": XID, "driver": DRIVER, "iommu": IOMMU, "kernel_bug": KERNEL_BUG, "hung": HUNG, "memory_error": MEMORY_ERROR,
    "throttled": THROTTLED, "out_of_memory": OUT_OF_MEMORY, "open_files": OPEN_FILES, "disk": DISK,
    "file_server": FILE_SERVER, "nic": NIC, "aer": AER,
}  # fmt: skip
"""Codes of lines whose row says all about them."""
FAULTS = ("fail", "warn")
RECOVERY_XID, LOST_XID = xids.RECOVERY, "79"
LINK_XIDS = ("144", "145", "146", "147", "148", "149", "150")
FLAPS, BOOT_S = 2, 600
"""A link may go down once on purpose, and does so while the node boots."""
PROBING_S = 30
"""The driver probes GPUs before it logs that it is loaded: errors in these seconds are current, not from before."""
AT_LEAST_S = 600
"""The shortest time over which a rate is computed: a short burst is not a rate."""
NAMED = 4
NO_LOG: KernelLog = {"reaches_s": 0, "uptime_s": 0, "events": []}
UNPRIVILEGED = "start as root, or a container with --device /dev/kmsg --cap-add SYSLOG"


class Facts(TypedDict):
    log: KernelLog | None
    """None if it may not be read."""
    setup: Setup


def measure(ctx: Context) -> Facts:
    ctx.doing("looking at /proc and /sys")
    setup = gpudirect.setup()
    ctx.doing("reading the kernel log")
    try:
        log = kernel_log.read(ctx[WINDOW_S])
    except kernel_log.KernelLogUnreadable as why:
        unread: Facts = {"log": None, "setup": setup}
        raise Skip(f"the kernel log cannot be read ({why}): {UNPRIVILEGED}", unread) from None
    return {"log": log, "setup": setup}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for rank, measured in facts.items():
        node, log, setup = run.job.node_of(rank).node, measured["log"] or NO_LOG, measured["setup"]
        for in_log in (_xids, _recovery, _driver, _mismatch, _tasks, _plain, _link_down):
            yield from in_log(log, node)
        yield from _aer(log, node, run[AER_A_MINUTE])
        for in_setup in (_acs, _iommu, _fabric_manager):
            yield from in_setup(setup, node)
        yield from _peermem(setup, node, len(run.job.nodes))


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    logs = [log for measured in facts.values() if (log := measured["log"])]
    if not logs:
        return ""
    covered = min(min(run[WINDOW_S], log["uptime_s"], log["reaches_s"]) for log in logs)
    xid_count = sum(event["count"] for log in logs for event in _of(log, "xid"))
    return f"{ranges.count(xid_count, 'Xid')} in the kernel log of the last {words.duration(covered)}"


# The log


def _of(log: KernelLog, *kinds: str) -> list[Event]:
    return [event for event in log["events"] if event["kind"] in kinds]


def _when(event: Event) -> str:
    if event["count"] == 1:
        return f"{words.duration(event['last_s'])} ago"
    first, last = words.duration(event["first_s"]), words.duration(event["last_s"])
    return f"{event['count']:,} times, first {first} and last {last} ago"


def _found(code: Code, severity: Severity, event: Event, node: str, text: str, **details: Any) -> Finding:
    evidence = {"line": event["text"], "count": event["count"], **details.pop("evidence", {})}
    return code.finding(severity, text, node=node, device=event["device"] or None, evidence=evidence, **details)


def _restarted_s(log: KernelLog, device: str) -> float:
    """Seconds since the driver was last loaded, or reported that this GPU no longer needs recovery."""
    ages = [event["last_s"] + PROBING_S for event in _of(log, "loaded")]
    ages += [event["last_s"] for event in _recoveries(log) if event["device"] == device and _asked(event) == "None"]
    return min(ages, default=float("inf"))


def _stepped(log: KernelLog, event: Event, severity: str) -> Severity:
    """One severity less if the driver was reloaded since."""
    if _restarted_s(log, event["device"]) < event["last_s"]:
        severity = {"fail": "warn", "warn": "info"}.get(severity, severity)
    return Severity(severity)


def _uuid(log: KernelLog, device: str) -> str | None:
    """The GPU's UUID, which the driver logs before the GPU's first Xid."""
    return next((event["what"] for event in _of(log, "uuid") if event["device"] == device), None)


def _xids(log: KernelLog, node: str) -> Iterator[Finding]:
    for event in _of(log, "xid", "sxid"):
        if event["what"] != RECOVERY_XID:
            yield _xid(log, event, node)


def _xid(log: KernelLog, event: Event, node: str) -> Finding:
    code, called = (XID, "Xid") if event["kind"] == "xid" else (SXID, "SXid")
    row, links = xids.known(event["kind"], int(event["what"])), event["links"]
    link = links[0] if len(links) == 1 else None
    at = "" if not links else f" on link {links[0]}" if link is not None else f" on links {ranges.to_text(links)}"
    since = "; the driver was reloaded since" if _restarted_s(log, event["device"]) < event["last_s"] else ""
    text = f"{called} {event['what']}{at}, {_when(event)}: {row.meaning}{since}; expected none"
    where = {"uuid": _uuid(log, event["device"]), "link": link}
    fix, action, evidence = xids.ACTIONS[row.action], xids.OPERATORS[row.action], {"links": links}
    return _found(code, _graded(log, event), event, node, text, fix=fix, action=action, evidence=evidence, **where)


def _graded(log: KernelLog, event: Event) -> Severity:
    severity = xids.known(event["kind"], int(event["what"])).severity
    if severity == "graded":
        severity = "fail" if event["grade"] == "fatal" and not _is_of_the_peer(event) else "warn"
    return _stepped(log, event, severity)


def _is_of_the_peer(event: Event) -> bool:
    """Whether an NVLink error was caused by the other end: bits 20 to 25 of the first word after the link tell it."""
    word = re.search(r"\(0x([0-9a-f]+)", event["text"], re.IGNORECASE)
    return event["what"] in LINK_XIDS and word is not None and int(word[1], 16) >> 20 & 0x3F in xids.PEER_CAUSED


def _recoveries(log: KernelLog) -> list[Event]:
    return [event for event in _of(log, "xid") if event["what"] == RECOVERY_XID]


def _asked(event: Event) -> str:
    """None, GPU Reset Required, Node Reboot Required, Drain P2P, ... from "changed from 0x0 (None) to 0x2 (...)"."""
    found = re.search(r" to \w+ \(([^)]*)\)", event["text"])
    return found[1] if found else "unknown"


def _recovery(log: KernelLog, node: str) -> Iterator[Finding]:
    """Recovery requests, unless a failure of the same GPU already says as much."""
    failed = {event["device"] for event in _of(log, "xid") if _graded(log, event) is Severity.FAIL}
    for event in _recoveries(log):
        asked = _asked(event)
        if asked != "None" and event["device"] not in failed:
            severity = _stepped(log, event, "fail" if re.search("Reset|Reboot", asked) else "warn")
            text = f"the driver asks for: {asked} (Xid {RECOVERY_XID}, {_when(event)}); expected none"
            word, uuid = "reboot" if "Reboot" in asked else "reset", _uuid(log, event["device"])
            fix, action = xids.ACTIONS[word], xids.OPERATORS[word]
            yield _found(RECOVERY, severity, event, node, text, uuid=uuid, fix=fix, action=action)


def _driver(log: KernelLog, node: str) -> Iterator[Finding]:
    named = {event["device"] for event in _of(log, "xid") if event["what"] == LOST_XID}
    for event in _of(log, "fallen", "init"):
        if event["device"] not in named:
            named.add(event["device"])
            what = "has lost" if event["kind"] == "fallen" else "could not initialize"
            text = f"the driver {what} the GPU, {_when(event)}; expected never"
            yield _found(DRIVER, _stepped(log, event, "fail"), event, node, text)


def _mismatch(log: KernelLog, node: str) -> Iterator[Finding]:
    """Only a warning: the program may be in someone else's container."""
    for event in _of(log, "mismatch"):
        text = f"the driver refused a program that has libraries of version {event['what']}, {_when(event)}"
        severity = _stepped(log, event, "warn")
        yield _found(MISMATCH, severity, event, node, f"{text}; expected the driver's version")


def _aer(log: KernelLog, node: str, most: float) -> Iterator[Finding]:
    recovered_s = min((event["last_s"] for event in _of(log, "recovered")), default=float("inf"))
    for event in _of(log, "aer"):
        text = f"PCIe errors, {event['what'].lower()}, {_when(event)}; expected"
        if event["what"].startswith("Correct"):
            a_minute = 60 * event["count"] / max(AT_LEAST_S, event["first_s"] - event["last_s"])
            severity = Severity.WARN if a_minute >= most else Severity.INFO
            yield _found(AER, severity, event, node, f"{text} fewer than {most:g} per minute")
        elif event["grade"] == "nonfatal":
            yield _found(AER, Severity.WARN, event, node, f"{text} none")
        elif recovered_s <= event["last_s"]:
            yield _found(AER, Severity.WARN, event, node, f"{text} none; the device has recovered since")
        else:
            yield _found(AER, Severity.FAIL, event, node, f"{text} none")


def _tasks(log: KernelLog, node: str) -> Iterator[Finding]:
    hung, killed = _of(log, "hung", "lockup"), _of(log, "oom")
    if hung:
        text = f"tasks hung in the kernel: {_named(hung)}; expected none"
        yield HUNG.warn(text, node=node, evidence={"line": hung[-1]["text"]})
    if killed:
        text = f"the kernel killed processes because memory ran out: {_named(killed)}; expected none"
        yield OUT_OF_MEMORY.warn(text, node=node, evidence={"line": killed[-1]["text"]})


def _named(events: list[Event]) -> str:
    return words.some((f"{event['what']} ({_when(event)})" for event in events), NAMED)


def _plain(log: KernelLog, node: str) -> Iterator[Finding]:
    """Lines whose row says what they mean, and how bad that is."""
    plain = {known.kind: (known, row) for row in kernel_rows() if (known := row.kernel) and known.severity in FAULTS}
    for event in _of(log, *plain):
        known, row = plain[event["kind"]]
        groups = {"device": event["device"], "what": event["what"], "interface": event["what"]}
        text = f"{row.says.format_map(groups)}, {_when(event)}; expected never"
        code, severity = BY_SLUG[known.code], _stepped(log, event, known.severity)
        fix, action = row.fix or code.fix, Action(row.action) if row.action else code.action
        yield _found(code, severity, event, node, text, fix=fix, action=action)


def _link_down(log: KernelLog, node: str) -> Iterator[Finding]:
    for event in _of(log, "link_down"):
        if event["count"] >= FLAPS and log["uptime_s"] - event["last_s"] > BOOT_S:
            text = f"the link of {event['what']} went down {_when(event)}; expected to stay up"
            yield _found(LINK_DOWN, Severity.WARN, event, node, text, interface=event["what"])


# GPUs and network cards


def _peermem(setup: Setup, node: str, nodes: int) -> Iterator[Finding]:
    """Needs several nodes: on one, nothing goes over the network."""
    if setup["gpus"] and setup["nics"] and not setup["peermem"] and not gpudirect.has_dmabuf(setup):
        say = PEERMEM.warn if nodes > 1 else PEERMEM.info
        nics = ranges.count(len(setup["nics"]), "RDMA device")
        modules = f"the driver's {setup['driver'] or 'unknown'} modules on Linux {setup['kernel']}"
        text = f"{nics}, but nvidia_peermem is not loaded and {modules} have no DMA-BUF; expected one of the two"
        yield say(text, node=node)


def _acs(setup: Setup, node: str) -> Iterator[Finding]:
    ports = setup["redirecting"]
    if setup["bare_metal"] and ports:
        counted = ranges.count(len(ports), "PCIe switch port")
        text = f"ACS redirects at {counted} above GPUs or network cards ({words.some(ports, NAMED)}), expected none"
        yield ACS.warn(text, node=node, device=ports[0], evidence={"ports": ports})


def _iommu(setup: Setup, node: str) -> Iterator[Finding]:
    """Needs two devices: one GPU without a network card has no P2P traffic."""
    translated, peers = setup["translated"], len(setup["gpus"]) + len(setup["nics"])
    if setup["bare_metal"] and setup["gpus"] and translated and peers > 1:
        devices = words.some(translated, NAMED)
        text = f"an IOMMU translates for {devices}, expected no translation (identity) on bare metal"
        yield IOMMU.warn(text, node=node, evidence={"devices": translated})


def _fabric_manager(setup: Setup, node: str) -> Iterator[Finding]:
    if setup["nvswitches"] and setup["gpus"] and setup["driver"] and setup["fabric_manager"] is False:
        text = f"nv-fabricmanager is not running, expected on a node with NVSwitches ({setup['nvswitches']} here)"
        yield FABRIC_MANAGER.fail(text, node=node)
