"""`preflight describe explain`: what each cause means, and how it is recognized."""

from collections.abc import Iterator

from preflight.errors import UsageError, near_misses
from preflight.failure_book.book import Book, Cause, Signature, book

FAMILY = "explain"
OWN = {
    "in_step": "Ranks wait in one collective, or it is unknown for which rank: the cause is below the collectives.",
    "unreadable": "None of the input could be read, or only a part without a failure.",
}
"""Codes without signatures."""


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


def _own_line(item: tuple[str, str]) -> str:
    return f"  {item[0]}: {item[1]}"


def _cause_lines(code: str, cause: Cause, known: Book) -> Iterator[str]:
    yield from (code, f"  {cause.meaning}", f"  fix: {cause.fix}")
    if cause.seen_by:
        yield f"  live checks that find it: {', '.join(cause.seen_by)}"
    yield "  recognized by:"
    for signature in _signatures(cause, known):
        yield f"    {signature.name} ({signature.role}; {signature.versions}; {signature.source})"
        yield f"      {signature.says}"


def _signatures(cause: Cause, known: Book) -> list[Signature]:
    return sorted(
        (signature for signature in known.signatures if signature.slug == cause.slug),
        key=lambda signature: signature.name,
    )


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
