"""On a machine with EFA, by `make test-gpu`: libfabric and NCCL's plugin as Amazon installs them."""

import gzip
import json
from pathlib import Path

import pytest

from preflight.checks.net import efa
from preflight.checks.net.shared import hca
from tests import running

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(efa.AMAZON not in map(hca.vendor, hca.names()), reason="there is no EFA device here"),
]


def test_libfabric_shows_what_the_kernel_does(tmp_path: Path) -> None:
    finished = running.run_torchrun(tmp_path, 1, "--only", "net.efa", deadline_s=60)
    assert finished.check("net.efa")["status"] == "pass", finished.told()
    with gzip.open(tmp_path / "facts.jsonl.gz", "rt") as lines:
        (facts,) = [line["facts"] for line in map(json.loads, lines) if line["check"] == "net.efa"]
    assert facts["seen"] is None or sorted(facts["seen"]) == sorted(facts["devices"]), facts
    assert facts["seen"] is None or facts["libfabric"], facts
    assert bool(facts["path"]) == bool(facts["plugin"]), facts
