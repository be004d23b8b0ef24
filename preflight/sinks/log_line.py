"""One line in the system's log: the verdict and its first reason."""

import logging
import logging.handlers
import os

from preflight.results import console
from preflight.results.report import Report

SOCKET = "/dev/log"
LEVELS = {"pass": logging.INFO, "warn": logging.WARNING, "fail": logging.ERROR, "error": logging.ERROR}
LONGEST = 800
"""Characters: syslogd must accept 1024 bytes in all (RFC 3164, 4.1)."""


class _Handler(logging.handlers.SysLogHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 -- logging's
        raise


def write(report: Report, socket: str = SOCKET) -> None:
    """Raises OSError if no syslogd listens."""
    text = console.plain(console.sentence(report)).removeprefix("preflight: ").replace("\n", " ")
    text = f"{text[:LONGEST]} (run {report.run})"
    try:
        handler = _Handler(socket, _Handler.LOG_DAEMON)
        handler.ident = f"preflight[{os.getpid()}]: "
        handler.emit(logging.LogRecord("preflight", LEVELS[report.verdict], "", 0, text, None, None))
        handler.close()
    except OSError as error:
        raise OSError(f"nothing listens at {socket} ({error.strerror})") from None
