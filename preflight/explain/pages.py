"""`preflight describe explain`: what each cause means, and how it is known."""

from collections.abc import Iterator

from preflight.explain.signatures import Book, Cause, Signature, book
from preflight.registry import UsageError, near_misses

FAMILY = "explain"
OWN = {
    "in_step": "Ranks wait in one collective, or for nobody knows whom: the cause is below the collectives.",
    "unreadable": "Nothing of what was given could be read, or not all of it, and no failure is seen in the rest.",
}
"""Codes that no line of a log tells of."""


def page(what: str) -> str:
    """Of all causes, or of one: "explain.shm_exhausted". Raises UsageError."""
    known = book()
    codes = {f"{FAMILY}.{slug}": cause for slug, cause in known.causes.items()}
    own = {f"{FAMILY}.{slug}": meaning for slug, meaning in OWN.items()}
    if what == FAMILY:
        lines = [FAMILY, "", "What `preflight explain` finds in a failed job's logs.", ""]
        return "\n".join(
            [*lines, *(f"  {code}: {cause.meaning}" for code, cause in codes.items()), *map(_own_line, own.items())]
        )
    if what in own:
        return f"{what}\n  {own[what]}"
    if what not in codes:
        raise UsageError(f"{what}: there is no such code{near_misses(what, codes)}")
    return "\n".join(_cause_lines(what, codes[what], known))


def _own_line(one: tuple[str, str]) -> str:
    return f"  {one[0]}: {one[1]}"


def _cause_lines(code: str, cause: Cause, known: Book) -> Iterator[str]:
    yield from (code, f"  {cause.meaning}", f"  fix: {cause.fix}")
    if cause.seen_by:
        yield f"  live checks that find it: {', '.join(cause.seen_by)}"
    yield "  known by:"
    for one in _signatures(cause, known):
        yield f"    {one.name} ({one.role}; {one.versions}; {one.source})"
        yield f"      {one.says}"


def _signatures(cause: Cause, known: Book) -> list[Signature]:
    return sorted((one for one in known.signatures if one.slug == cause.slug), key=lambda one: one.name)


def markdown() -> str:
    """Its page in docs/checks."""
    known = book()
    lines = [f"# {FAMILY}", "", "What the command `preflight explain` finds ([how](../explain.md)).", ""]
    lines += ["| code | meaning | what to do | signatures |", "|---|---|---|---|"]
    for slug, cause in known.causes.items():
        fix, count = cause.fix.replace("|", "\\|"), len(_signatures(cause, known))
        lines.append(f"| `{slug}` | {cause.meaning} | {fix} | {count} |")
    lines += [f"| `{slug}` | {meaning} | see the evidence | |" for slug, meaning in OWN.items()]
    return "\n".join(lines) + "\n"
