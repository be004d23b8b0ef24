"""preflight.toml: a run's settings in a file, read only where `--config` names it."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from preflight.check import Level
from preflight.core import renamed_codes
from preflight.core.finding import OWN_SLUGS, RUN
from preflight.errors import UsageError, near_misses
from preflight.planning import toml_file
from preflight.planning.plan import LONGEST_S, SHORTEST_S
from preflight.planning.policy import Waiver
from preflight.planning.registry import Source, load

SEVERITIES = ("fail", "warn", "info")


@dataclass(frozen=True)
class Config:
    """What the file says; None or empty where it says nothing: then the command line's default applies."""

    level: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    strict: bool = False
    deadline: float | None = None
    backend: str | None = None
    report: str | None = None
    baseline: str | None = None
    plugins: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Texts by name, as given to `--set`."""
    severity: Mapping[str, str] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Today's names of the codes that the file calls by an old one."""


def read(path: str) -> Config:
    """Raises UsageError, also if the file is missing on this node only."""
    try:
        return parse(toml_file.table(path), os.path.dirname(os.path.abspath(path)))
    except UsageError as error:
        raise UsageError(f"{path}: {str(error).removeprefix(f'{path}: ')}", everywhere=error.everywhere) from None


def parse(data: Mapping[str, Any], folder: str = ".") -> Config:
    """`folder`: the base of relative plugin paths. Raises UsageError."""
    for key in data:
        if key not in _READERS:
            raise UsageError(f"{key}: there is no such key{near_misses(key, _READERS)}")
    values = {key: _READERS[key](key, value) for key, value in data.items()}
    if "plugins" in values:
        values["plugins"] = tuple(_placed(plugin, folder) for plugin in values["plugins"])
    return Config(**values, renamed=_renamed(data))


def _renamed(data: Mapping[str, Any]) -> dict[str, str]:
    codes = (*_flat("severity", data.get("severity", {})), *(waiver["code"] for waiver in data.get("waivers", ())))
    return {code: today for code in codes if (today := renamed_codes.current(code)) != code}


def _placed(plugin: str, folder: str) -> str:
    is_file = plugin.endswith(".py") or os.sep in plugin
    return os.path.join(folder, plugin) if is_file else plugin


def _expected(key: str, what: str, value: object) -> UsageError:
    return UsageError(f"{key}: expected {what}, got {value!r}")


def _word(*allowed: str) -> Callable[[str, Any], str]:
    def read_word(key: str, value: Any) -> str:
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise _expected(key, " or ".join(allowed) or "a string", value)
        return value

    return read_word


def _words(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _expected(key, "a list of strings", value)
    return tuple(value)


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _expected(key, "true or false", value)
    return value


def _seconds(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_S <= value <= LONGEST_S:
        raise _expected(key, f"a number of seconds from {SHORTEST_S:.0f} to {LONGEST_S:.0f}", value)
    return float(value)


def _flat(key: str, value: Any) -> dict[str, object]:
    """{"comm": {"init": {"slow_s": 60}}} and {"comm.init": {"slow_s": 60}} are {"comm.init.slow_s": 60}."""
    if not isinstance(value, dict):
        raise _expected(key, "a table", value)
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= (
            {f"{name}.{more}": v for more, v in _flat(key, inner).items()} if isinstance(inner, dict) else {name: inner}
        )
    return flat


def _options(key: str, value: Any) -> dict[str, str]:
    texts = {}
    for name, given in _flat(key, value).items():
        if not isinstance(given, str | int | float):
            raise _expected(f"{key}.{name}", "a string, a number, true or false", given)
        texts[name] = str(given).lower() if isinstance(given, bool) else str(given)
    return texts


def _severity(key: str, value: Any) -> dict[str, str]:
    read_word = _word(*SEVERITIES)
    severities = {code: read_word(f"{key}.{code}", given) for code, given in _flat(key, value).items()}
    return {renamed_codes.current(code): severity for code, severity in severities.items()}


def _waivers(key: str, value: Any) -> tuple[Waiver, ...]:
    if not isinstance(value, list) or not all(isinstance(waiver, dict) for waiver in value):
        raise _expected(key, "[[waivers]] with code, until and reason", value)
    return tuple(_waiver(f"{key}[{number}]", waiver) for number, waiver in enumerate(value, 1))


def _waiver(key: str, waiver: dict[str, object]) -> Waiver:
    known = ("code", "node", "until", "reason")
    for name in waiver:
        if name not in known:
            raise UsageError(f"{key}: {name}: there is no such key{near_misses(name, known)}")
    for name in ("code", "until", "reason"):
        if not waiver.get(name):
            raise UsageError(f"{key}: {name} is missing: a waiver has a code, an end and a reason")
    until = waiver["until"].isoformat() if type(waiver["until"]) is date else waiver["until"]
    if not isinstance(until, str) or not _is_day(until):
        raise _expected(f"{key}: until", "a day like 2026-12-31", waiver["until"])
    texts = {name: _word()(f"{key}: {name}", waiver[name]) for name in ("code", "reason", "node") if name in waiver}
    return Waiver(until=until, **{**texts, "code": renamed_codes.current(texts["code"])})


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "level": _word(*Level), "only": _words, "skip": _words, "strict": _boolean, "deadline": _seconds,
    "backend": _word("auto", "nccl", "gloo"), "report": _word(), "baseline": _word(), "plugins": _words,
    "options": _options, "severity": _severity, "waivers": _waivers,
}  # fmt: skip


def check_codes(codes: Iterable[str], sources: Mapping[str, Source]) -> None:
    """Raises UsageError for a code that does not exist, and for one of the engine: it says that something was not
    measured, which cannot be made less severe. Codes of plugins are checked when the plugins are loaded."""
    builtin = [source for source in sources.values() if source.kind == "builtin"]
    others = tuple(f"{id_}." for id_, source in sources.items() if source.kind != "builtin")
    known: set[str] = set()
    for code in codes:
        if code.startswith(f"{RUN}.") or code.rpartition(".")[2] in OWN_SLUGS:
            raise UsageError(f"{code}: what was not measured can be neither waived nor made less severe")
        if not known:
            known = {f"{source.id}.{slug}" for source in builtin for slug in load(source).codes}
        if code not in known and not code.startswith(others):
            raise UsageError(f"{code}: there is no such code{near_misses(code, known)}")
