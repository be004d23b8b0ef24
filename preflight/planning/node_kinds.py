"""A site's profile: what each kind of node has. `preflight profile` writes it, `--profile FILE` reads it."""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.errors import UsageError, near_misses
from preflight.planning import toml_file

Value = str | int | float
VERSIONS = ("GPU driver", "torch", "cuda", "nccl")
"""The versions of env.software that count: a site's packages change with each job."""
OF_AN_INTERFACE = (" MTU", " Mbit/s", " state")
OF_AN_HCA = (" firmware", " PCIe", " state", " Gb/s")
OF_A_GPU = ("memory MiB", "PCIe lanes", "PCIe generation", "active NVLinks", "NVLink MB/s")
LIMITS = (
    "bytes of locked memory", "open files", "processes", "CPUs", "MiB of shared memory", "MiB of memory",
)  # fmt: skip
TABLES = {"node": VERSIONS, "each_gpu": OF_A_GPU, "at_least": LIMITS}
"""The names allowed in each table. `node` also allows those of a device: "eth0 MTU", "mlx5_0:1 Gb/s"."""
MOST_GPUS, LARGEST = 1024, 1e300


@dataclass(frozen=True)
class ProfileKind:
    """One `[[kind]]` of the file."""

    name: str
    gpu: str = ""
    """The model of its GPUs; "" if it has none."""
    nodes: tuple[str, ...] = ()
    """Names of its nodes, with wildcards * and ?. They take precedence over the instance type, and that over GPUs."""
    gpus: int | None = None
    """None: the file does not say."""
    node: Mapping[str, Value] = field(default_factory=dict)
    """Links, NICs, HCAs, versions."""
    each_gpu: Mapping[str, Value] = field(default_factory=dict)
    at_least: Mapping[str, Value] = field(default_factory=dict)
    """Limits and sizes: numbers below which a node is not of this kind."""
    instance: str = ""
    """The instance type of its nodes, with * and ?, as node.limits reads it; "" where it does not say."""

    def may_be(self, instance: str) -> bool:
        """Also where the node's instance type is not known."""
        return not instance or not self.instance or fnmatch.fnmatchcase(instance, self.instance)


def read(path: str) -> tuple[ProfileKind, ...]:
    """Raises UsageError."""
    try:
        return parse(toml_file.table(path))
    except UsageError as error:
        text = str(error).removeprefix(f"{path}: ")
        raise UsageError(f"--profile {path}: {text}", everywhere=error.everywhere) from None


def parse(data: Mapping[str, Any]) -> tuple[ProfileKind, ...]:
    """Raises UsageError."""
    _only(data, ("kind",), "")
    kinds = data.get("kind")
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, dict) for kind in kinds):
        raise UsageError("it has no kind of node, expected at least one [[kind]]")
    known = tuple(_kind(kind, f"kind {number}") for number, kind in enumerate(kinds, 1))
    keys = [(kind.gpu, kind.instance) for kind in known if not kind.nodes]
    for model, instance in keys:
        if keys.count((model, instance)) > 1:
            what = f"the GPU {model!r}" if model else "no GPU"
            what += f" and the instance type {instance!r}" if instance else ""
            raise UsageError(f"several kinds have {what}, expected only one of them, or node names in each")
    return known


def _kind(data: Mapping[str, Any], where: str) -> ProfileKind:
    _only(data, ProfileKind.__dataclass_fields__, f"{where}: ")
    name = data.get("name", where)
    for key, expected in {"name": str, "gpu": str, "gpus": int, "instance": str}.items():
        if type(data.get(key, expected())) is not expected:
            what = "a whole number" if expected is int else "a text"
            raise UsageError(f"{where}: {key} is {data[key]!r}, expected {what}")
    if not 0 <= data.get("gpus", 0) <= MOST_GPUS:
        raise UsageError(f"{where}: gpus is {data['gpus']}, expected 0 to {MOST_GPUS}")
    nodes = data.get("nodes", [])
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise UsageError(f"{where}: nodes is {nodes!r}, expected a list of names")
    tables = {key: _table(data.get(key, {}), f"{where}: {key}", key) for key in TABLES}
    instance = data.get("instance", "")
    return ProfileKind(name, data.get("gpu", ""), tuple(nodes), data.get("gpus"), **tables, instance=instance)


def _table(value: object, where: str, table: str) -> dict[str, Value]:
    """Refuses a name that no check reports: it would never be compared, or be a device that every node lacks."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {value!r}, expected a table")
    numbers, known = table == "at_least", TABLES[table]
    for key, held in value.items():
        if isinstance(held, bool) or not isinstance(held, int | float if numbers else str | int | float):
            raise UsageError(f"{where}.{key} is {held!r}, expected a number{'' if numbers else ' or a text'}")
        if not isinstance(held, str) and not 0 <= held < LARGEST:
            raise UsageError(f"{where}.{key} is {str(held)[:20]}, expected 0 to {LARGEST:g}")
        if key not in known and not (table == "node" and key.endswith((*OF_AN_INTERFACE, *OF_AN_HCA))):
            raise UsageError(f"{where}: {key}: there is no such value{near_misses(key, known)}")
    return {key: int(held) if isinstance(held, float) and held.is_integer() else held for key, held in value.items()}


def _only(data: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise UsageError(f"{where}{key}: there is no such key{near_misses(key, known)}")


def kind_of(kinds: Sequence[ProfileKind], node: str, models: Collection[str], instance: str = "") -> ProfileKind | None:
    """Finds a node's kind by its name, then by its instance type, then by its GPU model. A node that has lost all its
    GPUs has no model any more: it is of the file's only kind, or of the only one with its instance type."""
    named = [kind for kind in kinds if any(fnmatch.fnmatchcase(node, pattern) for pattern in kind.nodes)]
    if named:
        return named[0]
    every = model_of(models)
    others = [kind for kind in kinds if not kind.nodes and kind.may_be(instance)]
    of_type = [kind for kind in others if kind.instance and instance]
    if len(kinds) == 1 or (len(of_type) == 1 and not models):
        return (*of_type, *others, None)[0]
    for alike in (of_type, others):
        if fitting := [kind for kind in alike if kind.gpu == every or kind.gpu in models]:
            return min(fitting, key=lambda kind: kind.gpu != every)
    return None


def model_of(models: Collection[str]) -> str:
    """The model as written in a kind: all models of a node joined with "and"; "" for a node without GPUs."""
    return " and ".join(sorted(models))
