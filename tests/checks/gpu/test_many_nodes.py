"""512 nodes of recorded facts, with one odd GPU: found by every check, and quickly."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.check import Run
from preflight.core.job import Job, Node
from preflight.planning import registry
from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.standin import machines

NODES, ODD = 512, 300
SLOWEST = 10.0
"""Times as long as reading the facts (10 MB of JSON) that judging them may take."""
Recorded = Mapping[str, str]

CHANGES: dict[str, tuple[dict[str, object], str, dict[str, Any]]] = {
    "gpu.inventory": ({"gpu.5.vbios": "96.00.01.00.01"}, "VBIOS", {"gpu": 5}),
    "gpu.health": ({"gpu.5.ecc.volatile.uncorrected": 2}, "uncorrectable", {"gpu": 5}),
    "gpu.pcie": ({"gpu.5.pcie.width": 8}, "lanes", {"gpu": 5}),
    "gpu.nvlink": ({"gpu.5.link.7.state": 0}, "NVLink 7", {"gpu": 5, "link": 7}),
    "gpu.topology": ({"gpu.5.p2p.6.read": 4, "gpu.5.p2p.6.write": 4}, "P2P", {"gpu": 5, "peer_gpu": 6}),
}
JOB = Job("torchrun", NODES, "nccl", tuple(Node(f"node-{number}", number, (number,)) for number in range(NODES)))


def recorded(folder: Path, changes: Mapping[str, object]) -> Recorded:
    """The facts of one machine, as text by check."""
    path = folder / "with_facts.json"
    in_machine.run(machines.load("h100_nvswitch", folder, changes), folder, "--json", str(path), "--facts")
    checks = [check for check in json.loads(path.read_text())["checks"] if "facts" in check]
    return {check["check"]: json.dumps(check["facts"][0]["facts"]) for check in checks}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("sound"), {})


def on_node(text: str, node: int) -> Any:
    """The same machine, with GPUs of its own."""
    return json.loads(text.replace("GPU-", f"GPU-{node}-"))


@pytest.mark.parametrize(
    "check", [pytest.param(check, marks=() if check == "gpu.nvlink" else pytest.mark.more) for check in CHANGES]
)
@needs_machines
@pytest.mark.more
def test_the_odd_one_of_512_nodes_is_found_and_it_is_quick(check: str, tmp_path: Path, sound: Recorded) -> None:
    changes, says, culprit = CHANGES[check]
    odd = recorded(tmp_path, changes)
    module = registry.load(registry.sources()[check]).module
    start = time.process_time()
    facts = {
        id_: {node: on_node((odd if node == ODD else sound)[id_], node) for node in range(NODES)}
        for id_ in (check, *module.PLAN.after)
    }
    reading = time.process_time() - start
    run = Run(JOB, tuple(range(NODES)), {}, {}, facts.__getitem__)
    (told,) = [finding for finding in module.judge(facts[check], run) if finding.severity != "info"]
    assert says in told.message and {"node": f"node-{ODD}", **culprit}.items() <= told.where.items(), told
    assert min(seconds(module.judge, facts[check], run) for _ in range(3)) < SLOWEST * reading


def seconds(judge: Any, facts: Any, run: Run) -> float:
    start = time.process_time()
    list(judge(facts, run))
    return time.process_time() - start
