"""Who sends to whom in which step, so that in each step a rank has one partner and only one of the two sends.

A plan holds a step as {sender: receiver}, by the ranks' numbers in the job; all links of a step are used at once.
"""

from collections.abc import Iterable, Sequence

from preflight.check import Job, pairs

Step = dict[int, int]
ALL_PAIRS = 32
"""Up to so many nodes every pair of them is tried; above, each meets twice log2 of their number, near and far ones."""


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
    """Neighbours in the ring of each group, both ways: every second link of the ring, then the others; the link that
    closes a ring of an odd number by itself."""
    turns: list[list[tuple[int, int]]] = [[], [], []]
    for group in groups:
        size = len(group)
        for place in range(size if size > 2 else size - 1):
            last = size % 2 == 1 and place == size - 1
            turns[2 if last else place % 2].append((group[place], group[(place + 1) % size]))
    return _both_ways(turns)


def steps_within(groups: Sequence[Sequence[int]]) -> list[Step]:
    """All pairs of each group."""
    turns = max((pairs.rounds_for_all(len(group)) for group in groups), default=0)
    return _both_ways([pair for group in groups for pair in pairs.meeting(group, turn)] for turn in range(turns))


def steps_between(job: Job, members: Iterable[int]) -> list[Step]:
    """Pairs of nodes: in a round each node has one partner, and each of its ranks meets the one in its own place."""
    ranks, place_of = set(members), {rank: place for node in job.nodes for place, rank in enumerate(sorted(node.ranks))}
    at = {(node.node_rank, place_of[rank]): rank for node in job.nodes for rank in node.ranks if rank in ranks}
    width = max((len(node.ranks) for node in job.nodes), default=0)
    here = sorted({node for node, _ in at})
    turns = []
    for turn in rounds_between(len(here)):
        ends = [((a, place), (b, place)) for a, b in pairs.meeting(here, turn) for place in range(width)]
        turns.append([(at[one_end], at[other]) for one_end, other in ends if one_end in at and other in at])
    return _both_ways(turns)


def rounds_between(nodes: int) -> Sequence[int]:
    """The rounds in which so many nodes meet."""
    return pairs.rounds(nodes, ALL_PAIRS)


def _both_ways(turns: Iterable[Sequence[tuple[int, int]]]) -> list[Step]:
    steps = [step for turn in turns if turn for step in (dict(turn), {b: a for a, b in turn})]
    return [step for step in steps if step]
