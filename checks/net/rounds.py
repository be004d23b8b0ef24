"""Who meets whom: rounds in which each node has one partner, so that all pairs are tried with nobody in the way."""

from collections.abc import Sequence

ALL_PAIRS = 64
"""Up to so many nodes every pair is tried: 63 rounds of a tenth of a second or two."""


def partners(number: int, nodes: int, at_most: int | None = None) -> list[int | None]:
    """The partner of node `number` (0 to nodes - 1) in each round; None: it sits this one out.

    `at_most`: so many rounds; unset: all up to ALL_PAIRS nodes, then twice log2 of their number. Of an odd number of
    nodes each sits out once in all rounds.
    """
    return [_partner(number, turn, nodes) for turn in chosen(nodes, at_most)]


def chosen(nodes: int, at_most: int | None = None) -> Sequence[int]:
    """The numbers of the rounds that are held: all, or some spread over all, so that a node meets near and far ones."""
    rounds = count(nodes)
    most = at_most or (rounds if nodes <= ALL_PAIRS else 2 * (nodes - 1).bit_length())
    return [number * rounds // most for number in range(most)] if most < rounds else range(rounds)


def count(nodes: int) -> int:
    """The rounds in which all pairs meet."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def _partner(number: int, turn: int, nodes: int) -> int | None:
    """The circle method of round-robin tournaments: those whose numbers add up to the round's meet, modulo the number
    of rounds. Who would meet itself meets the last one, or nobody where their number is odd."""
    rounds = count(nodes)
    last = rounds if nodes % 2 == 0 else None
    if number == last:
        return turn * (rounds + 1) // 2 % rounds  # twice it is the round's number; `rounds` is odd
    partner = (turn - number) % rounds
    return last if partner == number else partner
