"""Configurations of models by the real transformers, where it is installed; test_forms.py has a stand-in for it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from preflight import testing
from preflight.checks.train import model
from tests.checks.train import on_ranks

FOLDERS = tuple(str(Path(sys.prefix, name)) for name in ("transformers", "wrappers"))
"""`pip install --target .venv/transformers transformers`, say."""


def test_a_llama_trains_as_alone_under_every_kind_of_strategy() -> None:
    if not (Path(FOLDERS[0], "transformers").is_dir() or importlib.util.find_spec("transformers")):
        pytest.skip(f"transformers is neither installed nor in {FOLDERS[0]}")
    name = "tests/models/hub/llama.json"
    (ranks,) = on_ranks.measured(2, name, strategies="ddp/plain,fsdp2/plain,tp,pp", path=FOLDERS).values()
    assert [of_rank["raised"] or of_rank["skipped"] for of_rank in ranks] == [None, None]
    facts = {of_rank["rank"]: of_rank["facts"] for of_rank in ranks}
    assert [finding["code"] for finding in testing.judge(model, facts)] == ["train.model.synthetic"]
    assert list(facts[0]["strategies"]) == ["ddp", "fsdp2", "tp", "pp"]
