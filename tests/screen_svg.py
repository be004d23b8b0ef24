"""docs/screen.svg: `python -m tests.screen_svg REPORT` draws a saved report as the terminal showed it."""

import io
import sys
from pathlib import Path

from rich.console import Console

from preflight.results import console, progress, report_files

TARGET = Path(__file__).parent.parent / "docs" / "screen.svg"
WIDTH = 100


def draw(path: str) -> str:
    shown, _ = report_files.load(path)
    drawn = progress.Live(lambda _: None, WIDTH)
    drawn.planned([])
    for check in shown.checks:
        drawn.restore(check)
    drawn.close()
    recorder = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    header = console.header(shown.job, "full", 900.0)
    for line in [header, *drawn.lines(), *console.ending(shown, [], WIDTH)]:
        recorder.print(progress.styled(line), soft_wrap=True)
    return recorder.export_svg(title="torchrun -m preflight --all")


if __name__ == "__main__":
    TARGET.write_text(draw(sys.argv[1]))
