"""What is known of cards by the name that NVML gives them: catalog.tsv, a source a row.

Only exact names count: "NVIDIA GH200 480GB" holds "H200", and a virtual GPU holds the name of its card. What is empty
there is unknown, or left to the machine's builder.
"""

import csv
import functools
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Product:
    name: str
    links: int | None
    """NVLinks that are up on a working card; over bridges these, or none."""
    bridge: bool
    """NVLinks go over bridges that need not be there, between PCIe cards."""
    speed_mbps: int | None
    """Of one NVLink in one direction, in MB/s, as NVML tells it."""
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
