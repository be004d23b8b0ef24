"""One book of the kernel's lines: what node.kernel finds in a line before a job, `preflight explain` finds after it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.node import kernel
from preflight.checks.node.kernel import kernel_log
from preflight.explain import diagnosis
from preflight.explain.inputs import Input
from preflight.explain.read.reader import Reader
from preflight.explain.timeline import Timeline
from preflight.failure_book import xids
from preflight.failure_book.book import book, kernel_rows

UPTIME_S = 20_000
SETUP: Any = {
    "gpus": [], "nics": [], "bare_metal": True, "kernel": "5.15.0-1", "driver": "", "peermem": False, "redirecting": [],
    "translated": [], "nvswitches": 0, "fabric_manager": None,
}  # fmt: skip
OTHERS = ("kernel.ptrace", "kernel.acs_redirect")
"""Lines of programs, about the kernel."""
ROWS = [row for row in book().signatures if row.name.startswith("kernel.") and row.name not in OTHERS]
KNOWN = {row.kernel.kind: row for row in kernel_rows() if row.kernel}


def bare(line: str) -> str:
    """Without what dmesg, a journal or syslog puts before it: /dev/kmsg has no such prefix."""
    for mark in ("NVRM:", "VFS:", "ib1:", "Kernel panic", "Out of memory", "oom-kill:"):
        line = line[line.index(mark) :] if mark in line else line
    return line


def live(line: str, times: int = 1) -> tuple[list[str], set[str]]:
    """The kinds of node.kernel's events, and the severities above info of its findings."""
    text = "".join(f"6,{number},{(UPTIME_S - 400) * 10**6},-;{bare(line)}\n" for number in range(times))
    events = kernel_log.events(kernel_log.records([b"6,0,1,-;Linux\n" + text.encode()]), UPTIME_S)
    facts = {"log": {"reaches_s": 9000, "uptime_s": UPTIME_S, "events": events}, "setup": SETUP}
    found = testing.judge(kernel, {0: facts}, nodes={"node-0": [0]}, settings={})
    return [event["kind"] for event in events], {each["severity"] for each in found} - {"info"}


def lines() -> Iterator[tuple[str, str, int]]:
    """(name, line, how often) of all examples and near misses."""
    for row in ROWS:
        yield f"{row.name} example", row.example, row.least
        yield f"{row.name} near miss", row.near_miss, 1


@pytest.fixture(scope="module")
def afterwards(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """By name, the severities above info of what `explain` finds in a log of that line."""
    folder = tmp_path_factory.mktemp("logs")
    inputs: list[Input] = []
    for number, (name, line, times) in enumerate(lines()):
        (folder / str(number)).write_text(f"{line}\n" * times)
        inputs.append(Input(str(folder / str(number)), name, "log"))
    logs = {file.shown: Timeline() for file in inputs}
    for read in Reader(inputs, book().words):
        logs[read.file].add(read, book().matches(read))
    return {name: {found.severity for found in diagnosis.explain(log, [])} - {"info"} for name, log in logs.items()}


def test_what_one_door_finds_the_other_finds_too(afterwards: Mapping[str, set[str]]) -> None:
    """But what is a matter of the job's owner, whose node is sound: there `explain` alone has a finding."""
    wrong = [(name, line, *odd) for name, line, times in lines() for odd in _odd(line, times, afterwards[name])]
    assert not wrong, "\n".join(map(str, wrong))


def _odd(line: str, times: int, after: set[str]) -> Iterator[tuple[str, set[str]]]:
    kinds, severities = live(line, times)
    of_owner = {kind for kind in kinds if (known := KNOWN[kind].kernel) and known.severity == "info"}
    if severities and not after:
        yield "only node.kernel finds it", severities
    if after and not kinds:
        yield "node.kernel does not know it", after
    if after and not severities and not of_owner and not _is_of_a_program(line):
        yield "only explain finds it", after
    if "fail" in severities and "fail" not in after:
        yield "explain only warns", after


def _is_of_a_program(line: str) -> bool:
    found = KNOWN["xid"].pattern.search(line)
    return found is not None and xids.known("xid", int(found["what"])).afterwards == "program"


def test_a_row_of_node_kernel_says_what_it_can_fill_and_has_a_code() -> None:
    plain = [row for row in kernel_rows() if row.kernel and row.kernel.severity in ("fail", "warn")]
    assert len(plain) > 30
    for row in plain:
        assert row.kernel and row.kernel.code in kernel.BY_SLUG, row.name
        assert "{" not in row.says.format(device="", what="", interface="") + row.fix, row.name


@pytest.mark.parametrize(
    ("line", "finds"),
    [
        ("NVRM: Xid (PCI:0000:3a:00): 63, pid=1, New row marked for remapping", "warn gpu_hw_fault reset_gpu"),
        ("NVRM: Xid (PCI:0000:3a:00): 169, pid=1, x", "fail gpu_hw_fault reset_gpu"),
        ("NVRM: Xid (PCI:0000:3a:00): 999, pid=1, x", "warn gpu_hw_fault none"),
        ("NVRM: Xid (PCI:0000:3a:00): 38, pid=1, Driver firmware error", "warn gpu_hw_fault none"),
        ("NVRM: Xid (PCI:0000:3a:00): 45, pid=1, Ch 00000001", ""),
        ("NVRM: Xid (0000:13:00): 48, An uncorrectable double bit error (DBE)", "fail gpu_hw_fault reset_gpu"),
        ("NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x00000001)", "fail gpu_hw_fault none"),
        ("NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6)", "warn gpu_hw_fault none"),
        ("NVRM: Xid (PCI:0000:9b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link -1 (0x1)", "warn gpu_hw_fault none"),
        ("mlx5_core 0000:02:00.0 eth2: Link down", ""),
    ],
)  # fmt: skip
def test_explain_has_the_table_of_xids(tmp_path: Path, line: str, finds: str) -> None:
    (tmp_path / "log").write_text(f"{line}\n")
    timeline = Timeline()
    for read in Reader([Input(str(tmp_path / "log"), "log", "log")], book().words):
        timeline.add(read, book().matches(read))
    found = diagnosis.explain(timeline, [])
    assert [f"{each.severity} {each.slug} {each.action}" for each in found] == [finds][: bool(finds)]
