"""Judges what has the same version everywhere, and other bytes on some node: a patched torch, another build of NCCL."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Finding, Run, Vote, ranges, vote, words
from preflight.checks.env.software.libraries import COMPUTES, SAMPLE, SAMPLES, Library
from preflight.checks.env.software.package_files import PackageFiles

PATCHED = Code(
    "A package has the same version on all nodes, but its Python files differ.",
    fix="On the node: pip install --force-reinstall --no-deps {package}=={version}, or start all nodes from one image; "
    "look for what edits site-packages (a patch in a job script, a PYTHONPATH with another copy).",
)
LIBRARY = Code(
    "Nodes have loaded libraries with the same version, but different bytes.",
    fix="sha256sum {file} on this node and on another; look for LD_LIBRARY_PATH and LD_PRELOAD, and reinstall the "
    "library's package, or start all nodes from one image.",
)
NAMED = 4
OWN = "torch"
"""Its Python files are in the path of every training: a difference fails."""


def packages(
    facts: Mapping[int, Mapping[str, PackageFiles]], versions: Mapping[str, str], run: Run
) -> Iterator[Finding]:
    """`facts`: by rank and package. `versions`: of the packages that have one version on all these nodes."""
    for name, version in versions.items():
        own = {rank: files[name] for rank, files in facts.items() if name in files}
        votes = vote((rank, package["digest"]) for rank, package in own.items() if package["digest"])
        if votes.unanimous:
            continue
        say = PATCHED.fail if name == OWN else PATCHED.warn
        details = {"evidence": {"package": name, "version": version}}
        usual = own[votes.ranks_of[votes.usual][0]]["edited"] if votes.decided else []
        odd = _edited_alone(votes, own) or dict.fromkeys((rank for rank, _ in votes.odd()), votes.share("node"))
        for rank, share in odd.items():
            edits = _edits(own[rank], usual)
            yield say(
                f"{name} {version}: {edits}, expected the files that are on {share}", node=_node(rank, run), **details
            )
        if not odd:
            yield say(f"{name} {version} has other Python files on {_sides(votes, run)}, expected the same", **details)


def _edited_alone(votes: Vote[str], own: Mapping[int, PackageFiles]) -> dict[int, str]:
    """Where no majority decides: the nodes with files that pip has not installed so, if the others have none such."""
    if votes.decided:
        return {}
    edited = [rank for rank, package in own.items() if package["digest"] and package["edited"]]
    others = {own[rank]["digest"] for rank in own if rank not in edited and own[rank]["digest"]}
    share = f"{ranges.count(len(own) - len(edited), 'other node')}, as its package has installed them"
    return dict.fromkeys(edited, share) if len(others) == 1 else {}


def _edits(package: PackageFiles, usual: list[str]) -> str:
    edited = [name for name in package["edited"] if name not in usual]
    lacking = [name for name in usual if name not in package["edited"]]
    if edited:
        return f"{words.some(edited, NAMED)} {'is' if len(edited) == 1 else 'are'} not as pip installed it"
    return f"{words.some(lacking, NAMED)} lacks the edits of most nodes" if lacking else "its Python files differ"


def libraries(facts: Mapping[int, Mapping[str, Library]], run: Run) -> Iterator[Finding]:
    """`facts`: by rank and library; without those that other findings explain. One finding for all libraries that
    differ on one node."""
    names = dict.fromkeys(name for loaded in facts.values() for name in loaded)
    odd: dict[int, list[str]] = {}
    for name in names:
        own = {rank: loaded[name] for rank, loaded in facts.items() if name in loaded}
        votes = vote((rank, bytes_) for rank, bytes_ in _comparable(own).items() if bytes_)
        for rank, _ in votes.odd():
            odd.setdefault(rank, []).append(name)
        if not votes.decided and not votes.unanimous:
            path = own[votes.ranks_of[next(iter(votes.ranks_of))][0]]["path"]
            text = f"{name} has other bytes on {_sides(votes, run)}, expected the same"
            yield _weighed([name])(text, file=path)
    for rank, differing in odd.items():
        differing.sort(key=lambda name: not COMPUTES.match(name))
        first = facts[rank][differing[0]]
        others = f" (and {words.some(differing[1:], NAMED)})" if differing[1:] else ""
        text = f"{first['path']}{others} has other bytes than on most of {ranges.count(len(facts), 'node')}"
        digests = {name: facts[rank][name]["digest"] or facts[rank][name]["sample"] for name in differing}
        details = {"file": first["path"], "evidence": {"digests": digests}}
        yield _weighed(differing)(f"{text}, expected the same build of it", node=_node(rank, run), **details)


def _comparable(own: Mapping[int, Library]) -> dict[int, str]:
    """All bytes if all nodes had the time to read them, else the samples."""
    if all(library["digest"] for library in own.values()):
        return {rank: library["digest"] for rank, library in own.items()}
    return {rank: library["sample"] for rank, library in own.items()}


def _weighed(names: list[str]) -> Any:
    return LIBRARY.fail if any(COMPUTES.match(name) for name in names) else LIBRARY.warn


def unread(
    libraries_: Mapping[int, Mapping[str, Library]], packages_: Mapping[int, Mapping[str, PackageFiles]], run: Run
) -> Iterator[Finding]:
    """What could not be compared, and why; and libraries of which only samples were."""
    fix = "Run it again: what was read is kept. Give --deadline more on a slow disk."
    unsampled = {
        rank: {name: library for name, library in own.items() if not library["sample"]}
        for rank, own in libraries_.items()
    }
    for code, facts in ((LIBRARY, unsampled), (PATCHED, packages_)):
        for names, on, reason in _unread(facts, run):
            yield code.not_measured(f"the bytes of {names} on {on} could not be compared: {reason}", fix=fix)
    sampled = {
        rank: {name: library for name, library in own.items() if library["sample"]} for rank, own in libraries_.items()
    }
    for names, on, reason in _unread(sampled, run):
        parts = f"size and {SAMPLES} samples of {SAMPLE >> 10} KiB"
        yield LIBRARY.info(
            f"the bytes of {names} on {on} were compared by {parts}, expected all of them: {reason}", fix=fix
        )


def _unread(facts: Mapping[int, Mapping[str, Any]], run: Run) -> Iterator[tuple[str, str, str]]:
    """(names, nodes, why) of what was not read in full."""
    why: dict[tuple[str, str], list[int]] = {}
    for rank, own in facts.items():
        names = [name for name, item in own.items() if item["unread"]]
        if names:
            why.setdefault((words.some(names, NAMED), own[names[0]]["unread"]), []).append(rank)
    for (names_, reason), ranks in why.items():
        yield names_, words.some((_node(rank, run) for rank in ranks), NAMED), reason


def _node(rank: int, run: Run) -> str:
    return run.job.node_of(rank).node


def _sides(votes: Vote[str], run: Run) -> str:
    """ "node-0 and 1 other than on node-2"."""
    counted = ((_node(ranks[0], run), len(ranks) - 1) for ranks in votes.ranks_of.values())
    sides = [f"{node} and {ranges.count(more, 'other')}" if more else node for node, more in counted]
    return words.some(sides, NAMED, " than on ", " than on ")
