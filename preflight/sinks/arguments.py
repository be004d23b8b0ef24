"""Options for where a run's verdict goes."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from preflight.errors import UsageError

AUTO = "auto"
"""The value of --baseline that means the history."""


@dataclass(frozen=True)
class Sinks:
    """What the command line asked for."""

    history: str | None = None
    keep_days: float = 365.0
    baseline: bool = False
    """Whether the run is compared with its history: `--baseline auto`."""
    textfile: str | None = None
    post: str | None = None
    post_token: str | None = None
    """The file that holds the token."""
    syslog: bool = False

    def __bool__(self) -> bool:
        return bool(self.names())

    def names(self) -> str:
        given = (("--history", self.history), ("--textfile", self.textfile), ("--post", self.post))
        return ", ".join([*(option for option, value in given if value), *["--syslog"] * self.syslog])


def add_to(run: argparse._ActionsContainer, named: Callable[[str], str]) -> None:
    """The options of a run."""
    run.add_argument("--history", type=named, metavar="FILE", help="keep what this run found, for preflight history")
    run.add_argument("--keep", type=days, metavar="DAYS", help="drop older runs from --history (365d)")
    run.add_argument("--textfile", type=named, metavar="DIR", help="write for the node exporter of Prometheus")
    run.add_argument("--post", type=_url, metavar="URL", help="send the report there")
    run.add_argument("--post-token", type=named, metavar="FILE", help="a file that holds the bearer token for --post")
    run.add_argument("--syslog", action="store_true", help="write the verdict to the system's log")


def sinks(options: argparse.Namespace) -> Sinks:
    """Raises UsageError for an option without the one that it belongs to."""
    for option, wanted, given in (
        ("--keep", "--history", options.keep and not options.history),
        ("--post-token", "--post", options.post_token and not options.post),
        ("--baseline auto", "--history", options.baseline == AUTO and not options.history),
    ):
        if given:
            raise UsageError(f"{option}: belongs to {wanted}, which is not given")
    return Sinks(
        history=options.history,
        keep_days=options.keep or Sinks.keep_days,
        baseline=options.baseline == AUTO,
        textfile=options.textfile,
        post=options.post,
        post_token=options.post_token,
        syslog=options.syslog,
    )


def shown(url: str) -> str:
    """A URL without its path: the path of a webhook is a secret."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/..."


def days(text: str) -> float:
    """ "365d" or "365". Raises ArgumentTypeError."""
    number = text.strip().lower().removesuffix("d")
    if not number.isdecimal() or not 1 <= int(number) <= 36500:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of days from 1 to 36500, such as 365d")
    return float(number)


def _url(text: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        raise argparse.ArgumentTypeError("expected http://HOST/PATH or https://HOST/PATH")
    return text
