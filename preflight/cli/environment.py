"""Options of a run from the environment, for pods and templates whose command cannot be changed."""

from collections.abc import Iterator, Mapping, Sequence

OPTIONS = {
    "PREFLIGHT_LEVEL": "--level",
    "PREFLIGHT_ONLY": "--only",
    "PREFLIGHT_SKIP": "--skip",
    "PREFLIGHT_DEADLINE": "--deadline",
    "PREFLIGHT_CONFIG": "--config",
    "PREFLIGHT_REPORT": "--report",
    "PREFLIGHT_STRICT": "--strict",
}
WITHOUT_VALUE = ("--strict",)
OFF = ("", "0", "false", "no")
"""Of an option without a value."""


def used(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The option for each variable that says what the command line does not. An empty one says nothing."""
    given = {word.partition("=")[0] for word in words}
    given |= {"--level"} if "--all" in given else set()
    found = {name: option for name, option in OPTIONS.items() if environ.get(name, "").strip() and option not in given}
    return {
        name: option
        for name, option in found.items()
        if option not in WITHOUT_VALUE or environ[name].strip().lower() not in OFF
    }


def words_of(names: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    for name, option in names.items():
        yield option if option in WITHOUT_VALUE else f"{option}={environ[name].strip()}"
