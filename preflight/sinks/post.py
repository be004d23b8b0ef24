"""Sends the report to a URL: JSON in an envelope, gzipped, limited in size and time, retried while time is left."""

import contextlib
import gzip
import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from preflight._version import VERSION
from preflight.results.report import CheckEntry, Report

MOST = 1024 * 1024
"""Bytes, gzipped: receivers refuse more. A larger report is sent without evidence and outcomes, then without checks."""
LONGEST_TOKEN = 8192
TRY_S, PAUSE_S = 1.5, 0.2
"""Time for an answer; pause before the next try, doubled each time."""
AGAIN = (408, 425, 429)
"""HTTP statuses that ask for another try, beside 5xx."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No other host may see the token."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def send(url: str, token_path: str | None, report: Report, end: float) -> None:
    """Retries until `end` on the monotonic clock. Raises OSError or ValueError that says why the last try failed."""
    body = packed(report)
    headers = {
        "Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": f"preflight/{VERSION}",
        "Idempotency-Key": report.run,
    }  # fmt: skip
    if token_path:
        headers["Authorization"] = f"Bearer {_token(token_path)}"
    pause_s = PAUSE_S
    while True:
        why, is_final = _try(url, body, headers, min(TRY_S, end - time.monotonic()))
        if not why:
            return
        if is_final or time.monotonic() + pause_s >= end - 0.1:
            raise OSError(why)
        time.sleep(pause_s)
        pause_s *= 2


def packed(report: Report) -> bytes:
    """The envelope, gzipped. Its sha256 is that of the contained report's JSON, with sorted keys."""
    small = replace(report, checks=[_bare(check) for check in report.checks])
    body = b""
    for cut, sent in (("", report), ("evidence, outcomes", small), ("checks", replace(report, checks=[]))):
        data = sent.to_json()
        text = json.dumps(data, sort_keys=True, allow_nan=False)
        envelope = {
            "schemaVersion": 1, "kind": "preflight.report", "reportID": report.run, "cut": cut,
            "sha256": hashlib.sha256(text.encode()).hexdigest(), "report": data,
        }  # fmt: skip
        body = gzip.compress(json.dumps(envelope, sort_keys=True, allow_nan=False).encode(), 6, mtime=0)
        if len(body) <= MOST:
            break
    return body


def _bare(check: CheckEntry) -> CheckEntry:
    return replace(check, outcomes=[], findings=[replace(finding, evidence={}) for finding in check.findings])


def _token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(LONGEST_TOKEN).strip()
    except OSError as error:
        raise OSError(f"--post-token {path}: {error.strerror}") from None
    if not token or not token.isprintable():
        raise ValueError(f"{path} holds no token")
    return token


def _try(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[str, bool]:
    """(why it was not accepted, or ""; whether another try would be useless)."""
    request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310 -- the command line has looked at its scheme
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with contextlib.closing(opener.open(request, timeout=max(seconds, 0.1))):
            return "", True
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code} {error.reason}", error.code < 500 and error.code not in AGAIN
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return getattr(reason, "strerror", "") or str(reason) or type(error).__name__, False
