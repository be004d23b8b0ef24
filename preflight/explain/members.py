"""Ranks that announced themselves, against the world that they expect."""

from collections.abc import Iterator

from preflight import ranges
from preflight.explain.story import TELLS_OF, Story
from preflight.explain.theory import EVIDENCE, Theory

WEIGHT = 60
GOES_ON = ("members.all", "nccl.init_complete", "progress.bar", "progress.step", "epoch.end")
"""Rows of what comes when all have come."""
WAITING = {"slow_rank_timeout", "rdzv_incomplete"}
"""What may come while they wait."""


def theories(story: Story) -> Iterator[Theory]:
    """Where fewer ranks say that they begin than all of them expect, and no line says that all have come."""
    found = story.matches("members.one")
    if not found or _went_on(story):
        return
    world = max(int(one.groups["world"][:9]) for one in found)
    came = frozenset(int(one.groups["rank"][:9]) for one in found)
    nodes = {one.line.node for one in found if one.line.node}
    if len(came) >= world or max(came) >= world or len(came) < 2:
        return
    one_block = came <= set(range(max(8, 1 << (len(came) - 1).bit_length()))) and len(nodes) < 2
    slug = "world_size_wrong" if one_block else "rdzv_incomplete"
    why = "only this node's ranks were started" if one_block else "the others never joined"
    text = (
        f"{ranges.count(len(came), 'rank')} of {world} came ({ranges.to_text(came)}): {why}, or WORLD_SIZE, "
        "the number of nodes or of processes on each is not what was started"
    )
    yield Theory(
        slug, "failure", WEIGHT, text, story.moment(found[0].line), {}, came,
        tuple(one.line for one in found[:EVIDENCE]), confidence="medium", count=len(found),
        rows=frozenset({"members.one"}),
    )  # fmt: skip


def _went_on(story: Story) -> bool:
    """Whether all must have come, or what came was no wait but another failure."""
    rows = [kept.matches()[0].signature for kept in story.seen.values()]
    failed = any(row.role in TELLS_OF and row.slug not in WAITING for row in rows)
    return failed or bool(story.seen.keys() & {*GOES_ON}) or any(True for _ in story.tracebacks)
