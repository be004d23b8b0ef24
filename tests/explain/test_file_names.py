"""Whose a log is, by its file's name."""

import pytest

from preflight.explain.read.sources import RanksByProcess, Sources


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("gpu-007.dmesg", "gpu-007"),
        ("dmesg-gpu-007.txt", "gpu-007"),
        ("dmesg.a3-mega-17.log", "a3-mega-17"),
        ("kern.log.dgxb200-03", "dgxb200-03"),
        ("ip-10-0-3-7_console.txt.gz", "ip-10-0-3-7"),
        ("holygpu8a22301.journal", "holygpu8a22301"),
        ("bmc-r4u12.log", "r4u12"),
        ("node04_5.log", "node04"),
        ("dmesg-20260301.log", ""),
        ("dmesg.1", ""),
        ("kern.log.1", ""),
        ("dmesg-run3.txt", ""),
        ("dmesg_job4411.txt", ""),
        ("attempt2.dmesg", ""),
        ("console-1.log", ""),
        ("boot-1.journal", ""),
        ("journal.txt", ""),
        ("train-gpu8.log", ""),
        ("messages-v2.log", ""),
    ],
)
def test_a_file_of_a_nodes_kernel_names_the_node_and_a_date_or_a_run_is_none(name: str, node: str) -> None:
    line = Sources(f"/logs/{name}", RanksByProcess()).read("[201.5] NVRM: no more lines", b"")
    assert line.node == node
