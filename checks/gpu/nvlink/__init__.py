"""NVLink: all of each card's links are up, at full speed, without errors, and the fabric is set up.

The expected number comes from catalog.tsv, else from the card's siblings: an H100 NVL has 12 of 18 by design, and PCIe
cards have none without a bridge. With NVSwitches the fabric manager must have added each GPU to the fabric, and GPUs
that share memory must be in one clique; between nodes NCCL also needs IMEX. Error counters start when the driver is
loaded; gpu.released reports what rises during the run.
"""

import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TypedDict

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Group,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Skip,
    Trait,
    grouped,
    option,
    plots,
    ranges,
    traits,
    vote,
    words,
)
from preflight.checks.gpu.nvlink import catalog, fabric, imex, nvlink_map
from preflight.checks.gpu.nvlink.nvlink_map import Short, Wired
from preflight.checks.gpu.shared import nvml_errors, nvml_survey, pci, plotted
from preflight.checks.gpu.shared.cards import INVENTORY, Card, by_node, looked_at
from preflight.checks.gpu.shared.nvml_survey import GpuLook
from preflight.checks.gpu.shared.readings import NvLink, NvLinkPort
from preflight.checks.gpu.shared.unused_gpus import milder_elsewhere
from preflight.sdk import files

PARTS = (nvml_errors,)
PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=60, estimate_s=0.2, after={INVENTORY: After.READS})

TRAINING_S = option(float, 30.0, "seconds to wait for links and fabric on a node that has just booted")

INACTIVE = Code(
    "Fewer NVLinks are up than the card or its siblings have.",
    fix="On {node}: nvidia-smi nvlink -s -i {gpu}; dmesg | grep -i xid. Reset the GPU (nvidia-smi -r -i {gpu}); if the "
    "link stays down, drain the node and have the GPU reseated or replaced.",
    action=Action.RESET_GPU,
    see=("node.kernel",),
)
SWITCH = Code(
    "Most GPUs of a node have lost their links to one NVSwitch.",
    fix="On {node}: dmesg | grep -i sxid; journalctl -u nvidia-fabricmanager. Reboot; else have the board replaced.",
    action=Action.REBOOT,
    see=("node.kernel",),
)
NO_BRIDGE = Code(
    "GPUs that support NVLink bridges have none.",
    fix="Nothing, unless there should be one: then nvidia-smi nvlink -s, and reseat it.",
    action=Action.NONE,
)
SLOW = Code(
    "An NVLink is slower than it should be.",
    fix="On {node}: nvidia-smi nvlink -s -i {gpu}. Reset the GPU (nvidia-smi -r -i {gpu}), else drain the node.",
    action=Action.RESET_GPU,
)
ERRORS = Code(
    "An NVLink has far more errors than its siblings.",
    fix="On {node}: nvidia-smi nvlink -e -i {gpu}; dmesg | grep -i xid. Reseat the GPU or its bridge, else drain.",
    action=Action.REPLACE,
    see=("node.kernel",),
)
FABRIC = Code(
    "A GPU has not joined its NVSwitch fabric: CUDA does not start on it.",
    fix="On {node}: systemctl restart nvidia-fabricmanager (in the driver's version), else nvidia-smi -r (all GPUs).",
)
FABRIC_HEALTH = Code(
    "A GPU reports that its NVSwitch fabric is not healthy.",
    fix="On {node}: nvidia-smi -q | grep -A 12 Fabric; journalctl -u nvidia-fabricmanager. Reset the GPU, else drain.",
    action=Action.RESET_GPU,
)
CLIQUE = Code(
    "GPUs that should reach each other over NVLink are in different cliques.",
    fix="On {node}: nvidia-smi -q | grep -A 4 Fabric; compare it with the partitions of the fabric manager (NMX).",
)
DOMAINS = Code(
    "The nodes are in different NVLink domains.",
    fix="Nothing, if the job is larger than a domain; else place it within one (Slurm: topology/block, --segment).",
    action=Action.NONE,
)
IMEX = Code(
    "IMEX does not work, which NCCL needs for NVLink between nodes.",
    fix="On {node}: systemctl start nvidia-imex; for the channel, NVreg_CreateImexChannel0=1 in /etc/modprobe.d, then "
    "reload the driver. Give containers /dev/nvidia-caps-imex-channels. NCCL_MNNVL_ENABLE=0 avoids it.",
)

MANY, TIMES = 1000, 10
RECOVERY = "recovery"
MANY_ERRORS = {
    "replay": MANY, "crc_flit": MANY, "crc_data": MANY, RECOVERY: 10, "recovery_failed": 1, "malformed_packets": MANY,
    "buffer_overruns": MANY, "rcv_errors": MANY, "local_link_integrity": MANY, "effective_errors": MANY,
}  # fmt: skip
"""Counters from this value on are reported if they are also ten times what is usual on the node's links: DCGM calls 100
CRC errors per second a fault, a few a day are normal. The others count corrections, or effects of a reset."""
ENDS = 2
"""A recovery counts at both ends of a link between GPUs. If only one link of a node has any, it is reported: working
links do not retrain (Meta's health checks, gcm, tolerate none), but a reset makes all of them do so."""
BOOTING_S, PAUSE_S = 600.0, 2.0
"""How long after boot links may still be training, and the time between polls."""
SLOWER = 0.9
"""Share of the expected speed: drivers report it with or without the coding, 25 or 25.78 GB/s."""


class Facts(TypedDict):
    look: GpuLook
    """NvLink by UUID, with only the error counters that are not zero."""
    counters: list[str]
    """Names of the error counters that the driver has."""
    switches: list[str]
    """Bus ids of the node's NVSwitches."""
    imex: imex.Imex
    disabled: bool
    """Whether a driver parameter turns NVLink off."""


def measure(ctx: Context) -> Facts:
    look = _settled(ctx)
    links = [link for gpu in look["gpus"].values() for link in gpu["links"] or ()]
    counters = sorted({name for link in links for name in link["errors"]})
    for link in links:
        link["errors"] = {name: count for name, count in link["errors"].items() if count}
    clusters = {gpu["fabric"]["cluster"] for gpu in look["gpus"].values() if gpu["fabric"]}
    ctx.doing("looking for IMEX")
    service = imex.look(ctx, clusters, nvml_survey.confined(ctx.environ))
    facts: Facts = {
        "look": look,
        "counters": counters,
        "switches": pci.switches(),
        "imex": service,
        "disabled": "NvLinkDisable: 1" in files.read("/proc/driver/nvidia/params"),
    }
    if unread := [look["numbers"][uuid] for uuid, gpu in look["gpus"].items() if gpu["links"] is None]:
        raise Skip(f"the NVLinks of GPU {ranges.to_text(unread)} cannot be read", facts)
    return nvml_survey.complete(ctx, facts)


def _settled(ctx: Context) -> GpuLook:
    """The links after training: for some minutes after boot, links train and GPUs join their fabric."""
    end = time.monotonic() + min(ctx[TRAINING_S], 0.5 * ctx.deadline_s)
    while True:
        look = nvml_survey.session().look(ctx, "nvlink")
        has_booted = time.clock_gettime(time.CLOCK_BOOTTIME) > BOOTING_S
        if has_booted or time.monotonic() > end or not any(_may_be_training(gpu) for gpu in look["gpus"].values()):
            return look
        ctx.doing("waiting for NVLinks after the boot")
        time.sleep(PAUSE_S)


def _may_be_training(gpu: NvLink) -> bool:
    links = gpu["links"] or []
    down = [link for link in links if link["active"] is False]
    return 0 < len(down) < len(links) or bool(gpu["fabric"] and gpu["fabric"]["state"] in fabric.STATES)


@milder_elsewhere
def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from nvml_errors.findings("gpu.nvlink", facts, run)
    looked = looked_at(facts, run)
    disabled = {node for node, measured in by_node(facts, run).items() if measured["disabled"]}
    off = sorted(disabled & {card.node for card, _ in looked})
    for node in off:
        yield INACTIVE.info("NVLink is turned off by the driver, expected NvLinkDisable: 0", node=node, fix=_OFF_FIX)
    known = [(card, nvlink) for card, nvlink in looked if not card.mig and card.node not in off]
    fabrics = [(card, nvlink["fabric"]) for card, nvlink in known if nvlink["fabric"]]
    named = yield from fabric.none_set_up(FABRIC, fabrics)
    read = [(card, nvlink["links"]) for card, nvlink in known if card.node not in named and nvlink["links"] is not None]
    gpus = [nvlink_map.wired(card, links) for card, links in read]
    short = yield from _missing(gpus, {node: measured["switches"] for node, measured in by_node(facts, run).items()})
    yield from fabric.not_set_up(FABRIC, fabrics, named, short)
    yield from fabric.unhealthy(FABRIC_HEALTH, fabrics, short)
    yield from fabric.cliques(CLIQUE, DOMAINS, fabrics)
    yield from _slow(gpus)
    yield from _errors(gpus)
    yield from _imex(facts, fabrics, run)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    for uuid, nvlink in reading["look"]["gpus"].items():
        active = [link for link in nvlink["links"] or () if link["active"]]
        speeds = sorted({link["speed_mbps"] for link in active if link["speed_mbps"]})
        of = {"active NVLinks": len(active), "NVLink MB/s": " and ".join(map(str, speeds))}
        yield from traits("link", of if nvlink["links"] else {}, uuid)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "8 GPUs, 18 links each at 26.6 GB/s, NVSwitch"."""
    known = [nvlink["links"] or [] for _, nvlink in looked_at(facts, run)]
    active = [[link for link in links if link["active"]] for links in known]
    if not known or not any(active):
        return "no NVLink is up" if any(known) else "the GPUs have no NVLink"
    counts = vote(enumerate(len(links) for links in active)).ranks_of
    parts = [f"{ranges.count(len(gpus), 'GPU')}, {ranges.count(up, 'link')} each" for up, gpus in counts.items()]
    speeds = sorted({(link["speed_mbps"] or 0) / 1000 for links in active for link in links})
    at = f" at {' and '.join(f'{speed:.1f}' for speed in speeds)} GB/s" if all(speeds) else ""
    kinds = {link["remote_type"] for links in active for link in links}
    return f"{'; '.join(parts)}{at}" + (", NVSwitch" if "switch" in kinds else ", GPU to GPU" if "gpu" in kinds else "")


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    known = [(card, nvlink["links"]) for card, nvlink in looked_at(facts, run) if nvlink["links"]]
    active = [[link for link in links if link["active"]] for _, links in known]
    speeds = [[link["speed_mbps"] / 1000 for link in links if link["speed_mbps"]] for links in active]
    errors = [sum(sum(link["errors"].values()) for link in links) for _, links in known]
    values = (
        ("links that are up", "", [len(links) for links in active], (INACTIVE,)),
        ("slowest link", "GB/s", [min(own, default=None) for own in speeds], (SLOW,)),
        ("errors of all links since the driver was loaded", "", errors, (ERRORS,)),
    )
    yield from plotted.strips("NVLinks of each GPU", known, judge(facts, run), values)


# Links that are down


def groups(facts: Mapping[int, Facts], run: Run) -> Iterator[Group]:
    return fabric.groups([(card, nvlink["fabric"]) for card, nvlink in looked_at(facts, run) if nvlink["fabric"]])


def _missing(gpus: Sequence[Wired], switches: Mapping[str, list[str]]) -> Generator[Finding, None, set[Card]]:
    """Findings about missing links; returns the GPUs that lack some."""
    found, ties, bridged = nvlink_map.short(gpus)
    for tie in ties:
        fix = "There: nvidia-smi nvlink -s; dmesg | grep -i xid. Reset the GPUs that have fewer: nvidia-smi -r"
        yield INACTIVE.warn(f"different numbers of NVLinks are up: {tie}; expected one number", fix=fix)
    for tie in bridged:
        yield NO_BRIDGE.info(f"some GPUs have a bridge and some have none, NVLinks: {tie}; expected one number")
    by_node = grouped(gpus, lambda gpu: gpu.card.node)
    for node, of_node in grouped(found, lambda short: short.wired.card.node).items():
        yield from _of_node(of_node, by_node[node], switches.get(node, []))
    for of_one in by_node.values():
        yield from _no_bridge(of_one)
    return {short.wired.card for short in found}


def _of_node(found: Sequence[Short], gpus: Sequence[Wired], listed: Sequence[str]) -> Iterator[Finding]:
    single = [short for short in found if not short.whole_node]
    for short in found:
        if short.whole_node:
            text = f"each GPU has {short.wired.up or 'no'} NVLinks up, expected {short.as_on}"
            yield INACTIVE.warn(text, node=short.wired.card.node, fix=_ALL_FIX)
    if any(gpu.at_gpus for gpu in gpus):
        yield from _between_gpus(single, gpus)
    else:
        yield from _to_switches(single, gpus, listed)


def _between_gpus(found: Sequence[Short], gpus: Sequence[Wired]) -> Iterator[Finding]:
    hub = nvlink_map.hub(found)
    if hub:
        others = ranges.to_text(short.wired.card.gpu for short in found if short is not hub)
        yield _lone(hub, f" to GPUs {others}")
        return
    pairs = nvlink_map.pairs(found, gpus)
    for pair in pairs:
        peer = pair.other.card
        between = f" between GPU {pair.short.wired.card.gpu} and GPU {peer.gpu}"
        yield _lone(pair.short, between, pair.missing, peer)
    if not pairs:
        yield from (_lone(short, "") for short in found)


def _to_switches(found: Sequence[Short], gpus: Sequence[Wired], listed: Sequence[str]) -> Iterator[Finding]:
    blamed = nvlink_map.bad_switches(found, gpus, listed)
    for bus, lost in blamed.items():
        short, node = lost[0], lost[0].wired.card.node
        whom = f"{len(lost)} of {ranges.count(len(gpus), 'GPU')}"
        if bus:
            text = f"{whom} lost NVLinks to the NVSwitch at {bus}: {short.wired.up} are up, expected {short.as_on}"
            yield SWITCH.fail(text, node=node, device=bus, evidence={"gpus": [each.wired.card.gpu for each in lost]})
        else:
            text = f"each of {len(lost)} GPUs has {short.wired.up or 'no'} NVLinks up, expected {short.as_on}"
            yield (INACTIVE.fail if short.sure else INACTIVE.warn)(text, node=node, fix=_ALL_FIX)
    explained = {short.wired.card for lost in blamed.values() for short in lost}
    for short in found:
        to = nvlink_map.lost_to(short.wired, gpus)
        if short.wired.card not in explained or not to.keys() <= blamed.keys():
            known = f" to the NVSwitch at {' and '.join(to)}" if sum(to.values()) == short.missing else ""
            yield _lone(short, known)


_OFF_FIX = "Nothing, if intended; else remove NVreg_NvLinkDisable=1 from /etc/modprobe.d on {node}, and reboot."
_ALL_FIX = (
    "On {node}: dmesg | grep -i -e nvlink -e xid; journalctl -u nvidia-fabricmanager. Reboot; else have the board "
    "replaced."
)


def _lone(short: Short, to: str, missing: int | None = None, peer: Card | None = None) -> Finding:
    """A finding about one GPU. `to`: where the links lead, or ""; `peer`: the GPU at the other end; `missing`: how many
    links to it."""
    card, link = short.wired.card, short.down[0] if len(short.down) == 1 else None
    missing = short.missing if missing is None else missing
    name = f"NVLink {link}" if link is not None else ranges.count(missing, "NVLink")
    whose = f" of GPU {card.gpu}" if peer else ""
    text = f"{name}{to} {'is' if missing == 1 else 'are'} down: {short.wired.up}{whose} are up, expected {short.as_on}"
    ends = {"peer": peer.bus, "peer_uuid": peer.uuid} if peer else {}
    evidence = {"links": list(short.down), **ends, **card.evidence}
    say = INACTIVE.fail if short.sure else INACTIVE.warn
    return say(text, evidence=evidence, link=link, peer_gpu=peer.gpu if peer else None, **card.where)


def _no_bridge(gpus: Sequence[Wired]) -> Iterator[Finding]:
    products = [product for gpu in gpus if (product := catalog.known(gpu.card.name))]
    may_have_bridges = 1 < len(products) == len(gpus) and all(product.bridge for product in products)
    if may_have_bridges and not any(gpu.up for gpu in gpus):
        text = f"no NVLink is up between {len(gpus)} x {products[0].name}, expected {products[0].links} with bridges"
        yield NO_BRIDGE.info(text, node=gpus[0].card.node)


# Speed and errors


def _slow(gpus: Sequence[Wired]) -> Iterator[Finding]:
    speeds: dict[str, Counter[int]] = {}
    for gpu in gpus:
        counts = speeds.setdefault(gpu.card.name, Counter())
        counts.update(link["speed_mbps"] for link in gpu.links if link["speed_mbps"])
    for gpu in gpus:
        product, usual = catalog.known(gpu.card.name), speeds[gpu.card.name].most_common(1)
        known = product.speed_mbps if product else None
        expected = known or (usual[0][0] if usual else 0)
        speed_of = {link["link"]: link["speed_mbps"] or expected for link in gpu.links}
        slow = {link: speed for link, speed in speed_of.items() if speed < SLOWER * expected}
        if slow:
            name = f"NVLink{'' if len(slow) == 1 else 's'} {ranges.to_text(slow)}"
            verb = "runs" if len(slow) == 1 else "run"
            text = f"{name} {verb} at {min(slow.values()) / 1000:.1f} GB/s, expected {expected / 1000:.1f} GB/s as "
            text += "this card has" if known else "most of its siblings' links"
            link = next(iter(slow)) if len(slow) == 1 else None
            yield SLOW.warn(text, link=link, evidence=gpu.card.evidence, **gpu.card.where)


def _errors(gpus: Sequence[Wired]) -> Iterator[Finding]:
    by_node: dict[str, list[NvLinkPort]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.card.node, []).extend(link for link in gpu.links if link["active"])
    for gpu in gpus:
        bad: dict[int, dict[str, int]] = {}
        for link in gpu.links:
            many = {
                name: count for name, count in link["errors"].items() if _is_odd(name, count, by_node[gpu.card.node])
            }
            bad |= {link["link"]: many} if many else {}
        if bad:
            errors = [
                f"{count:,} {name} on NVLink {at}" for at, counts in bad.items() for name, count in counts.items()
            ]
            text = f"errors since the driver was loaded: {words.some(errors, 3)}; expected about as few as on "
            link_number = next(iter(bad)) if len(bad) == 1 else None
            evidence = {"errors": {str(link): counts for link, counts in bad.items()}, **gpu.card.evidence}
            yield ERRORS.warn(f"{text}the node's other links", link=link_number, evidence=evidence, **gpu.card.where)


def _is_odd(name: str, count: int, links: Sequence[NvLinkPort]) -> bool:
    """Whether a counter is far above what is usual. `links`: all links of the node."""
    if name == RECOVERY and sum(bool(link["errors"].get(name)) for link in links) <= min(ENDS, len(links) - 1):
        return count > 0
    return name in MANY_ERRORS and count >= MANY_ERRORS[name] and count > TIMES * _usual(name, links)


def _usual(name: str, links: Sequence[NvLinkPort]) -> float:
    import statistics  # not where there is no GPU

    return statistics.median(link["errors"].get(name, 0) for link in links)


def _imex(facts: Mapping[int, Facts], fabrics: fabric.Fabrics, run: Run) -> Iterator[Finding]:
    """NCCL fails at start-up if GPUs have a domain and IMEX does not work (src/mnnvl.cc)."""
    nodes = {card.node for card, info in fabrics if fabric.is_part(info) and info["cluster"] != fabric.NO_CLUSTER}
    for rank, measured in facts.items():
        node, lack = run.job.node_of(rank).node, imex.lacks(measured["imex"])
        if node in nodes and lack:
            nodes.remove(node)
            text = f"{lack}, expected IMEX to work: the GPUs are in an NVLink domain of several nodes"
            off = measured["imex"]["switched_off"]
            fails = run.job.backend == "nccl" and len(run.job.nodes) > 1  # on one node it is not used
            say = IMEX.fail if fails and not off else IMEX.info
            yield say(f"{text}, but {off}" if off else text, node=node)
