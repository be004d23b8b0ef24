"""What is known about cards, by NVML's name: catalog.tsv, with a source per row.

Only exact names count: "NVIDIA GH200 480GB" contains "H200", and a virtual GPU's name contains its card's. Empty fields
are unknown, or depend on the machine.
"""

import csv
import functools
from importlib import resources
from typing import NamedTuple


class Product(NamedTuple):
    name: str
    links: int | None
    """NVLinks that are up on a working card; with bridges all of these or none."""
    bridge: bool
    """Whether NVLinks use optional bridges between PCIe cards."""
    speed_mbps: int | None
    """One NVLink in one direction, in MB/s, as NVML reports it."""
    source: str


@functools.cache
def _table() -> dict[str, Product]:
    text = resources.files(__package__).joinpath("catalog.tsv").read_text()
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["name"]: _product(row) for row in rows}


def _product(row: dict[str, str]) -> Product:
    links, speed = (int(row[name]) if row[name] else None for name in ("links", "speed_mbps"))
    return Product(row["name"], links, row["ends"] == "bridge", speed, row["source"])


def known(name: str) -> Product | None:
    """The product of exactly this name, or None."""
    return _table().get(name)
