"""Collectives that hang since one rank does not do what the others do: told by torch's flight recorder alone (the check
marks no collective), and on gloo, where the loudest rank is often a healthy one."""

from typing import Any

from preflight.core import rank_ranges
from tests.faults.row import Fault, elsewhere

ALL_REDUCE, OMITTED = "all_reduce of 8 float32 #2", "all_reduce of 8 float32 #5"


# The sound check `after` stands second in a run, so that the second row's numbers are one higher.


def _hang(deed: str, rank: int, world: int, shares: str, story: str, says: str, **more: Any) -> Fault:
    """`says`: with {others}, in ranks."""
    others = sorted(set(range(world)) - {rank})
    details: dict[str, Any] = {
        "finds": (f"fail plugin.steps_{deed}.desync",), "noticed_by": rank_ranges.to_text(others), **more,
    }  # fmt: skip
    return Fault(
        name=f"hang_{deed}", story=story, made=f"one of five collectives, on rank {rank} of {world}: `steps_{deed}`",
        culprit={"rank": rank}, world=world, after=world, plugins=(f"steps_{deed}", "after"), shares=shares,
        environ_of={rank: {f"TEST_STEPS_{deed.upper()}": "1"}}, says=says.format(others=rank_ranges.ranks(others)),
        **details,
    )  # fmt: skip


ALL = (
    _hang("other", 1, 5, "hangs of five", "One rank broadcasts where the others reduce.",
          f"broadcast of 8 float32 #2 while {{others}} waited inside {ALL_REDUCE}"),
    _hang("small", 2, 5, "hangs of five", "One rank reduces fewer elements than the others.",
          "all_reduce of 2 float32 #3 while {others} "),
    _hang("omit", 3, 5, "hangs of five", "One rank leaves a collective out, and goes on with the next.",
          f"all_gather of 4 float32 #2 while {{others}} waited inside {ALL_REDUCE}"),
    _hang("omit_last", 4, 5, "hangs of five", "One rank leaves out the last collective, and is done.",
          f"left measure() without entering {OMITTED}, inside which {{others}} waited"),
    _hang("twice", 1, 4, "hangs of four", "One rank does a collective twice.",
          "was inside all_reduce of 8 float32 #3 while {others} waited inside all_gather of 4 float32 #3"),
    _hang("once_more", 2, 4, "hangs of four", "One rank does one collective more than the others.",
          "waited alone inside all_reduce of 8 float32 #7: {others} left measure() without it", noticed_by=""),
    _hang("late", 3, 4, "hangs of four", "One rank never comes to a collective.",
          "it never entered all_gather of 4 float32 #3, in which {others} waited",
          finds=("fail plugin.steps_late.timed_out",)),
    _hang("wrapped", 0, 4, "hangs of four", "One rank never comes, and the others raise exceptions of their own.",
          "it never entered all_gather of 4 float32 #3, in which {others} waited",
          finds=("fail plugin.steps_wrapped.timed_out",)),
    _hang("shape", 1, 4, "hangs of four", "One rank reduces more elements: gloo ends a healthy one of the others.",
          f"all_reduce of 16 float32 #2 while {{others}} waited inside {ALL_REDUCE}"),
    Fault("hang_not_at_all", "A check is too slow: all ranks reduce without end, and none waits for another.",
          "all-reduces for ever on all ranks: `steps_endless`", ("fail plugin.steps_endless.timed_out",), culprit={},
          plugins=("steps_endless", "after"), world=4, after=4, shares="hangs of four",
          environ_of={rank: {"TEST_STEPS_ENDLESS": "1"} for rank in range(4)},
          says="all 4 ranks were still at work after"),
)  # fmt: skip
ELSEWHERE = (
    elsewhere("hang_of_two", "One of two ranks leaves out the last collective: nothing tells which of them is wrong.",
              "the last of five collectives, on rank 1 of 2: `steps_omit_last`",
              "fail plugin.steps_omit_last.desync", culprit={}, world=2),
)  # fmt: skip
