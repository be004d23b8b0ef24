"""`preflight profile` and `--profile FILE`: what a good node has, and how each node of a run differs from it."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from preflight.core.action import Action
from preflight.core.finding import RUN, Reported
from preflight.core.rank_ranges import count
from preflight.core.words import clauses, some
from preflight.history.run_entry import RunEntry
from preflight.planning.node_kinds import OF_A_GPU, OF_AN_INTERFACE, VERSIONS, ProfileKind, Value, kind_of, model_of

GPUS = "GPUs on the node"
"""A trait of gpu.inventory."""
INSTANCE = "instance type"
"""One of node.limits."""
INVENTORY, INTERFACES, RDMA = READ = ("gpu.inventory", "net.interfaces", "net.rdma")
"""Checks that report which devices exist."""
COMPARED = (*READ, "gpu.pcie", "gpu.nvlink", "env.software", "node.limits")
OWN_FIX = "Please report it, with this report."
VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap", "kube", "lxc", "dummy")
"""Prefixes of interfaces that come and go."""
ENOUGH = 0.95
"""The share of a limit that is enough: firmware and kernels leave nodes of one kind different amounts of memory."""
LISTED = 6
"""How many differences a sentence names."""


@dataclass
class Holding:
    """What a node has, as far as it is known."""

    models: set[str] = field(default_factory=set)
    instance: str = ""
    gpus: int | None = None
    cards: dict[str, dict[str, str]] = field(default_factory=dict)
    """Values by the UUID of each GPU."""
    node: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    checks: set[str] = field(default_factory=set)
    """The checks that measured on it."""


def holdings(entry: RunEntry) -> dict[str, Holding]:
    """What each node has, from the entry of a run."""
    found = {node: Holding() for node in entry.nodes}
    for check, absent in entry.absent.items():
        for node in found.keys() - set(absent):
            found[node].checks.add(check)
    for trait in entry.traits:
        for unit, value in trait.values.items():
            _keep(found, entry.places.get(unit), unit, trait.of, value)
    return found


def _keep(
    found: Mapping[str, Holding], place: str | None, unit: str, of: tuple[str, str, str], value: str
) -> None:  # fmt: skip
    kind, check, name = of
    holding = found[place or unit]
    if place and name == "model":
        holding.models.add(value)
    if place:
        holding.cards.setdefault(unit, {}).update({name: value} if name in OF_A_GPU else {})
    elif name == GPUS:
        holding.gpus = max(int(part) for part in value.split(" or "))
    elif name == INSTANCE:
        holding.instance = value
    elif kind == "limit" and value.replace(".", "", 1).isdecimal():
        holding.limits[name] = float(value)
    elif check in (RDMA, INTERFACES) or name in VERSIONS:
        holding.node[name] = value


def kinds(entry: RunEntry) -> list[ProfileKind]:
    """One kind per GPU model and instance type, with what most of its nodes have; for limits the smallest value."""
    alike: dict[tuple[str, str], list[Holding]] = {}
    for holding in holdings(entry).values():
        alike.setdefault((model_of(holding.models), holding.instance), []).append(holding)
    return [_kind(model, instance, nodes) for (model, instance), nodes in sorted(alike.items())]


def _kind(model: str, instance: str, alike: Sequence[Holding]) -> ProfileKind:
    limits = {name: min(holding.limits[name] for holding in alike if name in holding.limits)
              for name in dict.fromkeys(name for holding in alike for name in holding.limits)}  # fmt: skip
    numbers = Counter(holding.gpus or 0 for holding in alike if INVENTORY in holding.checks)
    gpus = max(numbers, key=lambda number: (numbers[number], number), default=None)
    name = f"{gpus} x {model}" if gpus else "GPUs not looked at" if gpus is None else "without a GPU"
    name += f", {instance}" if instance else ""
    return ProfileKind(
        name, model, (), gpus,
        _usual([_lasting(holding.node) for holding in alike]),
        _usual([card for holding in alike for card in holding.cards.values()]),
        {name: int(value) for name, value in limits.items()}, instance,
    )  # fmt: skip


def _lasting(values: Mapping[str, str]) -> dict[str, str]:
    """Leaves out interfaces of containers and those without a speed: they come and go."""
    fast = {_device(name) for name in values if name.endswith("Mbit/s") and not name.startswith(VIRTUAL)}
    return {name: value for name, value in values.items()
            if name in VERSIONS or _teller(name) == RDMA or _device(name) in fast}  # fmt: skip


def _usual(all_: Sequence[Mapping[str, str]]) -> dict[str, Value]:
    """The values that more than half of them have."""
    names = dict.fromkeys(name for values in all_ for name in values)
    most = {name: Counter(values.get(name) for values in all_).most_common(1)[0] for name in names}
    return {name: int(value) if value.isdecimal() else value
            for name, (value, number) in most.items() if value is not None and 2 * number > len(all_)}  # fmt: skip


def text(known: Sequence[ProfileKind], run: str, started: str) -> str:
    """The text of the file."""
    lines = [
        f"# What a good node has, from run {run} of {started}. For runs with --profile. Remove what may differ.",
        "# The nodes of a kind are those of its instance type with GPUs of its model, or those that it names:",
        '# nodes = ["gpu-*"]',
    ]
    for kind in known:
        heads = {"name": kind.name, "instance": kind.instance or None, "gpu": kind.gpu, "gpus": kind.gpus}
        lines += [
            "",
            "[[kind]]",
            *(f"{key} = {json.dumps(value)}" for key, value in heads.items() if value is not None),
        ]
        for table in ("node", "each_gpu", "at_least"):
            values: Mapping[str, Value] = getattr(kind, table)
            rows = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in sorted(values.items())]
            lines += ["", f"[kind.{table}]", *rows] if rows else []
    return "\n".join(lines) + "\n"


def findings(known: Sequence[ProfileKind], entry: RunEntry, asked: Collection[str]) -> Iterator[Reported]:
    """`asked`: checks that were to run. If one of these is not in the report, it had nothing to look at."""
    yield from _unusable(entry)
    for node, holding, kind, is_sure in _placed(known, entry, asked):
        if not is_sure:
            text_ = (
                "it is compared with no kind of the profile: gpu.inventory has not looked at its GPUs; expected it to "
            )
            text_ += "show its kind, or its name to be in one"
            yield _found("info", "profile_kind", text_, node, "Run gpu.inventory, too.", Action.NONE)
        elif kind is None:
            has = f"has {some(sorted(holding.models)) or 'no GPU'}"
            has += f" and is a {holding.instance}" if holding.instance else ""
            text_ = f"no kind of node in the profile fits {node}, which {has}; expected one of "
            text_ += some([each.name for each in known])
            yield _found("warn", "profile_kind", text_, node, "Add its kind to the profile (preflight profile REPORT).")
        else:
            yield from _held(node, holding, kind)


def _placed(
    known: Sequence[ProfileKind], entry: RunEntry, asked: Collection[str]
) -> Iterator[tuple[str, Holding, ProfileKind | None, bool]]:
    """(node, what it has, its kind, whether enough is known of it to say so)."""
    nothing = {check for check in asked if check not in entry.checks}
    for node, holding in holdings(entry).items():
        holding.checks |= nothing
        kind = kind_of(known, node, holding.models, holding.instance)
        by_name = kind and (kind.nodes or (kind.instance and holding.instance))
        yield node, holding, kind, bool(len(known) == 1 or INVENTORY in holding.checks or by_name)


def which(path: str, known: Sequence[ProfileKind], entry: RunEntry, asked: Collection[str]) -> Reported:
    """Says what was compared: otherwise a run that finds nothing would not show that it had a profile."""
    of_kind: dict[str, list[int]] = {}
    for _, holding, kind, is_sure in _placed(known, entry, asked):
        if kind and is_sure and (values := _compared(holding, kind)):
            of_kind.setdefault(kind.name, []).append(values)
    held = [f'{count(len(each), "node")} of the kind "{name}" ({count(sum(each), "value")})'
            for name, each in of_kind.items()]  # fmt: skip
    sentence = f"compared with the profile {path}: {clauses(held, LISTED)}"
    if not held:
        sentence = f"no node was compared with the profile {path}: none of its values was measured"
    return Reported(
        severity="info", code=f"{RUN}.compared_with_profile", message=sentence, fix="Nothing to do.",
        action=Action.NONE,
    )  # fmt: skip


def _compared(holding: Holding, kind: ProfileKind) -> int:
    """How many values of the kind the node was compared with; the number of GPUs is one."""
    sought = [name for name in kind.node if name not in VERSIONS and _teller(name) in holding.checks]
    of_node = {*sought, *(kind.node.keys() & holding.node.keys())}
    of_cards = [name for card in holding.cards.values() for name in card if name in kind.each_gpu]
    limits = kind.at_least.keys() & holding.limits.keys()
    return len([*of_node, *of_cards, *limits]) + (INVENTORY in holding.checks and kind.gpus is not None)


def _unusable(entry: RunEntry) -> Iterator[Reported]:
    """Findings for checks whose facts cannot be used: their values are unknown on every node."""
    for check, why in entry.left_out.items():
        if check in COMPARED:
            text_ = f"what {check} measured is not compared with the profile: {why}"
            yield Reported(severity="error", code=f"{RUN}.fault", message=text_, fix=OWN_FIX, action=Action.NONE)


def _held(node: str, holding: Holding, kind: ProfileKind) -> Iterator[Reported]:
    present = holding.gpus or 0
    if INVENTORY in holding.checks and kind.gpus is not None and present != kind.gpus:
        severity, action = ("fail", Action.REBOOT) if present < kind.gpus else ("warn", Action.FIX_CONFIG)
        sentence = f"{count(present, 'GPU')} on the node, expected {kind.gpus} as in the profile ({kind.name})"
        fix = "There: nvidia-smi -L; lspci -d 10de: (a GPU that is gone). Power the node off and on; else drain it."
        yield _found(severity, "profile_gpus", sentence, node, fix, action)
    missing, other = _parts(holding, kind)
    if missing:
        sentence = (
            f"{some(missing, LISTED)} {'is' if len(missing) == 1 else 'are'} not on the node, expected as in the "
        )
        fix = "There: ip -br link; ls /sys/class/infiniband; lspci; dmesg. Hand a container all devices; else drain it."
        where = {"device": missing[0]} if len(missing) == 1 else {}
        sentence += f"profile ({kind.name})"
        if others := _other_names(holding, kind):
            sentence += f"; it has none of its network cards, but {some(others, LISTED)}: a container, or other names"
            fix = (
                "Run where the profile was made (hostNetwork: true), or write it again there: preflight profile REPORT."
            )
        severity, action = ("warn", Action.FIX_CONFIG) if others else ("fail", Action.REPLACE)
        yield _found(severity, "profile_missing", sentence, node, fix, action, **where)
    other += [f"{uuid}: {each}" for uuid, card in holding.cards.items() for each in _differing(card, kind.each_gpu)]
    other += [f"{name} {holding.limits[name]:.0f}, expected at least {least}" for name, least in kind.at_least.items()
              if name in holding.limits and holding.limits[name] < ENOUGH * float(least)]  # fmt: skip
    if other:
        sentence = f"{count(len(other), 'value')} differ{'s' * (len(other) == 1)} from the profile ({kind.name}): "
        fix = "Correct it on the node; if the profile is out of date, write it again: preflight profile REPORT."
        evidence = {"differences": other}
        found = _found("warn", "profile_differs", f"{sentence}{clauses(other, LISTED)}", node, fix)
        yield Reported(**{**vars(found), "evidence": evidence})


def _parts(holding: Holding, kind: ProfileKind) -> tuple[list[str], list[str]]:
    """(missing devices, values that differ). An unknown value counts as neither."""
    there = {_device(name) for name in holding.node}
    gone = [name for name in kind.node if name not in VERSIONS and _device(name) not in there]
    sought = dict.fromkeys(_device(name) for name in gone if _teller(name) in holding.checks)
    return list(sought), _differing(holding.node, kind.node)


def _other_names(holding: Holding, kind: ProfileKind) -> list[str]:
    """The network cards of a node that has none of the profile's: a container's network has its own names."""
    there, expected = (
        dict.fromkeys(_device(name) for name in names if name not in VERSIONS and _teller(name) == INTERFACES)
        for names in (holding.node, kind.node)
    )
    gone = expected and not there.keys() & expected.keys()
    return [name for name in there if not name.startswith(VIRTUAL)] if gone else []


def _teller(name: str) -> str:
    """The check that reports a device."""
    return INTERFACES if name.endswith(OF_AN_INTERFACE) and ":" not in name else RDMA


def _device(name: str) -> str:
    """The device in "mlx5_0:1 Gb/s" or "eth0 MTU"."""
    return name.partition(" ")[0].partition(":")[0]


def _differing(has: Mapping[str, str], expected: Mapping[str, Value]) -> list[str]:
    return [f"{name} {has[name]}, expected {value}" for name, value in expected.items()
            if name in has and has[name] != str(value)]  # fmt: skip


def _found(
    severity: str, slug: str, sentence: str, node: str, fix: str, action: Action = Action.FIX_CONFIG, **where: str
) -> Reported:
    return Reported(
        severity=severity, code=f"{RUN}.{slug}", message=sentence, where={"node": node, **where}, fix=fix, action=action
    )
