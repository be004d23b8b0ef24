"""What a GPU reports about its NVSwitch fabric, and which GPUs share it."""

from collections.abc import Generator, Iterator, Mapping, Sequence

from preflight.check import Code, Finding, Group, Severity, grouped, ranges, vote
from preflight.checks.gpu.shared.cards import Card
from preflight.checks.gpu.shared.readings import Fabric

NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
STATES = {NOT_STARTED: "not started", IN_PROGRESS: "in progress"}
NO_CLUSTER = 32 * "0"
"""The UUID if only GPUs of one node are linked."""

FAIL, WARN = Severity.FAIL, Severity.WARN
FEWER_LINKS = 5
"""A wrong configuration that only means that links are down."""
_CONFIGURED_WRONG = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    FEWER_LINKS: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}
_YES, _NO = 1, 2
_CONDITIONS = (
    (0, _YES, "reduced bandwidth", WARN),
    (2, _YES, "routes that are being recovered", WARN),
    (4, _YES, "unhealthy routes", FAIL),
    (6, _YES, "an access that timed out and is being recovered", WARN),
    (12, _NO, "no partition assigned", WARN),
    (14, _NO, "no connection to the fabric manager", WARN),
)
"""(position in the mask, bad value, words, severity), two bits each; nvml.h: NVML_GPU_FABRIC_HEALTH_MASK_*. Zero means
not supported."""
_SUMMARIES = {2: ("an unhealthy summary", WARN), 3: ("limited capacity", WARN)}


def is_part(fabric: Fabric) -> bool:
    """Whether there is a fabric, and the GPU has joined it."""
    return fabric["state"] == COMPLETED and fabric["status"] == 0


def _unset(fabric: Fabric) -> str:
    """Why the GPU has not joined its fabric; "" if it has, or there is none."""
    if fabric["state"] not in (*STATES, COMPLETED):
        return ""
    if fabric["state"] != COMPLETED:
        return f"its state is {STATES[fabric['state']]}"
    return f"its status is NVML error {fabric['status']}" if fabric["status"] else ""


def _ills(fabric: Fabric, links_are_down: bool) -> Iterator[tuple[str, Severity]]:
    """(what the GPU reports as bad about its fabric, severity). `links_are_down`: already reported, with effects."""
    mask = fabric["health_mask"] or 0
    followed = {0} if links_are_down else set()
    found = [(words, how) for at, bad, words, how in _CONDITIONS if mask >> at & 3 == bad and at not in followed]
    wrong = mask >> 8 & 0xF
    if wrong > 1 and not (wrong == FEWER_LINKS and links_are_down):
        found.append((f"a wrong configuration ({_CONFIGURED_WRONG.get(wrong, f'code {wrong}')})", FAIL))
    if not found and not links_are_down and fabric["health_summary"] in _SUMMARIES:
        found.append(_SUMMARIES[fabric["health_summary"]])
    yield from found


def _named(cluster: str) -> str:
    return f"{cluster[:8]}..." if cluster != NO_CLUSTER else "none"


# What is found

Fabrics = Sequence[tuple[Card, Fabric]]


def _by_node(fabrics: Fabrics) -> dict[str, list[tuple[Card, Fabric]]]:
    known = ((card, fabric) for card, fabric in fabrics if fabric["state"] in (*STATES, COMPLETED))
    return grouped(known, lambda pair: pair[0].node)


def none_set_up(code: Code, fabrics: Fabrics) -> Generator[Finding, None, set[str]]:
    """Findings about nodes where no GPU has joined; returns these nodes, whose links need no judging."""
    named = set()
    for node, gpus in _by_node(fabrics).items():
        reasons = {_unset(fabric) for _, fabric in gpus}
        if len(gpus) > 1 and "" not in reasons:
            text = f"none of {len(gpus)} GPUs has joined the NVSwitch fabric: {' or '.join(sorted(reasons))}"
            yield code.fail(f"{text}, expected state completed, status success", node=node)
            named.add(node)
    return named


def not_set_up(code: Code, fabrics: Fabrics, named: set[str], short: set[Card]) -> Iterator[Finding]:
    """GPUs that have not joined, except those with dead links, which cannot and are already reported."""
    for card, fabric in fabrics:
        reason = _unset(fabric)
        if reason and card.node not in named and card not in short:
            text = f"the GPU has not joined the NVSwitch fabric: {reason}, expected state completed, status success"
            yield code.fail(text, evidence={"bus": card.bus}, **card.where)


def unhealthy(code: Code, fabrics: Fabrics, short: set[Card]) -> Iterator[Finding]:
    """One finding per node if all its GPUs report the same."""
    for node, gpus in _by_node(fabrics).items():
        joined = [(card, fabric) for card, fabric in gpus if is_part(fabric)]
        ills = [(ill, card) for card, fabric in joined for ill in _ills(fabric, card in short)]
        for (words, severity), sick in grouped(ills, lambda pair: pair[0]).items():
            whole = 1 < len(sick) == len(gpus)
            for _, card in sick[:1] if whole else sick:
                whom = f"all {len(gpus)} GPUs report" if whole else "the GPU reports"
                text = f"{whom} of the NVSwitch fabric: {words}; expected a healthy one"
                where = {"node": node} if whole else card.where
                yield code.finding(severity, text, evidence={"bus": card.bus}, **where)


def cliques(code: Code, several: Code, fabrics: Fabrics) -> Iterator[Finding]:
    usual: dict[str, tuple[str, int]] = {}
    for node, gpus in _by_node(fabrics).items():
        parts = [(card, (fabric["cluster"], fabric["clique"])) for card, fabric in gpus if is_part(fabric)]
        votes = vote(enumerate(value for _, value in parts))
        for place, value in votes.odd():
            card, share = parts[place][0], f"{votes.share('GPU')} of the node"
            text = f"the GPU is in {_clique(value)}, expected {_clique(votes.usual)} as on {share}"
            yield code.fail(text, evidence={"bus": card.bus}, **card.where)
        if not votes.unanimous and not votes.decided:
            sides = ", ".join(f"{len(places)} in {_clique(value)}" for value, places in votes.ranks_of.items())
            yield code.fail(f"the node's GPUs are in different cliques: {sides}; expected one", node=node)
        elif parts:
            usual[node] = votes.usual
    yield from _domains(code, several, usual)


def _clique(value: tuple[str, int]) -> str:
    cluster, clique = value
    return f"clique {clique}" + (f" of domain {_named(cluster)}" if cluster != NO_CLUSTER else "")


def _domains(code: Code, several: Code, usual: Mapping[str, tuple[str, int]]) -> Iterator[Finding]:
    """Compares nodes; an NVLink domain is a cluster UUID. `usual`: each node's cluster and clique."""
    nodes = list(usual)
    joined = vote(enumerate(cluster != NO_CLUSTER for cluster, _ in usual.values()))
    for place, has_one in joined.odd():
        if not has_one:
            text = f"the GPUs are in no NVLink domain, expected one as on {joined.share('node')}"
            yield code.warn(text, node=nodes[place])
    domains = grouped((node for node in usual if usual[node][0] != NO_CLUSTER), lambda node: usual[node][0])
    if len(domains) > 1:
        sizes = ", ".join(f"{ranges.count(len(of), 'node')} in {_named(cluster)}" for cluster, of in domains.items())
        yield several.info(f"the job is in {len(domains)} NVLink domains: {sizes}; expected one for NVLink all over")
    for cluster, of_one in domains.items():
        cliques = vote(enumerate(usual[node][1] for node in of_one))
        for place, clique in cliques.odd():
            text = f"the GPUs are in clique {clique} of domain {_named(cluster)}, expected clique "
            yield code.warn(f"{text}{cliques.usual} as on {cliques.share('node')}", node=of_one[place])
        if not cliques.unanimous and not cliques.decided:
            text = f"the nodes of domain {_named(cluster)} are in {len(cliques.ranks_of)} cliques"
            yield several.info(f"{text}, expected one for NVLink between all")


def groups(fabrics: Fabrics) -> Iterator[Group]:
    """The nodes of each NVLink domain, and of each clique in it. A node whose GPUs disagree is in none."""
    places: dict[str, tuple[str, int]] = {}
    for node, gpus in _by_node(fabrics).items():
        of_node = {(fabric["cluster"], fabric["clique"]) for _, fabric in gpus if is_part(fabric)}
        if len(of_node) == 1 and (place := of_node.pop())[0] != NO_CLUSTER:
            places[node] = place
    for cluster, nodes in grouped(places, lambda node: places[node][0]).items():
        yield Group(f"NVLink domain {_named(cluster)}", tuple(nodes))
    for place, nodes in grouped(places, places.__getitem__).items():
        yield Group(_clique(place), tuple(nodes))
