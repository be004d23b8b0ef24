"""Who sends to whom in which step, so that in each step a rank has one partner and only one of the two sends.

A plan holds a step as {sender: receiver}, by the ranks' numbers in the job; all links of a step are used at once.
"""

from collections.abc import Iterable, Sequence

from preflight.check import Job

Step = dict[int, int]
ALL_PAIRS = 32
"""Up to so many nodes every pair of them is tried; above, each meets twice log2 of their number, near and far ones."""


def rails(job: Job, members: Iterable[int]) -> list[list[int]]:
    """The members of each rail: those with the same place among their node's ranks, in the order of the nodes."""
    present = set(members)
    width = max((len(node.ranks) for node in job.nodes), default=0)
    places = [[sorted(node.ranks)[place] for node in job.nodes if place < len(node.ranks)] for place in range(width)]
    chosen = [[rank for rank in ranks if rank in present] for ranks in places]
    return [ranks for ranks in chosen if ranks]


def nodes(job: Job, members: Iterable[int]) -> list[list[int]]:
    """The members on each node."""
    present = set(members)
    chosen = [sorted(present.intersection(node.ranks)) for node in job.nodes]
    return [ranks for ranks in chosen if ranks]


def rings(groups: Sequence[Sequence[int]]) -> list[Step]:
    """Neighbours in the ring of each group, both ways: every second link of the ring, then the others; the link that
    closes a ring of an odd number by itself."""
    turns: list[list[tuple[int, int]]] = [[], [], []]
    for group in groups:
        size = len(group)
        for place in range(size if size > 2 else size - 1):
            last = size % 2 == 1 and place == size - 1
            turns[2 if last else place % 2].append((group[place], group[(place + 1) % size]))
    return _both_ways(turns)


def within(groups: Sequence[Sequence[int]]) -> list[Step]:
    """All pairs of each group."""
    rounds = max((_rounds(len(group)) for group in groups), default=0)
    turns = [[pair for group in groups for pair in _turn(group, turn)] for turn in range(rounds)]
    return _both_ways(turns)


def between(job: Job, members: Iterable[int]) -> list[Step]:
    """Pairs of nodes: in a round each node has one partner, and each of its ranks meets the one in its own place."""
    ranks, place_of = set(members), {rank: place for node in job.nodes for place, rank in enumerate(sorted(node.ranks))}
    at = {(node.node_rank, place_of[rank]): rank for node in job.nodes for rank in node.ranks if rank in ranks}
    width = max((len(node.ranks) for node in job.nodes), default=0)
    here = sorted({node for node, _ in at})
    turns = []
    for turn in chosen(len(here)):
        met = [((a, place), (b, place)) for a, b in _turn(here, turn) for place in range(width)]
        turns.append([(at[one], at[other]) for one, other in met if one in at and other in at])
    return _both_ways(turns)


def chosen(count: int) -> Sequence[int]:
    """The numbers of the rounds in which so many nodes meet."""
    rounds = _rounds(count)
    most = rounds if count <= ALL_PAIRS else 2 * (count - 1).bit_length()
    return [number * rounds // most for number in range(most)]


def _both_ways(turns: Iterable[Sequence[tuple[int, int]]]) -> list[Step]:
    steps = [step for turn in turns if turn for step in (dict(turn), {b: a for a, b in turn})]
    return [step for step in steps if step]


def _rounds(count: int) -> int:
    return 0 if count < 2 else count - 1 + count % 2


def _turn(group: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """The circle method of round-robin tournaments: those whose numbers add up to the round's, modulo the number of
    rounds, meet; of an even number, who would meet itself meets the last one."""
    rounds = _rounds(len(group))
    if turn >= rounds:
        return []
    pairs = [(number, (turn - number) % rounds) for number in range(min(rounds, len(group)))]
    found = [(group[a], group[b]) for a, b in pairs if a < b < len(group)]
    if len(group) % 2 == 0:
        alone = next(a for a, b in pairs if a == b)
        found.append((group[alone], group[-1]))
    return found
