"""For a job that failed: who waited for whom, and until when each rank appeared in the logs."""

from collections.abc import Sequence

from markupsafe import Markup

from preflight.core import rank_ranges, words
from preflight.core.finding import Reported
from preflight.results import console
from preflight.results.page import marks, plotted
from preflight.results.page.marks import Scale, tag, text
from preflight.results.report import Explained, RankSpan

WIDTH, ROW, LEFT, RIGHT = 900, 18, 130, 40
MOST = 64
"""The most ranks that are drawn: the culprits, then those that ended first."""


def draw(explained: Explained, found: Sequence[Reported]) -> dict[str, object]:
    """`waited`: a table; `ranks`: a picture, empty if no line has a time and a rank."""
    rows = [
        [
            rank_ranges.ranks(rank_ranges.from_text(finding.noticed_by)),
            console.plain(console.culprit(finding)) or "no known culprit",
            finding.code,
        ]
        for finding in found
        if finding.noticed_by and finding.severity != "info"
    ]
    culprits = {finding.where["rank"] for finding in found if "rank" in finding.where and finding.severity == "fail"}
    return {
        "waited": plotted.table(["these noticed it", "and waited for", "finding"], rows, "who waited for whom"),
        "ranks": _ranks(explained.ranks, culprits),
    }  # fmt: skip


def _ranks(spans: Sequence[RankSpan], culprits: set[int]) -> Markup:
    if not spans:
        return Markup("")
    begin = min(span.first for span in spans)
    shown = sorted(spans, key=lambda span: (span.rank not in culprits, span.last))[:MOST]
    scale = Scale(0.0, max(1.0, max(span.last for span in spans) - begin), LEFT, WIDTH - RIGHT)
    height = 30 + ROW * len(shown)
    content = [*marks.time_axis(scale, height, words.duration)]
    for number, span in enumerate(shown):
        y, blamed = 26 + number * ROW, span.rank in culprits
        start, end = scale(span.first - begin), scale(span.last - begin)
        title = f"rank {span.rank}: in the logs from {span.first - begin:.1f} s to {span.last - begin:.1f} s"
        content.append(
            text(LEFT - 8, y + 10, f"{'! ' * blamed}rank {span.rank}", "end", "odd-name" if blamed else None)
        )
        bar = tag("rect", tag("title", title), x=start, y=y, width=max(2.0, end - start), height=11,
                  class_="s-fail" if blamed else "bar")  # fmt: skip
        content.append(bar)
    left = len(spans) - len(shown)
    more = f"; {rank_ranges.count(left, 'rank')} that appear longer are not drawn" if left else ""
    head = f"From the first to the last line of each rank that a signature knows, in seconds from the first{more}."
    return tag("p", head) + marks.scrolled(head, WIDTH, height, content)
