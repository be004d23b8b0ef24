"""Takes secrets out of all that leaves a worker or enters a report."""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[removed]"
_SECRET_WORDS = {
    "key", "keys", "apikey", "token", "tokens", "secret", "secrets", "password", "passwd", "passphrase",
    "credential", "credentials", "auth", "authorization",
}  # fmt: skip
# All bounded, and begun at the beginning of a word only: they run in the supervisor, over 64 KiB of anything.
_NAME = r"(?<![A-Za-z0-9_.-])-{0,2}([A-Za-z_][A-Za-z0-9_.-]{0,200})"
_VALUE = r"(\"[^\"]{0,500}\"|'[^']{0,500}'|(?:(?:Bearer|Basic)\s{1,9})?[^\s,;}]+)"
_USER_INFO = re.compile(r"(?<=://)[^\s\"'<>]{1,500}@")
_ASSIGNMENT = re.compile(_NAME + r"([\"']?\s{0,9}[=:]\s{0,9})" + _VALUE)
_FLAG = re.compile(r"(?<!\S)--?([A-Za-z_][A-Za-z0-9_-]{0,200})(\s{1,9})" + _VALUE)
LONG = 16
SHORTEST = 6
"""A secret variable's value is hidden wherever it stands, unless it is shorter: "1" stands everywhere."""


def is_secret(name: str) -> bool:
    """By its name's words: WANDB_API_KEY and db.password are, KEYBOARD and monkey are not."""
    return bool(_SECRET_WORDS & set(re.split(r"[^a-z0-9]+", name.lower())))


def _is_hidden(value: str) -> bool:
    """The path of a credentials file is no secret, and stands in many a message."""
    return len(value) >= SHORTEST and not (value.startswith("/") and os.path.exists(value))


class Scrubber:
    """Knows the secrets of one environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, value in environ.items() if is_secret(name) and _is_hidden(value)}
        # The longest first: one secret may hold another.
        known = sorted(values, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """User info in URLs, NAME=VALUE of secret names, and the values of secret variables."""
        if self._values:
            text = self._values.sub(HIDDEN, text)
        text = _USER_INFO.sub(HIDDEN + "@", text)
        text = _ASSIGNMENT.sub(_hide_assignment, text)
        return _FLAG.sub(_hide_assignment, text)

    def value(self, value: Any) -> Any:
        """The same in every string of a structure of dicts and lists; what is neither stays as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._key(key): self._item(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _key(self, key: Any) -> Any:
        """A password may be equal to an innocent field's name: only long ones are looked for in names."""
        return self.text(key) if isinstance(key, str) and len(key) >= LONG else key

    def _item(self, key: Any, item: Any) -> Any:
        if not (isinstance(key, str) and is_secret(key)):
            return self.value(item)
        if isinstance(item, list | tuple):
            return [HIDDEN if isinstance(element, str) else self.value(element) for element in item]
        return HIDDEN if isinstance(item, str) else self.value(item)  # 4096 tokens are no secret


def _hide_assignment(match: re.Match[str]) -> str:
    name, _, value = match.groups()
    return match.group().removesuffix(value) + HIDDEN if is_secret(name) else match.group()
