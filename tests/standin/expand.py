"""From `machines/NAME.toml`, which says once what all GPUs share, to the flat keys of each GPU."""

import re
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Keys = dict[str, object]
FOLDER = Path(__file__).parent / "machines"
SPEED = 164
REMOTE_LINK = 146
"""Fields: a link's MB/s, and the number of the link at its other end."""


@dataclass(frozen=True)
class Place:
    """Where a PCI device is."""

    path: tuple[str, ...]
    """The root bus ("0000:15"), the bridges from the root port on, and the device: "0000:1b:00.0"."""
    node: int
    """NUMA node; -1 where the firmware names none."""

    @property
    def bus(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Gpu:
    place: Place
    keys: Keys
    """Without `gpu.I.`; `topology.J` and `p2p.J` count the GPUs of the whole machine."""


def spec(name: str) -> dict[str, Any]:
    """The file of a machine, laid over that of its `base`."""
    with open(FOLDER / f"{name}.toml", "rb") as file:
        found = tomllib.load(file)
    return _laid_over(spec(found["base"]), found) if "base" in found else found


def _laid_over(base: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in upper.items():
        inner = isinstance(value, dict) and isinstance(base.get(key), dict)
        both[key] = _laid_over(base[key], value) if inner else value
    return both


def flat(table: Mapping[str, Any], prefix: str = "") -> Keys:
    found: Keys = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def place(row: Mapping[str, Any]) -> Place:
    """`pci = "15 15:01.0 16:00.0 1b:00.0"`: root bus, root port, switch, device, all in domain 0."""
    return Place(tuple(f"0000:{part}" for part in row["pci"].split()), row["node"])


def gpus(machine: Mapping[str, Any]) -> list[Gpu]:
    """All GPUs of the machine, in the order of NVML on the host."""
    rows = machine["gpus"]
    places = [place(row) for row in rows]
    links = _links(machine, places)
    found = []
    for number, row in enumerate(rows):
        keys = _identity(machine["name"], number, places[number]) | flat(machine["gpu"])
        keys |= _affinity(machine["cpus"], places[number].node) | _peers(machine, places, links, number)
        keys |= links[number] | flat({key: value for key, value in row.items() if key not in ("pci", "node")})
        found.append(Gpu(places[number], keys))
    return found


def _identity(machine: str, number: int, at: Place) -> Keys:
    return {
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{machine}.{number}')}",
        "serial": str(1650123004000 + 17 * number),
        "minor": number,
        "pci.bus": at.bus.replace("0000:", "00000000:", 1).upper(),
    }


def _affinity(cpus: Sequence[str], node: int) -> Keys:
    """`cpus` is a list of CPUs for each NUMA node."""
    return {"affinity.cpus": cpus[max(node, 0)], "affinity.memory": str(max(node, 0))}


# Pairs of GPUs


def ancestor(one: Place, other: Place) -> int:
    """NVML's level: 10 a single switch, 20 several, 30 the host bridge, 40 the NUMA node, 50 the system."""
    common = sum(1 for a, b in zip(one.path, other.path, strict=False) if a == b)
    if common >= 2:
        return 10 if max(len(one.path), len(other.path)) - common <= 2 else 20
    return 30 if common else 40 if one.node == other.node else 50


def _peers(machine: Mapping[str, Any], places: Sequence[Place], links: Sequence[Keys], number: int) -> Keys:
    """`p2p` says how GPUs reach each other: over NVLink, else inside a NUMA node, else across nodes."""
    found: Keys = {}
    reach = machine["p2p"]
    for peer in range(len(places)):
        if peer == number:
            continue
        level = ancestor(places[number], places[peer])
        linked = bool(machine.get("nvlink")) and _linked(machine["nvlink"], number, peer)
        status = reach["linked"] if linked else reach["system" if level == 50 else "node"]
        over_links = 0 if linked else 5
        found[f"topology.{peer}"] = level
        found |= {f"p2p.{peer}.{name}": status for name in ("read", "write", "prop")}
        found |= {f"p2p.{peer}.{name}": over_links for name in ("nvlink", "atomics")}
    return found


# NVLink


def _linked(nvlink: Mapping[str, Any], number: int, peer: int) -> bool:
    return bool(nvlink.get("to")) or _mesh(nvlink)[number][peer] > 0


def _mesh(nvlink: Mapping[str, Any]) -> list[list[int]]:
    """`mesh`: a row a GPU, how many links go to each other GPU."""
    return [[int(count) for count in row.replace("x", "0").split()] for row in nvlink.get("mesh", [])]


def _links(machine: Mapping[str, Any], places: Sequence[Place]) -> list[Keys]:
    """The keys of all links, for each GPU."""
    nvlink = machine.get("nvlink")
    if nvlink is None:
        return [{} for _ in places]
    switches = [place(row).bus for row in machine.get("switches", [])]
    found = []
    for number in range(len(places)):
        ends = _to_switches(nvlink, switches, number) if nvlink.get("to") else _to_gpus(nvlink, places, number)
        keys: Keys = {"links": nvlink["links"]}
        if "capable" in nvlink:
            keys["links.capable"] = nvlink["capable"]
        for link in range(nvlink.get("capable", nvlink["links"])):
            keys |= _link(nvlink, link, ends.get(link))
        found.append(keys)
    return found


def _link(nvlink: Mapping[str, Any], link: int, end: tuple[int, str, int] | None) -> Keys:
    """`end` is what the other end is (0 a GPU, 2 a switch), its bus and its link; None of a link that is not up."""
    keys = {f"link.{link}.capability.{which}": value for which, value in enumerate(nvlink["capabilities"])}
    if link >= nvlink["links"]:
        return keys
    keys |= flat({"version": nvlink["version"], "state": int(end is not None)}, f"link.{link}.")
    keys |= flat(nvlink.get("error", {}), f"link.{link}.error.")
    keys |= {f"field.{field}.{link}": value for field, value in nvlink.get("field", {}).items()}
    keys |= {f"field.{field}": nvlink["speed"] if end else 0 for field in _speeds(link)}
    if end is not None:
        kind, bus, other = end
        keys |= {f"link.{link}.remote.type": kind, f"link.{link}.remote.bus": bus}
        keys |= {f"link.{link}.remote.device_id": nvlink["remote_id"], f"field.{REMOTE_LINK}.{link}": other}
    return keys


def _speeds(link: int) -> list[str]:
    """The fields of a link's speed: by scope, and those that older drivers have for the first twelve links."""
    return [f"{SPEED}.{link}", *([str(84 + link)] if link < 6 else [str(126 + link)] if link < 12 else [])]


def _to_switches(nvlink: Mapping[str, Any], switches: Sequence[str], number: int) -> dict[int, tuple[int, str, int]]:
    """`to`: the number of the switch of each link. Switches that are no PCI devices of the host have no bus."""
    per_switch = [0] * (max(nvlink["to"]) + 1)
    found = {}
    for link, switch in enumerate(nvlink["to"]):
        bus = _long(switches[switch]) if switches else "00000000:00:00.0"
        found[link] = (2, bus, number * nvlink["to"].count(switch) + per_switch[switch])
        per_switch[switch] += 1
    return found


def _to_gpus(nvlink: Mapping[str, Any], places: Sequence[Place], number: int) -> dict[int, tuple[int, str, int]]:
    """Links are given to peers in their order, so the n-th link to a peer meets the n-th of the peer to us."""
    mesh = _mesh(nvlink)
    first = [[sum(row[:peer]) for peer in range(len(row))] for row in mesh]
    return {
        first[number][peer] + nth: (0, _long(places[peer].bus), first[peer][number] + nth)
        for peer, count in enumerate(mesh[number])
        for nth in range(count)
    }


def _long(bus: str) -> str:
    return bus.replace("0000:", "00000000:", 1).upper()


# The whole machine


def keys(machine: Mapping[str, Any], all_gpus: Sequence[Gpu]) -> Keys:
    """The keys of the library: `visible` are the numbers of the GPUs that a container sees, in its own order."""
    visible = list(machine.get("visible", range(len(all_gpus))))
    found = flat(machine["system"]) | {"count": len(visible)}
    for index, number in enumerate(visible):
        for key, value in all_gpus[number].keys.items():
            renamed = _renumbered(key, visible)
            if renamed is not None:
                found[f"gpu.{index}.{renamed}"] = value
    return found


def _renumbered(key: str, visible: Sequence[int]) -> str | None:
    """The key with a peer's number as the container counts; None for a peer that it does not see."""
    pair = re.match(r"(topology|p2p)\.(\d+)(.*)", key)
    if pair is None:
        return key
    peer = int(pair[2])
    return f"{pair[1]}.{visible.index(peer)}{pair[3]}" if peer in visible else None
