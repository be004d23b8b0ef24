"""What pipelines do on versions of torch that are older than the one here."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from preflight.train_smoke.strategies import pp


@pytest.mark.parametrize(("version", "fits"), [("2.9.1+cu128", False), ("2.10.0", True), ("2.13.0", True)])
def test_schedules_in_a_v_need_torch_2_10(version: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "NumPy is here")
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    setting: Any = SimpleNamespace(ranks=2)
    told = {name: variant.unfit(setting) for name, variant in pp.VARIANTS.items() if variant.unfit}
    in_a_v = {"zbv": "ScheduleZBVZeroBubble", "dualpipe_v": "ScheduleDualPipeV"}
    needs = {name: f"{kind} needs torch 2.10, this is {version}" for name, kind in in_a_v.items()}
    assert {name: why for name, why in told.items() if why} == ({} if fits else needs)


@pytest.mark.parametrize(
    ("ranks", "ring", "wanted"),
    [
        (1, False, 1), (2, False, 2), (2, True, 2), (3, False, 3), (3, True, 3), (4, False, 2), (4, True, 3),
        (5, True, 2), (6, False, 3), (7, True, 2), (8, False, 2), (8, True, 3), (1000, False, 2), (1024, True, 2),
    ],
)  # fmt: skip
def test_a_pipeline_has_three_ranks_where_none_is_left_over_or_its_stages_form_a_ring(
    ranks: int, ring: bool, wanted: int
) -> None:
    """Of 5, 7 and 1,024 ranks there are 2 micro-batches: 10, 14 and 62 rows."""
    assert pp.ranks_of(ranks, ring=ring) == wanted


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
def test_each_layer_is_dealt_once_in_order(stages: int) -> None:
    parts = pp.dealt(stages)
    assert [layer for part in parts for layer in part] == [*range(pp.LAYERS)] and all(parts)


def test_links_are_opened_by_numbers_of_one_type_and_to_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.9 sends an int64 where it receives a float32; torch 2.10 sends to its own rank, here 1."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    sent, received = torch.tensor(1), torch.zeros(1)
    operations = [SimpleNamespace(tensor=tensor, peer=peer) for peer in (0, 1) for tensor in (sent, received)]
    stage = pp.as_gloo_opens(SimpleNamespace(_get_init_p2p_neighbors_ops=lambda: operations))
    made = stage._get_init_p2p_neighbors_ops()
    assert [(operation.peer, operation.tensor.dtype) for operation in made] == [(0, torch.float32)] * 2
    assert made[0].tensor == 1 and made[1].tensor is received
