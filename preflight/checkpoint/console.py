"""What `preflight checkpoint` prints: what is saved, the findings, the verdict."""

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.checkpoint import codes, names
from preflight.checkpoint.contents import Contents, SavedTensor
from preflight.core import words
from preflight.core.rank_ranges import count
from preflight.results import console
from preflight.results.report import Report, SavedCheckpoint

FILES = 16
"""How many files the screen lists one by one."""


def about(path: str, contents: Contents, looked_at: int) -> SavedCheckpoint:
    """`looked_at`: bytes that were read."""
    return SavedCheckpoint(
        path=path,
        kind=contents.kind,
        files=len(contents.files),
        bytes=looked_at,
        ranks=contents.ranks,
        tensors=len(contents.tensors),
        elements=_elements(contents.tensors),
        others=contents.others,
        overview=list(_overview(contents)),
    )


def _elements(tensors: Sequence[SavedTensor]) -> int:
    """The number of elements; those that are saved once for several names count once."""
    seen: set[str] = set()
    total = 0
    for tensor in tensors:
        if not tensor.shares or tensor.shares not in seen:
            total += tensor.numel
            seen.add(tensor.shares)
    return total


def _overview(contents: Contents) -> Iterator[str]:
    """A line for each group of names; then what names have in common, and what is saved once for several names."""
    by_name = {tensor.name: tensor for tensor in contents.tensors}
    groups = _groups(contents.tensors)
    widest = max(map(len, groups), default=0)
    for start, tensors in groups.items():
        types = Counter(tensor.dtype for tensor in tensors)
        size = words.size(sum(tensor.bytes for tensor in tensors))
        told = f"{count(len(tensors), 'tensor')}, {count(_elements(tensors), 'element')}, {size}"
        yield f"  {start:<{widest}}  {told} ({words.some([kind for kind, _ in types.most_common()])})"
    for wrapper, meaning in names.WRAPPERS.items():
        own = [name for name in by_name if wrapper in name.split(".")]
        if own:
            whole = "all" if len(own) == len(by_name) else f"{len(own):,} of {len(by_name):,}"
            yield f"  {whole} names have {wrapper}. in them ({meaning}), such as {own[0]}"
    shared: dict[str, list[str]] = {}
    for tensor in contents.tensors:
        if tensor.shares:
            shared.setdefault(tensor.shares, []).append(tensor.name)
    tied = [group for group in shared.values() if len(group) > 1]
    for group in tied[:3]:
        yield f"  saved once: {words.some(group, 3)}"
    if len(tied) > 3:
        yield f"  saved once: {len(tied) - 3:,} more groups"


def _groups(tensors: Sequence[SavedTensor]) -> dict[str, list[SavedTensor]]:
    """The tensors by the beginning of their names, or by file if several files hold equal names."""
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) == len(tensors):
        return {start: [by_name[name] for name in own] for start, own in names.groups(list(by_name)).items()}
    by_file: dict[str, list[SavedTensor]] = {}
    for tensor in tensors:
        by_file.setdefault(tensor.file, []).append(tensor)
    return by_file if len(by_file) <= FILES else {names.ALL: list(tensors)}


def lines(report: Report, width: int = console.WIDTH) -> list[str]:
    saved = _saved(report)
    by = f", written by {count(saved.ranks, 'rank')}" if saved.ranks else ""
    head = f"preflight checkpoint: {saved.path}: {saved.kind or 'unknown'}{by}"
    head += f", {count(saved.files, 'file')}, {words.size(saved.bytes)}" * bool(saved.files)
    overview = [console.plain(line) for line in saved.overview]
    return [console.plain(head), *overview, *console.found_lines(report.findings, width), "", _verdict(report)]


def _saved(report: Report) -> SavedCheckpoint:
    assert report.checkpoint is not None, "a report of preflight checkpoint"
    return report.checkpoint


def _verdict(report: Report) -> str:
    fits = ", and it fits the model" if report.options.get("model") else ""
    failed = [finding.code.rpartition(".")[2] for finding in report.findings if finding.severity == "fail"]
    wrong = "it does not fit the model" if set(failed) <= codes.OF_FIT else "do not resume from it"
    meaning = {
        "pass": f"whole and finite{fits}: {count(_saved(report).tensors, 'tensor')}",
        "warn": "it can be loaded; see the warnings",
        "fail": f"{wrong}: {count(len(failed), 'finding')}",
        "error": "it could not be read: it is unknown whether it is sound",
    }[report.verdict]
    return f"verdict: {report.verdict.upper()} ({meaning}), exit code {report.exit_code}, {report.seconds:.1f} s"
