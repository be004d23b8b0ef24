"""Removes secrets from everything that leaves a worker or enters a report."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from preflight.core import secret_commands
from preflight.core.secret_names import ALONE, Certainty, certainty
from preflight.core.secret_values import KNOWN_FORMS, PIN_DIGITS, UNSET, is_ordinary, is_word, looks_random

HIDDEN = "[removed]"
_QUOTE = r"\\{0,3}[\"']?"
# All are bounded and start at the beginning of a word only: they run in the supervisor, over 64 KiB of any text.
_ASSIGNED = (
    re.compile(rf"(?<![A-Za-z0-9_.-])-{{0,2}}([A-Za-z_][A-Za-z0-9_.-]{{0,200}}){_QUOTE}\]?\s{{0,9}}(?:=>|->|:=|[=:])\s{{0,9}}"),
    re.compile(r"(?<![^\s\"',\[])(?:--|-(?=[a-z]{3}))([A-Za-z_][A-Za-z0-9_.-]{0,200})(?:[\"'],)?\s{1,9}(?!-{1,2}[A-Za-z])"),
    re.compile(rf"\b(?:[Nn]ame|key){_QUOTE}\s?[:=]\s?{_QUOTE}([A-Za-z_][A-Za-z0-9_.-]{{0,200}}){_QUOTE},?\s{{1,20}}{_QUOTE}"
               rf"[Vv]alue{_QUOTE}\s?[:=]\s?"),
    re.compile(r"\b(?:setenv|set -[a-z]{1,4}|login\s{1,4}\S{1,100})\s{1,4}([A-Za-z_]\w{0,200})\s{1,4}"),
    re.compile(r"\b((?i:password|passwd))\s{1,4}(?=['\"])"),
    re.compile(r"<([A-Za-z_][A-Za-z0-9_.-]{0,100})>(?=[^<\n]{1,500}</)"),
)  # fmt: skip
"""name=value and name: value; --name value; a list of {name, value}; setenv and netrc; SQL; <name>value</name>."""
_OPTION = re.compile(r"(?:--|-(?=[a-z]{3}))([A-Za-z_][\w.-]*)")
_VALUE = re.compile(
    r"[|>][+-]?[ \t]{0,9}(?:\n[ \t]{1,40}[^\s][^\n]{0,500}){1,100}"  # a block of YAML
    r"|(?:!!str\s)?(?:(?i:Bearer|Basic|Token|Digest|Negotiate|ApiKey)(?:\\?\s){1,9})?"
    r"(?:\[removed\]|\"{3}.{0,500}?\"{3}|[bru]{0,2}(?:\"(?:[^\"\\]|\\.){0,500}\"|'(?:[^'\\]|\\.){0,500}')"
    r"|(?:[^\s,;})\]<\"']|[,;})\]<\"'](?!\s|$|[,;})\]\"'/]|[A-Za-z_][A-Za-z0-9_.-]{0,60}[\"']?\s?[=:]))+)"
)
"""A comma or a bracket belongs to it where the text goes on behind it without a new name."""
_SENTENCE = re.compile(
    r"(?:there|it|this|the|an?|is|was|not|no|cannot|could|must|may|expected|unknown|invalid|incorrect|authentication"
    r"|permission|access|please|if|for|from|by|with|on|in|at|to)\s[a-z]"
    r"|(?:expired|ok|OK|valid|invalid|missing|revoked|denied|failed|required|no|yes|enabled|disabled|found|unchanged)"
    r"(?=[\s.,;)]|$)"
)
"""What follows the colon in "--set db.password: there is no such option"."""
_SAID = re.compile(
    r"\b(?i:keys?|tokens?|secrets?|passwords?|passphrases?|credentials?)(?:[ :=]{1,3}[\w@/.()'-]{1,40}){0,5}?"
    r"[ :=]{1,3}[\"'`]?(?P<secret>[A-Za-z0-9+/_-]{20,200})(?![\w.])"
)
_NO_SECRET = re.compile(
    r"(?i:\b(?:commit|revision|sha\d*|hash|digest|checksum|md5|uuid|id|public|fingerprint|cache)\b)"
)
"""Words that say that what follows is known to all."""
_LINE = re.compile(r"[^\r\n\"']{1,4000}")
"""The value of a header with cookies."""
_BEARER = re.compile(r"\b(Bearer\s{1,4}|Basic\s{1,4}(?=[^\s]{0,60}[A-Z0-9=]))(?=[a-z]{0,60}[^a-z\s])[\w.~+/=-]{8,4000}")
_USER_INFO = re.compile(
    r"(?<=://)(?:(?!git@)[^\s\"'<>/?#]{1,500}|[^\s\"'<>/?#:@]{0,200}:(?![0-9]{1,5}[/?#]|/)[^\s\"'<>]{1,500})@"
)
_PASSWORD_OF_URL = re.compile(r"://[^\s/:@]{0,200}:([^\s@]{1,500})@")
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BODY = re.compile(r"(?:[A-Za-z0-9+/=]{1,100}(?:\\[rn]|[\r\n]){1,4}){0,400}\Z")
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z_][A-Z0-9_]{0,100})([\"']?(?:=|:\s)[\"']?)([^\s\"',;}]*)")
_SMALL = re.compile(
    r"[0-9]{1,3}|[-+]?[0-9]{1,3}(?:,[0-9]{3})*(?:\.[0-9]{1,9})?(?:e[-+]?[0-9]{1,3})?[%x]?|0x[0-9a-f]{1,8}"
    r"|on|off|ok|enabled|disabled|done|failed|skipped"
    r"|/(?:[a-z0-9_.-]{1,60}/){2,20}[a-z0-9_.-]{0,60}"
)
"""`token=17` counts, `wte.token: 0.5` measures, `fusion_pass=on` switches, `cookie=0x1234` is a handle, "etcd key:
/a/b/c" a path; in the environment (PIN=123) it may be a secret all the same."""
LONG = 16
SHORTEST = 6
"""A secret variable's value is hidden wherever it occurs, unless it is shorter: "1" occurs everywhere."""
JUDGED = 128
"""Characters of a value that show whether it is a secret."""
ENVIRONMENT = 6
"""This many variables, with PATH, HOME or PWD among them, count as a whole environment."""


def is_secret(name: str, value: str, at_least: Certainty = Certainty.NONE) -> bool:
    """Whether the value under this name is a secret: db.password=... always, auth=oauth not. `at_least` is used where
    the name has one of the nouns that may mean a secret."""
    sure = certainty(name)
    sure = max(sure, at_least) if sure else sure
    if sure is Certainty.NONE or UNSET.fullmatch(value):
        return False
    if sure is Certainty.UNUSUAL:
        return not is_ordinary(value) or (name.lower().endswith("pin") and bool(PIN_DIGITS.fullmatch(value)))
    if sure is Certainty.SURE:
        return name.isupper() or not _SMALL.fullmatch(value)
    return looks_random(value)


def _is_hidden(value: str) -> bool:
    """Whether a secret variable's value is hidden everywhere. Not the path of a credentials file: it is no secret, and
    is in many messages. So is an ordinary word or number, which is hidden only beside its name."""
    return len(value) >= SHORTEST and not is_word(value) and not (value.startswith("/") and os.path.exists(value))


def _known(environ: Mapping[str, str]) -> Iterator[str]:
    """The secrets in an environment: values of secret variables, and passwords in URLs and connection strings."""
    for name, value in environ.items():
        if is_secret(name, value):
            yield value
            yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= LONG)
        yield from (found[1] for found in _PASSWORD_OF_URL.finditer(value))
        for start, end in _assigned(value, _ASSIGNED[0]):
            yield value[start:end].strip("\"'")


def _spellings(value: str) -> set[str]:
    """As it is, and within a URL, JSON and a Python string."""
    quoted = (quote(value, safe=safe, errors="surrogateescape") for safe in ("/", ""))
    return {value, *quoted, json.dumps(value)[1:-1], repr(value)[1:-1]}


def _is_environment(names: Iterable[object]) -> bool:
    known = set(names)
    return len(known) >= ENVIRONMENT and not known.isdisjoint({"PATH", "HOME", "PWD"})


class Scrubber:
    """Knows the secrets of one environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {spelling for value in _known(environ) if _is_hidden(value) for spelling in _spellings(value)}
        # The longest first: one secret may hold another.
        known = sorted(values, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """Hides user info in URLs, values after secret names (NAME=VALUE), secrets in command lines, private keys,
        keys of known forms, and values of secret variables; in a printed environment also what looks random."""
        if self._values:
            text = self._values.sub(HIDDEN, text)
        text = _USER_INFO.sub(HIDDEN + "@", _without_private_keys(text))
        text = _BEARER.sub(rf"\1{HIDDEN}", text)
        text = _without(text, secret_commands.secrets_in(text))
        text = _without(text, _after_a_word(text))
        for pattern in _ASSIGNED:
            text = _without(text, _assigned(text, pattern))
        text = KNOWN_FORMS.sub(HIDDEN, text)
        is_environment = _is_environment(variable[1] for variable in _VARIABLE.finditer(text))
        return _VARIABLE.sub(_without_random, text) if is_environment else text

    def value(self, value: Any) -> Any:
        """Does the same to every string in nested dicts and lists; other values stay as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        return value

    def _dict(self, items: Mapping[Any, Any]) -> dict[Any, Any]:
        hides_random = _is_environment(items)
        names = {"value": items.get("name"), "Value": items.get("Name")}  # as Kubernetes writes variables
        return {
            self._key(key): HIDDEN
            if hides_random and isinstance(item, str) and looks_random(item)
            else self._item(names.get(key) or key, item)
            for key, item in items.items()
        }

    def _list(self, items: Sequence[Any]) -> list[Any]:
        """Of a command's words, a secret may be in the one after its option."""
        cleaned = [self.value(item) for item in items]
        words = [item if isinstance(item, str) and len(item) <= secret_commands.LONGEST else "" for item in cleaned]
        for at, (word, following) in enumerate(pairwise(words)):
            option = _OPTION.fullmatch(word)
            if option and not following.startswith("-") and is_secret(option[1], following):
                cleaned[at + 1] = HIDDEN
        for at, (start, end) in _in_words(words):
            cleaned[at] = f"{words[at][:start]}{HIDDEN}{words[at][end:]}"
        return cleaned

    def _key(self, key: Any) -> Any:
        """A password may equal the name of a harmless field, so only long names are searched for secrets."""
        return self.text(key) if isinstance(key, str) and len(key) >= LONG else key

    def _item(self, key: Any, item: Any) -> Any:
        if not isinstance(key, str) or not certainty(key):
            return self.value(item)
        if isinstance(item, list | tuple):
            return [self._item(key, element) for element in item]
        if isinstance(item, dict) and certainty(key) is Certainty.SURE:
            return {name: self._item(key, element) for name, element in item.items()}
        is_hidden = isinstance(item, str | int) and not isinstance(item, bool) and is_secret(key, str(item))
        return HIDDEN if is_hidden else self.value(item)  # 4096 tokens are no secret


def _in_words(words: Sequence[str]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields (index of a word, (start, end) in it) of each secret in a command's words."""
    if not any(word.startswith("-") or word == "login" for word in words):
        return
    text = " ".join(re.sub(r"\s", "_", word) for word in words)
    for start, end in secret_commands.secrets_in(text):
        at = text.count(" ", 0, start)
        offset = text.rfind(" ", 0, start) + 1
        yield at, (start - offset, end - offset)


def _assigned(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of values after secret names. A value may hold more names (a URL's query), so only hidden
    ones are skipped."""
    done = end = 0
    for match in pattern.finditer(text):
        name, start = _in_full(text, match), match.end()
        if (
            match.start() < done
            or not certainty(name)
            or (text[start - 2 : start] == ": " and _SENTENCE.match(text, start))
        ):
            continue
        if start >= end or text[start : start + 1] in ("'", '"'):  # else the value within a value ends where that ends
            end = _end_of_value(text, start, name)
        is_query = match.start() > 0 and text[match.start() - 1] in "?&"
        stop = text.find("&", start, end) if is_query else -1
        bare = text[start : min(end, start + JUDGED)].lstrip("bru").strip("\"'\\")
        if end > start and is_secret(name, bare, Certainty.UNUSUAL if is_query else Certainty.NONE):
            done = stop if stop >= 0 else end
            yield start, done


def _after_a_word(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of what looks random behind the word for a secret in a sentence: "key for X: 9f86..."."""
    for found in _SAID.finditer(text):
        if looks_random(found["secret"]) and not _NO_SECRET.search(found[0]):
            yield found.span("secret")


def _end_of_value(text: str, start: int, name: str) -> int:
    is_header = name.lower().endswith("cookie") and text[start : start + 1] not in ("'", '"')
    value = (_LINE if is_header else _VALUE).match(text, start)
    return value.end() if value else start


_KIND_BEFORE = re.compile(r"([A-Za-z]{2,20})[ (]$")


def _in_full(text: str, match: re.Match[str]) -> str:
    """ "API key: ..." in a sentence, and login(key=...): the word before the name belongs to it."""
    before = _KIND_BEFORE.search(text, max(0, match.start() - 21), match.start())
    is_bare = match[1].lower().removesuffix("s") in ALONE and match[0][0] != "-"
    return f"{before[1].lower()} {match[1]}" if before and is_bare else match[1]


def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], HIDDEN]
        done = end
    return "".join([*parts, text[done:]])


def _without_private_keys(text: str) -> str:
    """A key may be cut off at either end."""
    if "PRIVATE KEY" not in text:
        return text
    parts, at = [], 0
    while found := _BEGIN.search(text, at):
        end = _END.search(text, found.end())
        parts += [text[at : found.start()], HIDDEN]
        at = end.end() if end else len(text)
    rest = text[at:]
    if not parts and (end := _END.search(rest)):
        body = _BODY.search(rest[max(0, end.start() - 20000) : end.start()])
        start = end.start() - len(body[0] if body else "")
        rest = f"{rest[:start]}{HIDDEN}{rest[end.end() :]}"
    return "".join([*parts, rest])


def _without_random(variable: re.Match[str]) -> str:
    return f"{variable[1]}{variable[2]}{HIDDEN if looks_random(variable[3]) else variable[3]}"
