"""Schedules who sends to whom in which step: in each step a rank has one partner, and only one of the two sends.

A plan has each step as {sender: receiver}, in ranks of the job; all links of a step are used at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from preflight.check import Job, pairs

Step = dict[int, int]
ALL_PAIRS = 32
"""Up to this many nodes all pairs are tried; above, each meets twice log2 of their number, near and far ones."""


def group_by_rail(job: Job, members: Iterable[int]) -> list[list[int]]:
    """The members of each rail: those with the same place among their node's ranks, in the order of the nodes."""
    present = set(members)
    width = max((len(node.ranks) for node in job.nodes), default=0)
    places = [[sorted(node.ranks)[place] for node in job.nodes if place < len(node.ranks)] for place in range(width)]
    chosen = [[rank for rank in ranks if rank in present] for ranks in places]
    return [ranks for ranks in chosen if ranks]


def group_by_node(job: Job, members: Iterable[int]) -> list[list[int]]:
    """The members on each node."""
    present = set(members)
    chosen = [sorted(present.intersection(node.ranks)) for node in job.nodes]
    return [ranks for ranks in chosen if ranks]


def ring_steps(groups: Sequence[Sequence[int]]) -> list[Step]:
    """Neighbors in each group's ring, both ways: every second link, then the others; the link that closes an odd ring
    has its own step."""
    turns: list[list[tuple[int, int]]] = [[], [], []]
    for group in groups:
        size = len(group)
        for place in range(size if size > 2 else size - 1):
            last = size % 2 == 1 and place == size - 1
            turns[2 if last else place % 2].append((group[place], group[(place + 1) % size]))
    return _both_ways(turns)


def steps_within(groups: Sequence[Sequence[int]]) -> list[Step]:
    """All pairs within each group."""
    turns = max((pairs.rounds_for_all(len(group)) for group in groups), default=0)
    return _both_ways([pair for group in groups for pair in pairs.meeting(group, turn)] for turn in range(turns))


def steps_between(job: Job, members: Iterable[int], turns: Iterable[int] | None = None) -> list[Step]:
    """Pairs of nodes: in a round each node has one partner, and each rank meets the one in its place there.
    `turns`: the numbers of the rounds, if not all of them."""
    ranks, place_of = set(members), {rank: place for node in job.nodes for place, rank in enumerate(sorted(node.ranks))}
    at = {(node.node_rank, place_of[rank]): rank for node in job.nodes for rank in node.ranks if rank in ranks}
    width = max((len(node.ranks) for node in job.nodes), default=0)
    involved = sorted({node for node, _ in at})
    met = []
    for turn in rounds_between(len(involved)) if turns is None else turns:
        ends = [((a, place), (b, place)) for a, b in pairs.meeting(involved, turn) for place in range(width)]
        met.append([(at[one_end], at[other]) for one_end, other in ends if one_end in at and other in at])
    return _both_ways(met)


def steps_again(
    steps: Sequence[Step], bad: Collection[pairs.Pair], job: Job, *, with_each_other: bool = False
) -> list[Step]:
    """The steps of a second measurement: those with `bad` links, including their sound links. Above ALL_PAIRS nodes at
    most log2 of their number, in rounds of two steps: those in which as many ranks as possible are met by FEW others,
    and, `with_each_other`, rounds among the nodes that are bad with most others. If these are fast there, not they
    are slow, but what lies between them and the others."""
    nodes = len(job.nodes)
    if nodes <= ALL_PAIRS:
        return [step for step in steps if any(link in bad for link in step.items())]
    rounds = (nodes - 1).bit_length()
    own: list[Step] = []
    if with_each_other:
        suspects = _bad_with_most(steps, bad, job)
        turns = range(min(rounds // 2, pairs.rounds_for_all(len(suspects))))
        own = steps_between(job, [rank for number in suspects for rank in job.nodes[number].ranks], turns)
    return _covering(steps, bad, 2 * rounds - len(own)) + own


def _bad_with_most(steps: Sequence[Step], bad: Collection[pairs.Pair], job: Job) -> list[int]:
    """The numbers of the nodes with mostly bad links."""
    node_of = {rank: number for number, node in enumerate(job.nodes) for rank in node.ranks}
    tried = Counter(node_of[rank] for step in steps for link in step.items() for rank in link)
    slow = Counter(node_of[rank] for link in bad for rank in link)
    return sorted(node for node, count in slow.items() if 2 * count > tried[node])


def _covering(steps: Sequence[Step], bad: Collection[pairs.Pair], most: int) -> list[Step]:
    """Up to `most` steps: first those with the most ranks that have few bad links in the steps chosen before."""
    left = {number: [link for link in step.items() if link in bad] for number, step in enumerate(steps)}
    chosen: list[int] = []
    met: Counter[tuple[int, int]] = Counter()

    def gain(number: int) -> int:
        return sum(met[rank, role] < pairs.FEW for link in left[number] for role, rank in enumerate(link))

    while len(chosen) < most and (number := max(left, key=gain, default=None)) is not None and gain(number):
        chosen.append(number)
        met.update((rank, role) for link in left.pop(number) for role, rank in enumerate(link))
    return [steps[number] for number in sorted(chosen)]


def rounds_between(nodes: int) -> Sequence[int]:
    """The numbers of the rounds in which `nodes` nodes meet."""
    return pairs.rounds(nodes, ALL_PAIRS)


def _both_ways(turns: Iterable[Sequence[tuple[int, int]]]) -> list[Step]:
    steps = [step for turn in turns if turn for step in (dict(turn), {b: a for a, b in turn})]
    return [step for step in steps if step]
