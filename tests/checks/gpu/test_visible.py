import pytest

from preflight.checks.gpu import inventory

A, B, C = "GPU-aaaa1111", "GPU-aabb2222", "GPU-cccc3333"
MIG = "MIG-dddd4444"


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (None, [A, B, C]),
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [A]),
        ("1,3,0", [B]),
        ("0,x,1", [A]),
        (B, [B]),
        ("GPU-c,0", [C, A]),
        ("GPU-cc,GPU-xx,0", [C]),
        (MIG, [MIG]),
        (f"{MIG},1", [MIG, B]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_devices_are_chosen_as_cuda_does(wanted: str | None, shown: list[str]) -> None:
    assert inventory.shown_by_cuda([A, B, C], wanted)[0] == shown


def test_the_entry_at_which_cuda_stops_is_told() -> None:
    assert [inventory.shown_by_cuda([A, B], wanted)[1] for wanted in (None, "0,1", "0,7,1", "GPU-x", "-1", "²")] == [
        "", "", "7", "GPU-x", "-1", "²",
    ]  # fmt: skip


def test_without_gpus_none_is_chosen() -> None:
    assert (
        inventory.shown_by_cuda([], None)[0]
        == inventory.shown_by_cuda([], "0")[0]
        == inventory.shown_by_cuda([], A)[0]
        == []
    )
