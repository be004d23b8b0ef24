"""Removes secrets from everything that leaves a worker or enters a report."""

import os
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

HIDDEN = "[removed]"
_WORDS = {"key", "keys", "auth", "authorization", "dsn", "cookie", "webhook"}
_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "accesskey", "privatekey")
"""Endings of a word, also without a separator: PGPASSWORD."""
_LAST = {"pat", "pwd", "signature", "sig"}
"""Only after another word: GITHUB_PAT, MYSQL_PWD (PWD is the folder), X-Amz-Signature."""
# All are bounded and start at the beginning of a word only: they run in the supervisor, over 64 KiB of any text.
_ASSIGNED = (
    re.compile(r"(?<![A-Za-z0-9_.-])-{0,2}([A-Za-z_][A-Za-z0-9_.-]{0,200})[\"']?\s{0,9}[=:]\s{0,9}"),
    re.compile(r"(?<!\S)--?([A-Za-z_][A-Za-z0-9_-]{0,200})\s{1,9}"),
)
_VALUE = re.compile(r"\"[^\"]{0,500}\"|'[^']{0,500}'|(?:(?:Bearer|Basic)\s{1,9})?[^\s,;}]+")
_PLACEHOLDER = re.compile(r"[\[<]your[ _-][A-Za-z_ -]{1,40}[\]>]\)?")
"""What instructions put in place of a secret: wandb.login(key=[your_api_key])."""
_USER_INFO = re.compile(r"(?<=://)[^\s\"'<>]{1,500}@")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}(-----END [A-Z ]{0,40}-----)?")
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z_][A-Z0-9_]{0,100})([\"']?(?:=|:\s)[\"']?)([^\s\"',;}]*)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
LONG = 16
SHORTEST = 6
"""A secret variable's value is hidden wherever it occurs, unless it is shorter: "1" occurs everywhere."""
ENVIRONMENT = 6
"""This many variables, with PATH, HOME or PWD among them, count as a whole environment."""


def is_secret(name: str) -> bool:
    """Judges a name by its words: WANDB_API_KEY, db.password and apiKey are; KEYBOARD, monkey and KeyError are not."""
    parts = [part.removesuffix("Id") for part in re.split(r"[^A-Za-z0-9]+", name)]
    words = [re.split(r"(?<=[a-z0-9])(?=[A-Z])", part)[-1].lower() for part in parts]
    return any(word in _WORDS or word.removesuffix("s").endswith(_ENDINGS) for word in words) or (
        len(words) > 1 and words[-1] in _LAST
    )


def _is_hidden(value: str) -> bool:
    """Whether a secret variable's value is hidden everywhere. Not the path of a credentials file: it is no secret, and
    is in many messages. So is an ordinary word or number, which is hidden only beside its name."""
    is_ordinary = re.fullmatch(r"[A-Z]?[a-z]{1,15}|[A-Z]{1,16}|[0-9]{1,9}", value)
    return len(value) >= SHORTEST and not is_ordinary and not (value.startswith("/") and os.path.exists(value))


def _is_environment(names: Iterable[object]) -> bool:
    known = set(names)
    return len(known) >= ENVIRONMENT and not known.isdisjoint({"PATH", "HOME", "PWD"})


def _looks_random(value: str) -> bool:
    """Whether it has 20 characters that keep changing between lower case, upper case and digits, or 32 hexadecimal
    digits, and is not a path."""
    if re.fullmatch(r"[0-9a-f]{32,}", value):
        return True
    kinds = [(char.islower(), char.isupper()) for char in value if char.isalnum()]
    changes = sum(kind != after for kind, after in pairwise(kinds))
    is_path = value.startswith(("/", "./", "~")) or ":/" in value
    is_mixed = len(set(kinds)) == 3 and 3 * changes >= len(kinds)
    return len(value) >= 20 and is_mixed and not is_path and not _UUID.search(value)


class Scrubber:
    """Knows the secrets of one environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, value in environ.items() if is_secret(name) and _is_hidden(value)}
        # The longest first: one secret may hold another.
        known = sorted(values, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """Hides user info in URLs, values after secret names (NAME=VALUE), private keys, values of secret variables; in
        a printed environment also what looks random."""
        if self._values:
            text = self._values.sub(HIDDEN, text)
        text = _USER_INFO.sub(HIDDEN + "@", _PRIVATE_KEY.sub(HIDDEN, text))
        for assigned in _ASSIGNED:
            text = _without_values(text, assigned)
        is_environment = _is_environment(variable[1] for variable in _VARIABLE.finditer(text))
        return _VARIABLE.sub(_without_random, text) if is_environment else text

    def value(self, value: Any) -> Any:
        """Does the same to every string in nested dicts and lists; other values stay as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            hides_random = _is_environment(value)
            return {self._key(key): self._item(key, item, hides_random) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _key(self, key: Any) -> Any:
        """A password may equal the name of a harmless field, so only long names are searched for secrets."""
        return self.text(key) if isinstance(key, str) and len(key) >= LONG else key

    def _item(self, key: Any, item: Any, hides_random: bool) -> Any:
        if hides_random and isinstance(item, str) and _looks_random(item):
            return HIDDEN
        if not (isinstance(key, str) and is_secret(key)):
            return self.value(item)
        if isinstance(item, list | tuple):
            return [HIDDEN if isinstance(element, str) else self.value(element) for element in item]
        return HIDDEN if isinstance(item, str) else self.value(item)  # 4096 tokens are no secret


def _without_values(text: str, assigned: re.Pattern[str]) -> str:
    """Hides values after secret names. A value may hold more names (a URL's query), so only hidden ones are skipped."""
    parts, done = [], 0
    for match in assigned.finditer(text):
        is_query = match.start() > 0 and text[match.start() - 1] in "?&"
        if match.start() >= done and is_secret(f"query-{match[1]}" if is_query else match[1]):
            value = _VALUE.match(text, match.end())
            if value and not _PLACEHOLDER.fullmatch(value[0]):
                parts += [text[done : value.start()], HIDDEN]
                done = value.end()
    return "".join([*parts, text[done:]])


def _without_random(variable: re.Match[str]) -> str:
    return f"{variable[1]}{variable[2]}{HIDDEN if _looks_random(variable[3]) else variable[3]}"
