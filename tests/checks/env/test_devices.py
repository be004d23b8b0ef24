import pytest

from preflight.checks.env.devices import choose

A, B, C = "GPU-aaaa1111", "GPU-aabb2222", "GPU-cccc3333"
MIG = "MIG-dddd4444"


@pytest.mark.parametrize(
    ("wanted", "chosen"),
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
def test_devices_are_chosen_as_cuda_does(wanted: str | None, chosen: list[str]) -> None:
    assert choose([A, B, C], wanted) == chosen


def test_without_gpus_none_is_chosen() -> None:
    assert choose([], None) == choose([], "0") == choose([], A) == []


def test_a_strange_digit_is_no_index() -> None:
    assert choose(["GPU-a"], "²") == []
