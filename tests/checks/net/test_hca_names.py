"""The grammar of NCCL_IB_HCA, as NCCL 2.30.7 reads it."""

import pytest

from preflight.nccl import hca_names

DEVICES = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11", "mlx5_bond_0", "irdma0")
ALL = list(DEVICES)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", ALL), ("=", ALL), ("^", []), ("^=", []), (",,", ALL), (":1", ALL), ("^:1", []),
        ("mlx5", ALL[:5]), ("mlx5_1", ["mlx5_1", "mlx5_10", "mlx5_11"]), ("=mlx5_1", ["mlx5_1"]),
        ("^mlx5_1", ["mlx5_0", "mlx5_bond_0", "irdma0"]), ("^=mlx5_1,irdma0", ["mlx5_0", *ALL[2:5]]),
        ("=^mlx5_1", []), ("=mlx5", []), ("=mlx5_0,,mlx5_11", ["mlx5_0", "mlx5_11"]), ("mlx5_0 ,mlx5_1", ALL[1:4]),
        ("=mlx5_0:1,mlx5_1:2", ["mlx5_0"]), ("=mlx5_0::0:1", ["mlx5_0"]), ("=mlx5_0:1:3", ["mlx5_0"]),
        ("mlx5:2", []), ("^mlx5:2", ALL), ("=mlx5_0:", ["mlx5_0"]), ("=mlx5_0:-1", ["mlx5_0"]), ("=mlx5_0:x", []),
        ("MLX5", []), (" mlx5", []),
    ],
)  # fmt: skip
def test_what_it_selects_of_port_1(value: str, taken: list[str]) -> None:
    selection = hca_names.parse(value)
    assert [device for device in DEVICES if selection.takes(device, 1)] == taken


def test_a_port_is_selected_alone() -> None:
    assert [port for port in (1, 2) if hca_names.parse("mlx5_0:2").takes("mlx5_0", port)] == [2]
    assert [port for port in (1, 2) if hca_names.parse("^mlx5_0:2").takes("mlx5_0", port)] == [1]


def test_no_more_than_32_entries_are_read() -> None:
    selection = hca_names.parse("=" + ",".join(f"mlx5_{number}" for number in range(40)))
    assert selection.takes("mlx5_31", 1) and not selection.takes("mlx5_32", 1)


@pytest.mark.parametrize(
    ("text", "base", "number"),
    [("3", 0, 3), ("0x10", 0, 16), ("010", 0, 8), ("010", 10, 10), ("-1", 0, -1), (" 3 ", 0, 3), ("3x", 0, 3),
     ("auto", 0, 0), ("", 0, 0), ("09", 0, 0), ("0", 0, 0), ("+2", 10, 2), ("0x10", 10, 0)],
)  # fmt: skip
def test_numbers_are_read_as_c_does(text: str, base: int, number: int) -> None:
    assert hca_names.integer(text, base) == number


@pytest.mark.parametrize(
    ("settings", "uses"),
    [({}, True), ({"NCCL_IB_DISABLE": "1"}, False), ({"NCCL_IB_DISABLE": "0"}, True),
     ({"NCCL_IB_DISABLE": "true"}, True), ({"NCCL_NET": "ib"}, True), ({"NCCL_NET": "Socket"}, False),
     ({"NCCL_NET": "AWS Libfabric"}, False), ({"NCCL_NET": "IBext_v10"}, True),
     ({"NCCL_NET": "IBext", "NCCL_IB_DISABLE": "1"}, True), ({"NCCL_NET": "ibext", "NCCL_IBEXT_DISABLE": "1"}, False),
     ({"NCCL_IBEXT_DISABLE": "1"}, True)],
)  # fmt: skip
def test_whether_its_own_transport_is_on(settings: dict[str, str], uses: bool) -> None:
    assert hca_names.uses_verbs(settings) is uses
