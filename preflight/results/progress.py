"""What a run shows while it runs: live on a terminal, plain lines elsewhere. Only on rank 0."""

import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, cast

from preflight.core import rank_ranges
from preflight.core.job import Job
from preflight.results import console
from preflight.results.console import Detail
from preflight.results.report import CheckEntry
from preflight.results.result import Result

if TYPE_CHECKING:
    from rich.text import Text

REFRESH_S = 0.25
"""Seconds between redraws: rank 0 may be in a timed collective, and a redraw takes a core for some milliseconds."""
BAR_S, BAR_WIDTH = 2.0, 24
"""A check with at least this estimate has a progress bar, of this many columns."""
WIDEST = 120
"""Columns of wrapped text: longer lines are hard to read."""
LONG_S = 15.0
"""Seconds after which a log hears that a check still runs, again and again."""
_NOWHERE = Job("local", 1, "gloo", ())


class Plain:
    """One line per check when it ends: for logs, pipes and CI."""

    def __init__(self, write: Callable[[str], None], width: int | None = None) -> None:
        """`width`: the terminal's columns, to which check lines are cut; None if there is no terminal."""
        self._write = write
        self._width = width
        self._running: tuple[str, float, float] | None = None
        """The check that runs, when it began, and what it takes on a sound machine."""
        self._said_at = 0.0

    def say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(console.plain(line) + "\n")

    @property
    def width(self) -> int:
        return min(self._width or console.WIDTH, WIDEST)

    def planned(self, checks: Sequence[str]) -> None:
        """The ids of all checks to come."""

    def running(self, check: str, estimate_s: float) -> None:
        """A check begins that takes about `estimate_s` on a sound machine."""
        self._said_at = time.monotonic()
        self._running = (check, self._said_at, estimate_s)

    def ended(self, result: Result) -> None:
        """A check has its result, or one that replaces an earlier one."""
        self._running = None
        self.say([console.check_line(result.entry(_NOWHERE), self._width)])

    def left_out(self, check: str) -> None:  # noqa: ARG002 -- for Live
        """A check that turned out to apply to no rank."""
        self._running = None

    def turn(self) -> None:
        """Called from the supervisor's loop: says what still runs, or redraws what moves."""
        now = time.monotonic()
        if self._running and now - self._said_at >= LONG_S:
            check, since, estimate_s = self._running
            self._said_at = now
            expected = f", expected about {estimate_s:.0f} s" if estimate_s >= BAR_S else ""
            self.say([console.status_line("RUN", check, now - since, f"is still running{expected}", self._width)])

    def close(self) -> None:
        """Stops redrawing: findings and verdict follow."""


class Live(Plain):
    """A family becomes one line when all its checks have passed; the running check shows its time.

    rich draws without its own thread: a fork would not copy it, and a supervisor has no threads.
    """

    def __init__(self, write: Callable[[str], None], width: int | None = None, **terminal: Any) -> None:
        """`terminal`: for rich.console.Console, in tests."""
        super().__init__(write, width)
        self._plan: list[str] = []
        self._results: dict[str, CheckEntry] = {}
        self._drawn_at = 0.0
        from rich.console import Console
        from rich.live import Live as RichLive

        class Terminal(Console):
            def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 -- rich's signature
                """Never hides it: a killed process could not show it again."""
                return False

        file = cast(IO[str], _File(write))
        self._console = Terminal(file=file, force_terminal=True, width=width, highlight=False, **terminal)
        self._live = RichLive(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
            get_renderable=self._drawn, vertical_overflow="ellipsis",
        )  # fmt: skip

    @property
    def width(self) -> int:
        return min(self._console.width, WIDEST)

    def say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(styled(line), soft_wrap=True)

    def planned(self, checks: Sequence[str]) -> None:
        self._plan = list(dict.fromkeys([*self._results, *checks]))
        self._live.start()

    def running(self, check: str, estimate_s: float) -> None:
        self._running = (check, time.monotonic(), estimate_s)
        self._draw()

    def ended(self, result: Result) -> None:
        self._running = None
        self.restore(result.entry(_NOWHERE))

    def left_out(self, check: str) -> None:
        self._running = None
        self._plan.remove(check)
        self._draw()

    def restore(self, entry: CheckEntry) -> None:
        """Shows a check from a report."""
        self._results[entry.check] = entry
        self._plan += [entry.check] if entry.check not in self._plan else []
        self._draw()

    def turn(self) -> None:
        if self._running and time.monotonic() - self._drawn_at >= REFRESH_S:
            self._draw()

    def close(self) -> None:
        self._running = None
        if self._live.is_started:
            self._live.stop()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if self._live.is_started:
            self._live.refresh()

    def _drawn(self) -> "Text":
        from rich.text import Text

        return Text("\n").join(styled(line) for line in self.lines())

    def lines(self) -> list[str]:
        width = self._console.width
        lines: list[str] = []
        for family in dict.fromkeys(check.partition(".")[0] for check in self._plan):
            lines += self._family([check for check in self._plan if check.partition(".")[0] == family], width)
        if self._running:
            lines.append(_running_line(*self._running, width))
        to_come = len(self._plan) - len(self._results) - bool(self._running)
        return [*lines, f"      {rank_ranges.count(to_come, 'check')} to come"] if to_come and self._running else lines

    def _family(self, checks: list[str], width: int) -> list[str]:
        done = [self._results[check] for check in checks if check in self._results]
        passed = [entry for entry in done if entry.status == "pass"]
        if len(done) == len(checks) == len(passed) > 1:
            return [console.folded_line(passed, width)]
        return [console.check_line(entry, width) for entry in done]


def _running_line(check: str, since: float, estimate_s: float, width: int) -> str:
    seconds = time.monotonic() - since
    bar = ""
    if estimate_s >= BAR_S:
        filled = min(BAR_WIDTH, round(BAR_WIDTH * seconds / estimate_s))
        bar = f"{'━' * filled}{'─' * (BAR_WIDTH - filled)}  of about {estimate_s:.0f} s"
    return console.status_line("RUN", check, seconds, bar).rstrip()[:width]


def styled(line: str) -> "Text":
    """Labels have their own background, so that they are readable on dark and light terminals."""
    from rich.text import Text

    text = Text(console.plain(line))
    for style, words in (
        ("bold white on red", "FAIL|ERROR"), ("bold black on yellow", "WARN"), ("bold green", "PASS"),
        ("bold", "SKIP|INFO|RUN|WAIVED"),
    ):  # fmt: skip
        text.highlight_regex(rf"(?:^|(?<=^verdict: ))(?:{words})\b", style)
    text.highlight_regex(r"(?<=^      )fix:", "bold")
    if line.startswith(console.PICTURE):
        for style, words in _IN_PICTURES:
            text.highlight_regex(rf"(?<= )(?:{words})(?= |$)", style)
    return text


_IN_PICTURES = (
    ("green", r"NV\d+|OK"), ("cyan", "PIX|PXB"), ("yellow", "PHB|NODE"), ("magenta", "SYS"), ("bold red", r"\S+!"),
)  # fmt: skip
"""Near is green, far is magenta; a cell that ends with "!" is wrong."""


class _File(io.TextIOBase):
    """The file through which rich writes: a terminal that accepts nothing any more must not block the run."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._say = write
        self._waiting: list[str] = []

    def write(self, text: str, /) -> int:
        self._waiting.append(text)
        return len(text)

    def flush(self) -> None:
        text, self._waiting = "".join(self._waiting), []
        if text:
            self._say(text)

    def isatty(self) -> bool:
        return True


class Quiet(Plain):
    """Says nothing of a check that passes, or that still runs."""

    def ended(self, result: Result) -> None:
        if result.entry(_NOWHERE).status != "pass":
            super().ended(result)

    def turn(self) -> None:
        pass


def choose(
    write: Callable[[str], None], width: int | None, environ: Mapping[str, str], detail: Detail = Detail.USUAL
) -> Plain:
    """`Live` on a terminal that can redraw (`width`: its columns), else `Plain`; `Quiet` where the user wants that."""
    if detail is Detail.QUIET:
        return Quiet(write, width)
    is_plain = width is None or environ.get("NO_COLOR") or environ.get("CI") or environ.get("TERM", "dumb") == "dumb"
    return Plain(write, width) if is_plain else Live(write)


def show(lines: Sequence[str], file: IO[str]) -> None:
    """Prints a saved report's lines, styled on a terminal."""
    width = os.get_terminal_size(file.fileno()).columns if file.isatty() else None
    choose(lambda text: print(text, end="", file=file), width, os.environ).say(lines)
