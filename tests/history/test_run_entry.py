"""An entry of the history as JSON, and back."""

import json

import pytest

from preflight.history.run_entry import RunEntry
from preflight.results.fields import MalformedReport
from tests.history.made import entry, finding

KEPT = entry(
    1, findings=[finding("gpu.health.ecc", "node-0", gpu="GPU-1")], gemm={"GPU-1": 690.0}, places={"GPU-1": "node-0"},
    software={"node-0": "2.9"}, machines={"node-0": "a" * 32},
)  # fmt: skip


def test_an_entry_comes_back_as_it_was() -> None:
    assert RunEntry.from_json(json.loads(json.dumps(KEPT.to_json()))) == KEPT


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nodes": "node-0"}, 'nodes is "node-0", expected array'),
        ({"figures": [["a", "b", "c"]]}, "figures[0] is a list, expected 4 items"),
        ({"figures": [["a", "b", "c", {"value": "x"}]]}, "figures[0][3].units is not there"),
        ({"traits": [["driver", "env.software", 5, {}]]}, "traits[0] is 5, expected string"),
        ({"absent": {"env.software": [3]}}, "absent.env.software[0] is 3, expected string"),
    ],
)
def test_an_entry_that_somebody_has_changed_is_refused_with_its_place(changed: dict[str, object], says: str) -> None:
    with pytest.raises(MalformedReport) as refused:
        RunEntry.from_json({**KEPT.to_json(), **changed})
    assert str(refused.value) == says
