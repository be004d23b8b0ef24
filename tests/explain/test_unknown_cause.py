"""Where the cause is unknown, explain names no culprit, and says where the failure was seen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.explain.candidates import Candidate
from preflight.explain.command import explain_paths
from preflight.failure_book.book import Signature, book
from preflight.results import report
from preflight.results.report_nodes import bad_nodes
from tests.made_failures import conclude, lines

UNKNOWN = {
    "task(s) 3 on node-a ended": ["srun: error: node-a: task 3: Exited with exit code 1"],
    "on node-a: mpirun": ["[node-a:1234] Primary job terminated normally, but 1 process returned an error."],
    "rank 2 ended": ["Failures:", " rank : 2 (local_rank: 2)", " exitcode : 1 (pid: 8)", " host : node-c"],
    "(node-b, gpu 3)": ["node-b:812:990 [3] init.cc:1 NCCL WARN [Rem Allocator] weird failure"],
    "node-a, node-b": [f"srun: error: node-{name}: task 3: Exited with exit code 1" for name in "ab"],
    "rank 1": ["[rank1]: subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1."],
}  # fmt: skip
"""Logs of failures that any node may have caused, by what the message says of where they were seen."""

KNOWN = {
    "rank": ["[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    "node": ["node-b:812:990 [3] init.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"],
}
"""Logs of failures that name their cause, by a key of the culprit."""


def reported(folder: Path, texts: list[str]) -> report.Report:
    (folder / "job.log").write_text("\n".join(texts) + "\n")
    return explain_paths([str(folder / "job.log")])


@pytest.mark.parametrize("seen", UNKNOWN)
def test_an_unknown_cause_names_nobody_and_says_where_it_was_seen(seen: str, tmp_path: Path) -> None:
    made = reported(tmp_path, UNKNOWN[seen])
    first = next(iter(made.findings))
    assert (first.code, first.where) == ("explain.unknown", {}), first
    assert all(word in first.message for word in seen.split(", ")) and first.evidence["seen_at"], first
    assert bad_nodes(made) == []


@pytest.mark.parametrize("key", KNOWN)
def test_a_known_cause_keeps_its_culprit(key: str, tmp_path: Path) -> None:
    first = next(iter(reported(tmp_path, KNOWN[key]).findings))
    assert first.code != "explain.unknown" and key in first.where and "seen_at" not in first.evidence, first


def test_a_second_possibility_that_names_no_cause_names_nobody_either(tmp_path: Path) -> None:
    texts = ["srun: error: node-a: task 3: Exited with exit code 1", "[rank5]: Fatal Python error: Aborted"]
    for finding in reported(tmp_path, texts).findings:
        assert finding.where == {}, finding


def _rows() -> Iterator[Signature]:
    return (row for row in book().by_name.values() if row.slug and row.role != "clue")


def test_no_signature_breaks_the_rule() -> None:
    """The example of each, by itself in a log."""
    unknown = 0
    for row in _rows():
        for found in conclude(lines([row.example], rank=4, node="node-b"), book=book()):
            if found.confidence == "none" or found.slug == "unknown":
                unknown += 1
                assert found.where == {}, (row.name, found)
    assert unknown >= 10


def test_an_unknown_cause_of_an_earlier_report_names_nobody() -> None:
    """A report of an older preflight, read again."""
    old = Candidate(
        "unknown", "failure", 20, "node-a ended", (0.0, 0, ""), {"node": "node-a"}, quotes=(("report.json", "it"),)
    )
    found = conclude(lines(["step 1"]), artifacts=[old])
    assert (found[0].slug, found[0].where, found[0].seen_at) == ("unknown", {}, {"node": "node-a"})
