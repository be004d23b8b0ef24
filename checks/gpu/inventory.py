"""Inventory: every node has the GPUs that the others have, and every rank one of its own.

Reads from NVML which GPUs there are, from sysfs which the PCI bus has, and maps CUDA_VISIBLE_DEVICES to UUIDs as CUDA
does. With torch (level standard and above) CUDA's count is held against that. Judged are the GPUs that the job can
see: in a container or under a cgroup those are not all of the node's, and the summary says so.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from preflight.check import Code, Context, Finding, Level, NotApplicable, Plan, Run, Scope, option, ranges, vote
from preflight.checks.gpu import pci, probing
from preflight.checks.gpu.cards import (
    INVENTORY,
    NO_ANSWER_FIX,
    NO_ANSWER_MEANING,
    Card,
    cards,
    compared,
    looked_at,
    unanswered,
)
from preflight.checks.gpu.elsewhere import milder_elsewhere, silent
from preflight.checks.gpu.probing import Look, Seen
from preflight.checks.gpu.visible import chosen

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=120, estimate_s=0.3)

MIN_MEMORY_GIB = option(float, 0.0, "least free memory of a GPU; 0 asks for none")

NO_ANSWER = Code(NO_ANSWER_MEANING, fix=NO_ANSWER_FIX)
COUNT = Code(
    "A node has another number of GPUs than the others.",
    fix="See nvidia-smi -L and lspci -d 10de: on {node}; a GPU that has gone needs a cold reboot, else drain the node.",
)
MISSING = Code(
    "The PCI bus has a GPU that the driver does not show.",
    fix="See dmesg | grep -i -e nvrm -e {device} on {node}; reboot the node, and drain it if the GPU stays away.",
)
MODEL = Code("A node has unlike GPUs.", fix="Start the job on nodes of one model: the slowest GPU sets the pace.")
VBIOS = Code(
    "A GPU has another VBIOS than its siblings.", fix="Flash the version of the others with the vendor's tool."
)
MEMORY = Code("A GPU has another size of memory than its siblings.", fix="See nvidia-smi -q -d MEMORY -i {gpu}.")
FREE_MEMORY = Code("A GPU has too little free memory.", fix="See who has it: nvidia-smi -i {gpu}; end it.")
SHARED_GPU = Code(
    "Two ranks take the same GPU.",
    fix="Let each take cuda:LOCAL_RANK; check CUDA_VISIBLE_DEVICES and the number of ranks a node.",
)
NO_GPU = Code(
    "A rank has no GPU where others have one.",
    fix="Show it its GPU (CUDA_VISIBLE_DEVICES), or start fewer ranks on the node.",
)
NOT_VISIBLE = Code(
    "CUDA_VISIBLE_DEVICES has an entry that names no GPU: CUDA stops reading there.",
    fix="List GPUs that are here (nvidia-smi -L).",
)
TORCH_COUNT = Code(
    "CUDA gives torch another number of GPUs than NVML.",
    fix="Run python -c 'import torch; torch.cuda.init()' on {node} and see what it says; see dmesg for a sick GPU.",
)
MIG = Code("A rank would take a slice of a GPU (MIG).", fix="nvidia-smi -i {gpu} -mig 0, as root, with no job on it.")
EXCLUSIVE = Code("A GPU's compute mode keeps ranks out.", fix="nvidia-smi -i {gpu} -c DEFAULT, as root.")
EXCLUDED = Code("A GPU was excluded by an administrator.", fix="See NVreg_ExcludedGpus in /etc/modprobe.d.")

GIB = 2**30
PROHIBITED, ONE_PROCESS = 2, 3
TORCH_S = 60.0


class Facts(TypedDict):
    seen: Seen
    look: Look
    """Identities by UUID, of the GPUs that this rank looks at."""
    visible: list[str]
    """UUIDs that CUDA shows this rank, in CUDA's order; MIG instances have UUIDs of their own."""
    wanted: str | None
    """CUDA_VISIBLE_DEVICES."""
    names_none: str
    """Its first entry that names no GPU."""
    confined: bool
    """Whether this is a container or a job's cgroup, where GPUs may be hidden on purpose."""
    unbound: dict[str, str]
    """The driver, or "", of each GPU on the PCI bus that is not NVIDIA's own."""
    local_rank: int
    torch: int | None
    """CUDA's count, where torch was imported and has CUDA."""


def measure(ctx: Context) -> Facts:
    session = probing.session()
    wanted = ctx.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        seen = session.seen(ctx)
        look = (
            session.look(ctx, "identity") if seen["system"] else {"gpus": {}, "troubles": session.troubles, "notes": {}}
        )
    except NotApplicable:  # no GPU is a number, too: other nodes may have some
        seen, look = {"system": None, "gpus": {}, "pci": []}, {"gpus": {}, "troubles": [], "notes": {}}
    known = {int(number): handle["uuid"] for number, handle in seen["gpus"].items()}
    count = seen["system"]["count"] if seen["system"] else 0
    visible, names_none = chosen([known.get(gpu) or silent(gpu) for gpu in range(count)], wanted)
    return {
        "seen": seen,
        "look": look,
        "visible": visible,
        "wanted": wanted,
        "names_none": names_none,
        "confined": probing.confined(ctx.environ),
        "unbound": {bus: name for bus in seen["pci"] if (name := pci.driver(bus)) != "nvidia"},
        "local_rank": ctx.local_rank,
        "torch": session.ask(ctx, "torch", None, within_s=TORCH_S)
        if seen["gpus"] and probing.torch_has_cuda()
        else None,
    }


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    everyone = cards(facts, run)
    known = looked_at(facts, run, everyone)
    yield from unanswered(NO_ANSWER, INVENTORY, facts, run)
    yield from _counts(facts, run)
    yield from _missing(facts, run)
    yield from _models(everyone.values())
    yield from _unlike(known)
    yield from _free_memory(known, run)
    for rank, one in facts.items():
        yield from _of_rank(rank, one, run)
    if run.job.backend == "nccl":
        yield from _devices(facts, known, run)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    everyone = list(cards(facts, run).values())
    if not everyone:
        return "no NVIDIA GPU"
    models = vote(enumerate(card.name for card in everyone)).ranks_of
    told = ", ".join(f"{len(places)} x {name}" for name, places in models.items())
    drivers = sorted({system["driver"] or "?" for one in facts.values() if (system := one["seen"]["system"])})
    nodes = _one_a_node(facts, run).values()
    there = sum(len(one["seen"]["pci"] if one["confined"] else one["seen"]["gpus"]) for one in nodes)
    of = f", the job's, of {there} on its nodes" if there > len(everyone) else ""
    return f"{told}{of}; driver {', '.join(drivers)}"


def _one_a_node(facts: Mapping[int, Facts], run: Run) -> dict[str, Facts]:
    found: dict[str, Facts] = {}
    for rank, one in facts.items():
        found.setdefault(run.job.node_of(rank).node, one)
    return found


def _counts(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """GPUs that all ranks of a node see together; a GPU that does not answer is there, and told of otherwise."""
    of_node: dict[str, set[str]] = {node: set() for node in _one_a_node(facts, run)}
    for rank, one in facts.items():
        unknown = {silent(trouble["gpu"]) for trouble in one["look"]["troubles"] if trouble["gpu"] is not None}
        uuids = {handle["uuid"] for handle in one["seen"]["gpus"].values()}
        known = {silent(int(number)) for number in one["seen"]["gpus"]}
        of_node[run.job.node_of(rank).node] |= uuids | (unknown - known)
    nodes = list(of_node)
    votes = vote(enumerate(map(len, of_node.values())))
    for place, count in votes.odd():
        text = f"{ranges.count(count, 'GPU')}, expected {votes.usual} as on {votes.share('node')}"
        say = COUNT.fail if count < votes.usual else COUNT.warn
        yield say(text, node=nodes[place])
    if not votes.unanimous and not votes.decided:
        told = ", ".join(f"{count} on {nodes[places[0]]}" for count, places in votes.ranks_of.items())
        yield COUNT.warn(f"nodes have unlike numbers of GPUs: {told}, expected the same")


def _missing(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Only where nothing can have hidden the GPU on purpose."""
    for node, one in _one_a_node(facts, run).items():
        if one["confined"] or one["seen"]["system"] is None:
            continue
        here = {handle["bus"] for handle in one["seen"]["gpus"].values()}
        excluded = set(one["seen"]["system"]["excluded"])
        gone = [bus for bus in one["seen"]["pci"] if bus not in here | excluded]
        for bus in excluded:
            yield EXCLUDED.info(f"the GPU at {bus} is excluded, expected all GPUs to be used", node=node, device=bus)
        unknown = len([trouble for trouble in one["look"]["troubles"] if trouble["uuid"] is None])
        for bus in gone[unknown:] if unknown < len(gone) else ():
            driver = one["unbound"].get(bus)
            text = f"the PCI bus has a GPU at {bus}, but NVML does not list it, expected {len(one['seen']['pci'])} GPUs"
            say = MISSING.info if driver else MISSING.fail  # vfio-pci and the like hold it on purpose
            yield say(f"{text} (its driver is {driver})" if driver else text, node=node, device=bus)


def _models(everyone: Any) -> Iterator[Finding]:
    found = compared(((card, card.name) for card in everyone), alike=lambda _: "")
    for odd in found.odd:
        yield MODEL.warn(f"the GPU is {odd.value}, expected {odd.usual} as on {odd.share}", **odd.where)
    for tie in found.ties:
        yield MODEL.warn(f"unlike GPUs: {tie}; expected one model")


def _unlike(known: list[tuple[Card, Any]]) -> Iterator[Finding]:
    """A reserve of the driver's may take a MiB more or less."""
    vbios = compared((card, one["vbios"]) for card, one in known if one["vbios"])
    for odd in vbios.odd:
        text = f"VBIOS {odd.value}, expected {odd.usual} as on {odd.share}"
        yield VBIOS.warn(text, evidence=odd.card.evidence, **odd.where)
    for tie in vbios.ties:
        yield VBIOS.warn(f"unlike VBIOS versions: {tie}; expected one on all GPUs of a model")
    memory = compared((card, one["memory_total"] // GIB) for card, one in known if one["memory_total"])
    for size in memory.odd:
        text = f"{size.value} GiB of memory, expected {size.usual} GiB as on {size.share}"
        yield MEMORY.fail(text, evidence=size.card.evidence, **size.where)
    for tie in memory.ties:
        yield MEMORY.warn(f"unlike sizes of memory in GiB: {tie}; expected one on all GPUs of a model")


def _free_memory(known: list[tuple[Card, Any]], run: Run) -> Iterator[Finding]:
    least = run[MIN_MEMORY_GIB]
    for card, one in known:
        if one["memory_free"] is not None and one["memory_free"] < least * GIB:
            free, total = one["memory_free"] / GIB, (one["memory_total"] or 0) / GIB
            text = f"{free:.1f} GiB of {total:.1f} are free, expected at least {least:g} GiB (--set)"
            yield FREE_MEMORY.fail(text, **card.where)


def _of_rank(rank: int, one: Facts, run: Run) -> Iterator[Finding]:
    if one["names_none"] and one["names_none"] != "-1" and one["seen"]["gpus"]:
        here = ranges.count(len(one["seen"]["gpus"]), "GPU")
        text = f"CUDA_VISIBLE_DEVICES is {one['wanted']}: {one['names_none']} names none of the {here} here"
        yield NOT_VISIBLE.warn(
            f"{text}, expected only GPUs that are", variable="CUDA_VISIBLE_DEVICES", **run.job.where(rank)
        )
    unknown = any(trouble["uuid"] is None for trouble in one["look"]["troubles"])
    if one["torch"] is not None and one["torch"] != len(one["visible"]) and not unknown:
        text = f"CUDA gives torch {ranges.count(one['torch'], 'GPU')}, expected {len(one['visible'])} by NVML"
        yield TORCH_COUNT.fail(text, **run.job.where(rank))


def _device(one: Facts) -> str | None:
    """The GPU a rank would take: cuda:LOCAL_RANK, or the only one it sees."""
    index = 0 if len(one["visible"]) == 1 else one["local_rank"]
    return one["visible"][index] if index < len(one["visible"]) else None


def _devices(facts: Mapping[int, Facts], known: list[tuple[Card, Any]], run: Run) -> Iterator[Finding]:
    by_uuid = {card.uuid: (card, one) for card, one in known}
    holders: dict[str, int] = {}
    for rank, one in facts.items():
        if one["seen"]["system"] is None and one["look"]["troubles"]:
            continue  # told already
        device = _device(one)
        if device is None:
            shown = "not set" if one["wanted"] is None else one["wanted"]
            text = f"local rank {one['local_rank']} has no GPU: {len(one['visible'])} are visible"
            text += f" (CUDA_VISIBLE_DEVICES is {shown}), expected one for each rank"
            yield NO_GPU.fail(text, variable="CUDA_VISIBLE_DEVICES", **run.job.where(rank))
            continue
        other = holders.setdefault(device, rank)
        if other != rank:
            text = f"takes the GPU {device} that {ranges.ranks([other])} takes; expected a GPU for each rank"
            yield SHARED_GPU.fail(text, uuid=device, peer_rank=other, **run.job.where(rank))
        if device in by_uuid:
            yield from _mode(rank, *by_uuid[device], run)
        elif device.startswith("MIG-") and run.job.world_size > 1:
            yield _slice(rank, device, run)


def _slice(rank: int, device: str, run: Run, **where: Any) -> Finding:
    text = f"takes the slice {device} of a GPU in MIG mode, expected a whole GPU: NCCL joins no slices"
    return MIG.fail(text, **{**where, "uuid": device}, **run.job.where(rank))


def _mode(rank: int, card: Card, one: Any, run: Run) -> Iterator[Finding]:
    """Of the GPU that a rank takes."""
    where = {key: value for key, value in card.where.items() if key != "node"}
    if one["mig"] and one["mig"]["current"] and run.job.world_size > 1:
        yield _slice(rank, (one["mig"]["devices"] or [card.uuid])[0], run, **where)
    if one["compute_mode"] == PROHIBITED:
        text = "the compute mode is PROHIBITED, expected DEFAULT: no process can use the GPU"
        yield EXCLUSIVE.fail(text, **where, **run.job.where(rank))
    elif one["compute_mode"] == ONE_PROCESS:
        text = "the compute mode is EXCLUSIVE_PROCESS: one process alone can use the GPU, expected DEFAULT"
        yield EXCLUSIVE.info(text, **where, **run.job.where(rank))
