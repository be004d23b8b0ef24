"""What a sound H100 gave (torch 2.11, NCCL 2.28.9, driver 580, a virtual machine with one GPU whose driver has NVLink
turned off; UUID and serial are made up)."""

import json
from pathlib import Path

import pytest

from preflight.check import Job, Node, Outcome
from preflight.core import facts
from preflight.core.facts import FactsStore
from preflight.planning import registry
from preflight.results import judging

FACTS = json.loads((Path(__file__).parent / "fixtures" / "h100_one_rank.json").read_text())
EXPECTED = {"gpu.nvlink": ["gpu.nvlink.inactive"]}
"""An info: somebody has wished it so."""


@pytest.mark.parametrize("check", FACTS)
def test_nothing_is_said_against_it(check: str) -> None:
    store = FactsStore()
    for name, measured in FACTS.items():
        store.add(name, [0], facts.to_text(measured))
    job = Job("torchrun", 1, "nccl", (Node("node-0", 0, (0,), ("10.0.0.1",)),))
    outcomes = {0: Outcome("measured", 1.0)}
    answer = judging.call_judge(registry.sources()[check], job, outcomes, store, {})
    assert "error" not in answer, answer
    assert [finding["code"] for finding in answer["findings"]] == EXPECTED.get(check, []), answer["findings"]
    assert all(finding["severity"] == "info" for finding in answer["findings"])
