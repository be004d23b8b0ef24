"""The table of Xids and SXids, held against what NVIDIA's catalog asks for."""

import re
from pathlib import Path

import pytest

from preflight.explain import diagnosis
from preflight.explain.inputs import Input
from preflight.explain.read.reader import Reader
from preflight.explain.timeline import Timeline
from preflight.failure_book import xids
from preflight.failure_book.book import book

WATCHED = {"nothing", "app", "watch", "idle_reset", "link", "reseat", "versions"}
"""Actions that stop no job at once."""
ALLOWED = {
    "IGNORE": WATCHED,
    "RESTART_APP": WATCHED,
    "CONTACT_SUPPORT": WATCHED,
    "CHECK_MECHANICALS": {"reseat"},
    "UPDATE_SWFW": {"versions"},
    "CHECK_UVM": WATCHED,
    "WORKFLOW_XID_45": WATCHED,
    "WORKFLOW_XID_48": WATCHED | {"reset"},
    "WORKFLOW_NVLINK_ERR": WATCHED | {"reset"},
    "WORKFLOW_NVLINK5_ERR": WATCHED | {"reset"},
    "RESET_GPU": WATCHED | {"reset", "replace"},  # replace begins with a reset and a test
    "RESTART_VM": {"reboot"},
    "RESTART_BM": {"reboot"},
}
"""By NVIDIA's own action, ours that are no more drastic."""
HANGS = "NVRM: Xid (PCI:0000:{}:00): 109, pid=4101, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT"
RAISED = "NVRM: Xid (PCI:0000:{}:00): 13, pid=4101, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)"


def test_no_action_is_more_drastic_than_nvidias() -> None:
    given = [row for row in xids._read() if row.nvidia]
    assert len(given) > 60
    assert [row for row in given if row.action not in ALLOWED[row.nvidia]] == []


def test_what_nvidia_ignores_ends_no_job() -> None:
    ignored = [row for row in xids._read() if row.nvidia == "IGNORE"]
    assert [row for row in ignored if row.severity == "fail" or row.afterwards == "cause"] == []


@pytest.mark.parametrize("cause", range(64))
def test_both_doors_know_the_ends_that_the_peer_has_caused(cause: int) -> None:
    """Bits 20 to 25 of an NVLink error's first word: explain reads them by a pattern, node.kernel as a number."""
    found = re.search(xids._OF_THE_PEER, f"Link 00 (0x{cause << 20 | 0x1C6:08x} 0x00000000)")
    assert (found is not None) == (cause in xids.PEER_CAUSED)


@pytest.mark.parametrize(
    ("lines", "slugs"),
    [
        ([RAISED.format("cb"), HANGS.format("cb")], {"app_crash"}),
        ([RAISED.format("3b"), HANGS.format("cb")], {"gpu_hw_fault", "app_crash"}),
        ([HANGS.format("cb")], {"gpu_hw_fault"}),
    ],
    ids=["the program's own error first", "on another GPU", "alone"],
)
def test_a_program_that_raised_before_its_gpu_hung_is_the_cause(
    tmp_path: Path, lines: list[str], slugs: set[str]
) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
    timeline = Timeline()
    for read in Reader([Input(str(tmp_path / "log"), "log", "log")], book().words):
        timeline.add(read, book().matches(read))
    found = diagnosis.explain(timeline, [])
    assert {each.slug for each in found if each.severity == "fail"} <= slugs
    assert found[0].slug == ("gpu_hw_fault" if "gpu_hw_fault" in slugs else "app_crash")
