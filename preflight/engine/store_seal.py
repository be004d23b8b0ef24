"""Signs what ranks write into the store, where all ranks of the job share a secret that the store does not hold.

Anybody who reaches the store's port can read, write and list its keys. With a secret a value that somebody else has
written, moved from another key, or changed is seen; without one, only what does not fit is (store_messages.py).
"""

import hmac
import os
from collections.abc import Mapping

from preflight.engine import store_keys
from preflight.errors import UsageError

SECRET = "PREFLIGHT_SECRET"  # noqa: S105 -- the variable's name
"""The variable with the job's secret, the same on all ranks. `preflight run` makes one for ranks that it starts."""
SHORTEST = 16
"""Characters: 16 random hexadecimal digits are 64 bits."""
BROKEN = "\0"
"""Begins what `Seal.open` returns instead of a text that nobody of this run has written; why follows. (No JSON begins
like this.)"""
UNSIGNED = frozenset({store_keys.SERVED_BY})
"""Keys that another job, with another secret or none, must be able to read: only then does it know whose port it is."""
_MARK = "hmac-sha256:"
_DIGITS = 64


class Seal:
    """Signatures with a job's secret; with "" texts stay as they are."""

    def __init__(self, secret: str = "") -> None:
        self._secret = os.fsencode(secret)

    def __bool__(self) -> bool:
        return bool(self._secret)

    def _signature(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, f"{key}\0{text}".encode(), "sha256").hex()

    def close(self, key: str, text: str) -> str:
        """What is written under this key."""
        return f"{_MARK}{self._signature(key, text)}\n{text}" if self._secret and key not in UNSIGNED else text

    def open(self, key: str, value: bytes) -> str:
        """The text that was closed under this key; else BROKEN, why it is not to be believed, and after a line's end
        what it claims (see `claimed`)."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return f"{BROKEN}bytes that are not UTF-8"
        is_signed = text.startswith(_MARK)
        head, _, signed = text.partition("\n") if is_signed else ("", "", text)
        if key in UNSIGNED or not (self._secret or is_signed):
            return text
        if not self._secret:
            return f"{BROKEN}a value that is signed, and {SECRET} is not set on this rank\n{signed}"
        if not is_signed:
            return f"{BROKEN}a value that is not signed with {SECRET}\n{signed}"
        if not hmac.compare_digest(head[len(_MARK) :].encode(), self._signature(key, signed).encode()):
            return f"{BROKEN}a value that is signed with another secret, or was changed or moved here\n{signed}"
        return signed


def why_broken(opened: str) -> str:
    """Of what `Seal.open` returned and BROKEN begins."""
    return opened.removeprefix(BROKEN).partition("\n")[0]


def claimed(opened: str) -> str:
    """What a value says that nobody of this run has signed: anybody may have written it. "" if it is not readable, or
    if BROKEN does not begin what `Seal.open` returned."""
    return opened.partition("\n")[2] if opened.startswith(BROKEN) else ""


def of(environ: Mapping[str, str]) -> Seal:
    """The seal of this job's secret. Raises UsageError for one that could be guessed."""
    secret = environ.get(SECRET, "").strip()
    if 0 < len(secret) < SHORTEST:
        raise UsageError(f"{SECRET} has {len(secret)} characters, expected {SHORTEST} or more: openssl rand -hex 16")
    return Seal(secret)


def new_secret() -> str:
    return os.urandom(16).hex()
