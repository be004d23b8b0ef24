"""Inventory: all nodes have the same GPUs, and every rank has its own.

Reads the GPUs from NVML and those on the PCI bus from sysfs, and maps CUDA_VISIBLE_DEVICES to UUIDs as CUDA does. With
torch (level standard and above) also compares CUDA's count. Judges the GPUs that the job can see: in a container or
under a cgroup these are not all of the node's, and the summary says so.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Trait,
    option,
    ranges,
    traits,
    vote,
)
from preflight.checks.gpu.inventory import modes
from preflight.checks.gpu.shared import nvml_errors, nvml_survey, pci
from preflight.checks.gpu.shared.cards import INVENTORY, Card, by_node, cards, compare_cards, device_of, looked_at
from preflight.checks.gpu.shared.nvml_survey import PERMISSION, GpuLook, SeenGpus
from preflight.checks.gpu.shared.unused_gpus import SILENT, milder_elsewhere, silent

PARTS = (nvml_errors, modes)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=120, estimate_s=0.3)

MIN_MEMORY_GIB = option(float, 0.0, "least free memory of a GPU in GiB; 0: no limit")

COUNT = Code(
    "A node has a different number of GPUs than the others.",
    fix="There: nvidia-smi -L; lspci -d 10de: (a GPU that is gone). Power the node off and on; else drain it.",
    action=Action.REBOOT,
    see=("node.kernel",),
)
MISSING = Code(
    "The PCI bus has a GPU that the driver does not show.",
    fix="On {node}: dmesg | grep -i -e nvrm -e {device}. Reboot the node, and drain it if the GPU stays missing.",
    action=Action.REBOOT,
    see=("node.kernel",),
)
_GONE_FIX = "On {node}: nvidia-smi -L; dmesg | grep -i nvrm. Reboot the node, and drain it if a GPU stays missing."
MODEL = Code("GPUs are of different models.", fix="Run the job on GPUs of one model: the slowest limits all.")
VBIOS = Code(
    "A GPU's VBIOS differs from its siblings'.", fix="Update it with the vendor's tool to the version of the others."
)
MEMORY = Code(
    "A GPU's memory size differs from its siblings'.",
    fix="Compare nvidia-smi -q -d MEMORY with another GPU; drain the node and have the card checked.",
    action=Action.REPLACE,
)
FREE_MEMORY = Code("A GPU has too little free memory.", fix="On {node}: nvidia-smi -i {gpu} shows what to end.")
SHARED_GPU = Code(
    "Two ranks use the same GPU.",
    fix="Give each rank its own: cuda:LOCAL_RANK; see CUDA_VISIBLE_DEVICES and how many ranks the node has.",
)
NO_GPU = Code(
    "A rank has no GPU, while others have one.",
    fix="Make a GPU visible to it (CUDA_VISIBLE_DEVICES, --gpus-per-node), or start fewer ranks on the node.",
)
NOT_VISIBLE = Code(
    "CUDA_VISIBLE_DEVICES has an entry that matches no GPU: CUDA stops reading there.",
    fix="Set it to indices or UUIDs that nvidia-smi -L shows.",
)
TORCH_COUNT = Code(
    "CUDA shows torch a different number of GPUs than NVML.",
    fix="On {node}: python -c 'import torch; torch.cuda.init()' says why; dmesg | grep -i xid names a sick GPU.",
    see=("node.kernel",),
)
EXCLUDED = Code("A GPU was excluded by an administrator.", fix="See NVreg_ExcludedGpus in /etc/modprobe.d.")

GIB, FAR_LESS = 2**30, 0.9


class Facts(TypedDict):
    seen: SeenGpus
    look: GpuLook
    """Identities of the GPUs that this rank looks at, by UUID."""
    visible: list[str]
    """UUIDs that CUDA shows this rank, in CUDA's order; MIG instances have their own UUIDs."""
    wanted: str | None
    """CUDA_VISIBLE_DEVICES."""
    names_none: str
    """The first entry of CUDA_VISIBLE_DEVICES that matches no GPU."""
    order: str
    """CUDA_DEVICE_ORDER."""
    confined: bool
    """Whether this is a container or a job's cgroup, where GPUs may be hidden on purpose."""
    unbound: dict[str, str]
    """GPUs on the PCI bus that NVIDIA's driver does not hold: {bus id: driver or ""}."""
    local_rank: int
    torch: int | None
    """CUDA's count, if torch is imported and has CUDA."""


def measure(ctx: Context) -> Facts:
    session = nvml_survey.session()
    wanted = ctx.environ.get("CUDA_VISIBLE_DEVICES")
    look: GpuLook = {"gpus": {}, "numbers": {}, "troubles": [], "notes": {}}
    try:
        seen = session.seen(ctx)
        look = session.look(ctx, "identity") if seen["system"] else look
    except NotApplicable:  # having none counts, too: other nodes may have some
        seen = {"system": None, "gpus": {}, "pci": [], "partial": False}
    torch = session.ask(ctx, "torch", None) if seen["gpus"] and nvml_survey.torch_has_cuda() else None
    known = {int(number): handle["uuid"] for number, handle in seen["gpus"].items()}
    count = seen["system"]["count"] if seen["system"] else 0
    visible, names_none = shown_by_cuda([known.get(gpu) or silent(gpu) for gpu in range(count)], wanted)
    facts: Facts = {
        "seen": seen,
        "look": {**look, "troubles": session.troubles if seen["system"] or seen["pci"] else []},
        "visible": visible,
        "wanted": wanted,
        "names_none": names_none,
        "order": ctx.environ.get("CUDA_DEVICE_ORDER", ""),
        "confined": nvml_survey.confined(ctx.environ),
        "unbound": {bus: name for bus in seen["pci"] if (name := pci.driver(bus)) != "nvidia"},
        "local_rank": ctx.local_rank,
        "torch": torch,
    }
    return nvml_survey.complete(ctx, facts)


def shown_by_cuda(everyone: Sequence[str], wanted: str | None) -> tuple[list[str], str]:
    """How CUDA reads CUDA_VISIBLE_DEVICES: (UUIDs of the devices that it shows, in its order; the first entry that
    matches none, or "").

    Entries are indices or (prefixes of) UUIDs; the list ends at the first entry that matches no device; a MIG UUID is
    taken as it is (CUDA C++ programming guide, environment variables).
    """
    if wanted is None:
        return list(everyone), ""
    found: list[str] = []
    for word in (word.strip() for word in wanted.split(",")):
        if word.startswith("MIG-"):
            found.append(word)
        elif re.fullmatch("[0-9]{1,9}", word) and int(word) < len(everyone):
            found.append(everyone[int(word)])
        elif word.startswith("GPU-") and (match := next((uuid for uuid in everyone if uuid.startswith(word)), None)):
            found.append(match)
        else:
            return found, word
    return found, ""


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    everyone = cards(facts, run)
    known = looked_at(facts, run, everyone)
    yield from nvml_errors.findings(INVENTORY, facts, run)
    missing = list(_missing(facts, run))
    yield from missing
    yield from _counts(facts, run, {finding.where["node"] for finding in missing if finding.severity == "fail"})
    yield from _models(everyone.values())
    yield from _differing(known)
    yield from _free_memory(known, run)
    for rank, measured in facts.items():
        yield from _of_rank(rank, measured, run)
    yield from modes.pending(known)
    if run.job.launcher == "local":
        yield from modes.of_all(known)
    if run.job.backend == "nccl":
        yield from _devices(facts, known, run)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    seen = reading["seen"]
    yield from traits("hardware", {"GPUs on the node": len(seen["pci"] if reading["confined"] else seen["gpus"])})
    for number, handle in reading["seen"]["gpus"].items():
        identity = reading["look"]["gpus"].get(handle["uuid"], {})
        had = {"number": number, "model": handle["name"], "serial": handle["serial"], "VBIOS": identity.get("vbios")}
        had["memory MiB"] = identity["memory_total"] >> 20 if identity.get("memory_total") else None
        yield from traits("hardware", had, handle["uuid"])


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    everyone = list(cards(facts, run).values())
    if not everyone:
        return "no NVIDIA GPU"
    models = vote(enumerate(card.name for card in everyone)).ranks_of
    by_model = ", ".join(f"{len(places)} x {name}" for name, places in models.items())
    drivers = sorted({system["driver"] or "?" for measured in facts.values() if (system := measured["seen"]["system"])})
    nodes = by_node(facts, run).values()
    on_nodes = sum(len(node["seen"]["pci"] if node["confined"] else node["seen"]["gpus"]) for node in nodes)
    of = f", the job's, of {on_nodes} on its nodes" if on_nodes > len(everyone) else ""
    return f"{by_model}{of}; driver {', '.join(drivers)}"


def _counts(facts: Mapping[int, Facts], run: Run, named: set[str]) -> Iterator[Finding]:
    """Compares how many GPUs each node's ranks see together. A GPU that does not answer is counted, and reported
    elsewhere. `named`: nodes whose missing GPUs are already named."""
    of_node: dict[str, set[str]] = {node: set() for node in by_node(facts, run)}
    for rank, measured in facts.items():
        troubles = [trouble for trouble in measured["look"]["troubles"] if trouble["kind"] != PERMISSION]
        unknown = {silent(trouble["gpu"]) for trouble in troubles if trouble["gpu"] is not None}
        uuids = {handle["uuid"] for handle in measured["seen"]["gpus"].values()}
        known = {silent(int(number)) for number in measured["seen"]["gpus"]}
        of_node[run.job.node_of(rank).node] |= uuids | (unknown - known)
    nodes = list(of_node)
    votes = vote(enumerate(map(len, of_node.values())))
    for place, count in votes.odd():
        text = f"{ranges.count(count, 'GPU')}, expected {votes.usual} as on {votes.share('node')}"
        say = COUNT.fail if count < votes.usual else COUNT.warn
        if nodes[place] not in named:
            yield say(text, node=nodes[place])
    if not votes.unanimous and not votes.decided:
        sides = ", ".join(f"{count} on {nodes[places[0]]}" for count, places in votes.ranks_of.items())
        yield COUNT.warn(f"nodes have different numbers of GPUs: {sides}, expected the same")


def _missing(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Missing GPUs, if nothing can have hidden them on purpose."""
    for node, measured in by_node(facts, run).items():
        if measured["confined"] or measured["seen"]["system"] is None:
            continue
        shown = {handle["bus"] for handle in measured["seen"]["gpus"].values()}
        excluded, all_of = set(measured["seen"]["system"]["excluded"]), len(measured["seen"]["pci"])
        gone = [bus for bus in measured["seen"]["pci"] if bus not in shown | excluded]
        for bus in excluded:
            yield EXCLUDED.info(f"the GPU at {bus} is excluded, expected all GPUs to be used", node=node, device=bus)
        unplaced = _unplaced(measured)
        if unplaced and len(gone) > unplaced:
            text = f"NVML lists {ranges.count(len(gone) - unplaced, 'GPU')} too few, among those at {', '.join(gone)}"
            yield MISSING.fail(f"{text}, expected all {all_of}", node=node, fix=_GONE_FIX)
        for bus in () if unplaced else gone:
            driver = measured["unbound"].get(bus)
            text = f"the PCI bus has a GPU at {bus} that NVML does not list, expected all {all_of}"
            say = MISSING.info if driver else MISSING.fail  # vfio-pci and the like hold it on purpose
            yield say(f"{text} (its driver is {driver})" if driver else text, node=node, device=bus)


def _unplaced(measured: Facts) -> int:
    """How many GPUs NVML lists without a known bus id."""
    silent_ones = [t for t in measured["look"]["troubles"] if t["gpu"] is not None and t["uuid"] is None]
    return len(silent_ones) + len([handle for handle in measured["seen"]["gpus"].values() if not handle["bus"]])


def _models(everyone: Any) -> Iterator[Finding]:
    found = compare_cards(((card, card.name) for card in everyone), alike=lambda _: "")
    for odd in found.odd:
        yield MODEL.warn(f"the GPU is {odd.value}, expected {odd.usual} as on {odd.share}", **odd.where)
    for tie in found.ties:
        yield MODEL.warn(f"different GPUs: {tie}; expected one model")


def _differing(known: list[tuple[Card, Any]]) -> Iterator[Finding]:
    """Compares firmware between boards of one make, and memory sizes between models. ECC takes a sixteenth of some
    memories, and the driver reserves some MiB."""
    vbios = compare_cards(
        ((card, identity["vbios"]) for card, identity in known if identity["vbios"]), alike=lambda card: card.make
    )
    for odd in vbios.odd:
        text = f"VBIOS {odd.value}, expected {odd.usual} as on {odd.share}"
        yield VBIOS.warn(text, evidence=odd.card.evidence, **odd.where)
    for tie in vbios.ties:
        yield VBIOS.warn(f"different VBIOS versions: {tie}; expected one on all boards of a make")
    memory = compare_cards(
        (card, round(identity["memory_total"] / GIB)) for card, identity in known if identity["memory_total"]
    )
    for size in memory.odd:
        text = f"{size.value} GiB of memory, expected {size.usual} GiB as on {size.share}"
        say = MEMORY.fail if size.value < FAR_LESS * size.usual else MEMORY.warn
        yield say(text, evidence=size.card.evidence, **size.where)
    for tie in memory.ties:
        yield MEMORY.warn(f"different sizes of memory in GiB: {tie}; expected one on all GPUs of a model")


def _free_memory(known: list[tuple[Card, Any]], run: Run) -> Iterator[Finding]:
    least = run[MIN_MEMORY_GIB]
    for card, identity in known:
        if identity["memory_free"] is not None and identity["memory_free"] < least * GIB:
            free, total = identity["memory_free"] / GIB, (identity["memory_total"] or 0) / GIB
            text = f"{free:.1f} GiB of {total:.1f} are free, expected at least {least:g} GiB (min_memory_gib)"
            yield FREE_MEMORY.fail(text, **card.where)


def _of_rank(rank: int, measured: Facts, run: Run) -> Iterator[Finding]:
    if measured["names_none"] and measured["names_none"] != "-1" and measured["seen"]["gpus"]:
        gpus = ranges.count(len(measured["seen"]["gpus"]), "GPU")
        text = f"CUDA_VISIBLE_DEVICES is {measured['wanted']}: {measured['names_none']} matches none of the {gpus} here"
        yield NOT_VISIBLE.warn(
            f"{text}, expected only GPUs that exist", variable="CUDA_VISIBLE_DEVICES", **run.job.where(rank)
        )
    unknown = any(trouble["uuid"] is None for trouble in measured["look"]["troubles"])
    if measured["torch"] is not None and measured["torch"] != len(measured["visible"]) and not unknown:
        text = f"CUDA shows torch {ranges.count(measured['torch'], 'GPU')}, expected NVML's {len(measured['visible'])}"
        yield TORCH_COUNT.fail(text, **run.job.where(rank))


def _devices(facts: Mapping[int, Facts], known: list[tuple[Card, Any]], run: Run) -> Iterator[Finding]:
    by_uuid = {card.uuid: (card, identity) for card, identity in known}
    holders: dict[str, int] = {}
    for rank, measured in facts.items():
        device = device_of(measured)
        if (measured["seen"]["system"] is None and measured["look"]["troubles"]) or (device or "").startswith(SILENT):
            continue  # already reported
        if device is None:
            shown = "not set" if measured["wanted"] is None else measured["wanted"]
            text = f"local rank {measured['local_rank']} has no GPU: {len(measured['visible'])} are visible"
            text += f" (CUDA_VISIBLE_DEVICES is {shown}), expected one for each rank"
            yield NO_GPU.fail(text, variable="CUDA_VISIBLE_DEVICES", **run.job.where(rank))
            continue
        other = holders.setdefault(device, rank)
        if other != rank:
            text = f"uses GPU {device}, and so does {ranges.ranks([other])}; expected a GPU for each rank"
            yield SHARED_GPU.fail(text, uuid=device, peer_rank=other, **run.job.where(rank))
        if device in by_uuid and run.job.launcher != "local":
            yield from modes.of_rank(rank, *by_uuid[device], run)
        elif device.startswith("MIG-") and run.job.world_size > 1:
            yield modes.instance(rank, device, run)
