"""Which way of NCCL a collective cannot take: found by leaving out one after the other, once all together have helped.

The simplest way comes first, and its time says how long the others are waited for: so a hang is told within seconds.
What helps is tried twice, and so is the way that the job takes. Where it leads within a node, its GPUs then meet in
pairs.
"""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from preflight.check import Context, ranges
from preflight.checks.comm.paths import ways
from preflight.checks.comm.paths.trial import Trial, attempt
from preflight.checks.comm.paths.ways import AS_IT_IS, SOCKETS_ONLY, Detour
from preflight.checks.comm.shared import meetings
from preflight.sdk import pairs

OWN = Detour(AS_IT_IS, {}, "")
SIMPLEST = Detour("over sockets only", SOCKETS_ONLY, "")
LEAST_S = 5.0
"""For a process: with less time nothing is tried."""
PATIENCE, LEAST_PATIENCE_S = 4.0, 10.0
"""A way is waited for this many times as long as the simplest one has taken, and the job's own, which may set up more,
not less than this."""
MOST_PAIRED = 16
"""GPUs of a node that meet in pairs."""


class PairTrial(TypedDict):
    ranks: list[int]
    failed: str


class Found(TypedDict):
    trials: list[Trial]
    pairs: list[PairTrial]
    """As the job runs it, but of two ranks each; empty if none was tried."""


class Search:
    """In lockstep on all ranks: each decides by what all have shared."""

    def __init__(self, ctx: Context, patience_s: float, end: float) -> None:
        self._ctx, self._patience_s, self._end = ctx, patience_s, end
        self._nodes = meetings.group_by_node(ctx.job, ctx.members)
        self._turns, self._simple = 0, False
        self.trials: list[Trial] = []

    def tried(self, way: Detour = OWN) -> bool:
        """Whether it works; False also where there was no time."""
        if self.trials and self.trials[-1]["left_s"] < LEAST_S:
            return False
        trial = self._attempt(way, self._ctx.members)
        self.trials.append(trial)
        return trial["works"]

    def works(self) -> bool:
        """Whether the way that the job takes does."""
        if self.tried(SIMPLEST):
            self._simple = True
            self._patience_s = self._patience(LEAST_PATIENCE_S)
        return self.tried()

    def _patience(self, least_s: float) -> float:
        return min(self._patience_s, max(least_s, PATIENCE * self.trials[0]["seconds"]))

    def run(self) -> Found:
        """After the way that the job takes has failed."""
        if self._simple:
            self._patience_s = self._patience(LEAST_S)
            helps = next(filter(self.tried, self._singly()), None)
        else:
            helps = next(filter(self.tried, ways.of_sockets(len(self._nodes))), None)
        again = helps is not None and not self.tried(OWN) and self.tried(helps)
        return {"trials": self.trials, "pairs": [*self._pairs()] if again and helps and helps.within_node else []}

    def _attempt(self, way: Detour, ranks: Sequence[int]) -> Trial:
        self._turns += 1
        return attempt(self._ctx, str(self._turns), way, ranks, self._patience_s, self._end)

    def _singly(self) -> list[Detour]:
        """NVLS takes three or more GPUs of a node. Without P2P it is not there, either: so it is left out first."""
        has_nvls = max(map(len, self._nodes)) > 2
        return sorted(ways.singly(len(self._nodes)), key=lambda way: (way is ways.NVLS) != has_nvls)

    def _pairs(self) -> Iterator[PairTrial]:
        """All pairs within each node, as far as there is time."""
        most = min(MOST_PAIRED, max(map(len, self._nodes)))
        left_s = self.trials[-1]["left_s"]
        for turn in pairs.rounds(most, most) if most > 2 else ():
            if left_s < LEAST_S:
                return
            met = [*self._meeting(turn, most)]
            own = next((pair for pair in met if self._ctx.rank in pair), [self._ctx.rank])
            trial = self._attempt(OWN, own)
            left_s = trial["left_s"]
            failed = {text: {*ranges.from_text(ranks)} for text, ranks in trial["failed"].items()}
            for pair in met:
                why = [text for text, ranks in failed.items() if ranks & {*pair}]
                yield {"ranks": pair, "failed": why[0] if why else ""}

    def _meeting(self, turn: int, most: int) -> Iterator[list[int]]:
        for ranks in self._nodes:
            for place, rank in enumerate(ranks[:most]):
                other = pairs.partner(place, turn, most)
                if other is not None and place < other < len(ranks):
                    yield [rank, ranks[other]]
