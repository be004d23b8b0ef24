"""`preflight describe explain`: what each cause means, and how it is recognized."""

from collections.abc import Iterator

from preflight.errors import UsageError, near_misses
from preflight.failure_book.book import Book, Cause, book

FAMILY = "explain"
OWN = {
    "attempt": "What one attempt of a job ended with that was started again (info): a line per attempt.",
    "in_step": "Ranks wait in one collective, or it is unknown for which rank: the cause is below the collectives.",
    "unreadable": "None of the input could be read, or only a part without a failure.",
}
"""Codes without signatures."""


def page(what: str) -> str:
    """The page on all causes, or on one: "explain.shm_exhausted". Raises UsageError."""
    known = book()
    meanings = {slug: cause.meaning for slug, cause in known.causes.items()} | OWN
    codes = {f"{FAMILY}.{slug}": meaning for slug, meaning in meanings.items()}
    if what == FAMILY:
        lines = [FAMILY, "", "What `preflight explain` finds in a failed job's logs.", ""]
        return "\n".join([*lines, *(f"  {code}: {meaning}" for code, meaning in codes.items())])
    if what not in codes:
        raise UsageError(f"{what}: there is no such code{near_misses(what, codes)}")
    cause = known.causes.get(what.partition(".")[2])
    return "\n".join([what, f"  {codes[what]}", *(_cause_lines(cause, known) if cause else ())])


def _cause_lines(cause: Cause, known: Book) -> Iterator[str]:
    yield f"  fix: {cause.fix}"
    yield f"  action: {cause.action}"
    if cause.seen_by:
        yield f"  live checks that find it: {', '.join(cause.seen_by)}"
    yield "  recognized by:"
    rows = [row for row in known.signatures if row.slug == cause.slug]
    for row in sorted(rows, key=lambda row: row.name):
        yield from (f"    {row.name} ({row.role}; {row.versions}; {row.source})", f"      {row.says}")
