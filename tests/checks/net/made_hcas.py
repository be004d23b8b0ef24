"""Trees of /sys with made-up HCAs, read by the real code."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Context, NotApplicable
from preflight.checks.net import rdma, rdma_errors
from tests import made, running
from tests.faults import ELSEWHERE
from tests.nodes import run_nodes
from tests.running import Finished

LINK_LOCAL, IPV4, IPV6, EMPTY = (
    "fe80:0000:0000:0000:a288:c2ff:fe00:{:04x}", "0000:0000:0000:0000:0000:ffff:0a00:{:04x}",
    "2001:0db8:0000:0000:0000:0000:0000:{:04x}", "0000:0000:0000:0000:0000:0000:0000:0000",
)  # fmt: skip
V1, V2 = "IB/RoCE v1", "RoCE v2"
ROCE = {0: (LINK_LOCAL, V1), 1: (LINK_LOCAL, V2), 2: (IPV4, V1), 3: (IPV4, V2), 4: (EMPTY, "")}
"""As mlx5 fills its table for an interface with an IPv4 address."""
LOCAL_ONLY = {0: (LINK_LOCAL, V1), 1: (LINK_LOCAL, V2), 2: (EMPTY, ""), 3: (EMPTY, "")}


@dataclass(frozen=True)
class Card:
    """Beginning as a ConnectX-7 for InfiniBand."""

    name: str
    number: int = 0
    vendor: str = "0x15b3"
    board: str = "MT_0000000838"
    firmware: str = "28.39.2048"
    layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    lanes: tuple[str, str] = ("32.0 GT/s PCIe", "16")
    gids: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    bus: str = ""
    device: str = "0x1021"
    """Of PCI; 0x101e is a virtual function."""
    verbs: str = "here"
    """here, closed (no device file), or unknown (no such class)."""

    def write(self, root: Path) -> None:
        bus = self.bus or f"0000:{0x10 + self.number:02x}:00.0"
        device = root / "sys/class/pci" / bus
        speed, width = self.lanes
        told = {"vendor": self.vendor, "device": self.device, "numa_node": "-1" if self.number < 4 else "1"}
        _write(device, {**told, "current_link_speed": speed, "current_link_width": width})
        folder = root / "sys/class/infiniband" / self.name
        _write(folder, {"fw_ver": self.firmware, "board_id": self.board, "hca_type": "MT4129"})
        (folder / "device").symlink_to(os.path.relpath(device, folder))
        port = folder / "ports/1"
        told = {"state": self.state, "phys_state": self.physical, "rate": self.rate, "link_layer": self.layer}
        _write(port, told)
        _write(port / "counters", {"symbol_error": "0", "port_xmit_data": "99", "VL15_dropped": "7"})
        of = {name: "hw_counters" if name.endswith("_err") else "counters" for name in self.counters}
        for name, count in self.counters.items():
            _write(port / of[name], {name: str(count)})
        for index, (gid, kind) in self.gids.items():
            _write(port / "gids", {str(index): gid.format(self.number)})
            if kind:
                _write(port / "gid_attrs/types", {str(index): kind})
                _write(port / "gid_attrs/ndevs", {str(index): f"eth{self.number}"})
        if self.verbs != "unknown":
            _write(root / f"sys/class/infiniband_verbs/uverbs{self.number}", {"ibdev": self.name})
        if self.verbs == "here":
            _write(root / "dev/infiniband", {f"uverbs{self.number}": ""})


POLLING: dict[str, Any] = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
SLOWER: dict[str, Any] = {"rate": "200 Gb/sec (4X HDR)"}
STORAGE = Card("mlx5_bond_0", 8, board="MT_0000000359", layer="Ethernet", rate="100 Gb/sec (4X EDR)", gids=ROCE)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def cards(count: int = 8, changes: Mapping[int, Mapping[str, Any]] | None = None, **all_: Any) -> list[Card]:
    """mlx5_0 and so on; `changes` by number."""
    made_ = [Card(f"mlx5_{number}", number, **all_) for number in range(count)]
    return [replace(of_rank, **(changes or {}).get(of_rank.number, {})) for of_rank in made_]


def roce(count: int = 8, changes: Mapping[int, Mapping[str, Any]] | None = None, **all_: Any) -> list[Card]:
    return cards(count, changes, **{"layer": "Ethernet", "gids": ROCE, **all_})


def context(check: str, environ: Mapping[str, str] | None = None) -> Context:
    class Page:
        def doing(self, what: str, where: Mapping[str, Any]) -> None:
            pass

        enter: Any = None
        leave: Any = None

    def no() -> Any:
        raise AssertionError

    own = {"NCCL_CONF_FILE": "/dev/null", **(environ or {})}
    return Context(check, made.job(1), 0, 0, (0,), own, 20, Page(), no, no)


def write(root: Path, made_: Sequence[Card]) -> Path:
    (root / "sys/class/infiniband").mkdir(parents=True)
    for card in made_:
        card.write(root)
    return root


def read(root: Path, **environ: str) -> Any:
    """The facts of net.rdma, as judge gets them."""
    try:
        facts: object = rdma.measure(context("net.rdma", environ), str(root))
    except NotApplicable as nothing:
        facts = nothing.facts
    return json.loads(json.dumps(facts))


def fleet(folder: Path, *nodes: Sequence[Card], environ: Mapping[int, Mapping[str, str]] | None = None) -> list[Any]:
    """The facts of nodes with these cards."""
    return [
        read(write(folder / f"node-{rank}", made_), **(environ or {}).get(rank, {})) for rank, made_ in enumerate(nodes)
    ]


def read_again(root: Path) -> Any:
    """Those of net.rdma_errors."""
    try:
        facts: object = rdma_errors.measure(context("net.rdma_errors"), str(root))
    except NotApplicable as nothing:
        facts = nothing.facts
    return json.loads(json.dumps(facts))


def judged(facts: Sequence[Any], backend: str = "nccl") -> list[dict[str, Any]]:
    """One rank a node."""
    by_rank = dict(enumerate(facts))
    return testing.judge(rdma, by_rank, nodes={f"node-{rank}": [rank] for rank in by_rank}, backend=backend)


def told(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """ "fail down node-1 mlx5_3"."""
    return [
        " ".join([
            finding["severity"], finding["code"].rpartition(".")[2],
            *(str(finding["where"][key]) for key in ("node", "device", "variable") if key in finding["where"]),
        ])
        for finding in found
    ]  # fmt: skip


def is_as_told(name: str, found: Sequence[Mapping[str, Any]]) -> None:
    """As the fault table has it, and of no other node."""
    row = ELSEWHERE[name]
    above = [finding for finding in found if finding["severity"] != "info" or f"info {finding['code']}" in row.finds]
    assert row.is_told_by(above) and len(above) == len(row.finds), above
    assert any(row.says in finding["message"] for finding in above), above
    assert all(row.culprit.items() <= finding["where"].items() for finding in above), above
    assert row.culprit or not any("node" in finding["where"] for finding in above), above
    assert all("{" not in finding["fix"] for finding in above), above


# Real runs


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)
NCCL = os.pathsep.join(map(str, (running.ROOT / "tests" / "nccl", running.ROOT, running.PLUGINS)))


def run_with(
    folder: Path, arguments: Sequence[str], *nodes: Sequence[Card], environ: Mapping[str, str] | None = None
) -> Finished:
    """A node for each of these, with its tree over /sys/class; on nccl. `environ`: more for the second."""
    trees = [write(folder / f"tree-{rank}", cards_) for rank, cards_ in enumerate(nodes)]
    before = {rank: f"mount --bind {tree}/sys/class /sys/class" for rank, tree in enumerate(trees)}
    own = {1: environ or {}}
    return run_nodes(folder, len(nodes), *arguments, before=before, environ={"PYTHONPATH": NCCL}, own=own)


def is_told(names: str, finished: Finished) -> None:
    """The rows that share the run, and nothing else; by these words."""
    rows = [ELSEWHERE[name] for name in names.split()]
    all_ = finished.findings(finds=[find for row in rows for find in row.finds])
    for row in rows:
        codes = {find.split()[-1] for find in row.finds}
        is_as_told(row.name, [finding for finding in all_ if len(rows) == 1 or finding["code"] in codes])
    found = {f"{finding['severity']} {finding['code']}" for finding in all_ if finding["severity"] != "info"}
    assert found <= {find for row in rows for find in row.finds}, finished.told()
    assert finished.report["exit_code"] == max(row.exit_code for row in rows), finished.told()
    assert finished.left_over == [], finished.told()
