"""Names of nodes, folded."""

import pytest

from preflight.core.node_names import folded


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu-1"], "gpu-1"),
        (["gpu-2", "gpu-1", "gpu-3", "gpu-9"], "gpu-[1-3,9]"),
        (["gpu-008", "gpu-009", "gpu-010"], "gpu-[008-010]"),
        (["a1-ib", "a2-ib", "b1-ib"], "a[1-2]-ib,b1-ib"),
        (["gpu-1", "gpu-01"], "gpu-1,gpu-01"),
        (["node-0#1", "node-0#0"], "node-0#[0-1]"),
        (["n00000000000000000001"], "n00000000000000000001"),
    ],
)
def test_names_that_differ_in_their_last_number_are_one(names: list[str], text: str) -> None:
    assert folded(names) == text
