"""Software: Python, torch, libraries, driver, kernel, image, packages and training code are the same on all nodes.

Versions are those of the loaded libraries, whatever variables say; if torch is not imported, they come from its files.
Packages are the names of the `.dist-info` and `.egg-info` folders on `sys.path`. The code is what is checked out in
the git repository around the current folder, with its submodules and the untracked files that it imports, or with
`--code DIR` every source file below DIR. From level standard on, on several nodes, also the bytes are compared of what
has one version everywhere: the Python files of torch and of packages like it, and the loaded libraries of torch, NCCL,
OpenMP and CUDA. Their digests are kept in the temporary folder, so that only the first run on a node reads them.
Where there is no time for all bytes, samples are compared, and a line says so; what could not be compared is a skip.
A difference that explains others is reported alone: a different torch brings a different NCCL and packages.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NotRequired, TypedDict

from preflight.check import (
    Action,
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Trait,
    Vote,
    grouped,
    option,
    plots,
    ranges,
    traits,
    vote,
    words,
)
from preflight.checks.env.software import (
    code,
    installed,
    libraries,
    package_files,
    same_bytes,
    source_files,
    two_nccls,
)
from preflight.checks.env.software.digests import DigestCache

PARTS = (same_bytes, two_nccls)
PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.3)

CODE = option(str, "", "folder of the training code; empty: the git repository around the current folder")

PYTHON = Code("Nodes have different versions of Python.", fix="Start all nodes in one environment or image.")
TORCH = Code("Nodes have different versions of torch.", fix="Install the same torch on all nodes, or start one image.")
CUDA = Code("Nodes have torch built for different CUDA versions.", fix="Install the same build of torch on all nodes.")
NCCL = Code(
    "Nodes have loaded different versions of NCCL.",
    fix="Install the same NCCL on all nodes; look for another libnccl in LD_LIBRARY_PATH and LD_PRELOAD.",
)
CUDNN = Code(
    "Nodes have loaded different versions of cuDNN.",
    fix="Install the same cuDNN on all nodes; look for another libcudnn in LD_LIBRARY_PATH.",
)
DRIVER = Code("Nodes have different GPU drivers.", fix="Install the same driver on all nodes.")
KERNEL = Code("Nodes run different kernel versions.", fix="Boot all nodes into the same kernel.")
IMAGE = Code("Nodes have different systems or container images.", fix="Start the same image, by digest, on all nodes.")
PACKAGES = Code(
    "Nodes have different Python packages.",
    fix="Install from one lock file on all nodes, or start one image; look for a ~/.local or PYTHONPATH on the node.",
)
SOURCES = Code(
    "Nodes have different training code.",
    fix="Check out the same commit on all nodes (git status shows what was edited), or share the folder.",
)
NO_SOURCES = Code("The training code could not be read.", fix="Give --code the folder of the code alone, on all nodes.")
PATHS = Code(
    "A node imports the same torch from a different path.",
    fix="Nothing, if intended; otherwise see PATH and PYTHONPATH.",
    action=Action.NONE,
)

QUICK_S, READ_S = 4.0, 12.0
"""Time limits for reading files, at level quick (the code alone) and above. Both leave the deadline a reserve."""
NAMED, IN_EVIDENCE = 4, 50
"""How many packages and files a message names, and how many the evidence holds."""
MISSING = "missing"
NO_MATTER = {"pip", "torch"}
"""Packages whose versions are not compared: pip does not train, and torch has its own finding."""


class Facts(TypedDict):
    versions: dict[str, str | None]
    """By component; None if unknown or absent."""
    packages: list[str]
    """ "numpy 2.1.0" for each. (In a dict, the scrubber of secrets would hide the version of google-auth.)"""
    code: code.SourceCode
    paths: dict[str, str | None]
    libraries: NotRequired[dict[str, libraries.Library]]
    """By name; absent at level quick, and on a single node."""
    package_files: NotRequired[dict[str, package_files.PackageFiles]]


def measure(ctx: Context) -> Facts:
    ctx.doing("looking at what is installed")
    versions, paths = installed.versions(ctx.environ)
    folder = ctx[CODE] or code.current_folder()
    ctx.doing("reading the code", file=folder)
    is_quick = ctx.level is Level.QUICK
    cache = DigestCache(QUICK_S if is_quick else READ_S)
    read = code.of_folder(folder) if ctx[CODE] else code.of_repository(folder, cache)
    facts: Facts = {"versions": versions, "packages": installed.package_names(), "code": read, "paths": paths}
    if len(ctx.job.nodes) > 1 and not is_quick:
        ctx.doing("reading the packages' files", file=paths["torch"] or "")
        facts["package_files"] = package_files.read(cache)
        ctx.doing("reading the libraries", file=paths["torch"] or "")
        facts["libraries"] = libraries.compared(cache)
    cache.save()
    return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _versions("driver", "the GPU driver", DRIVER.warn, facts, run)
    yield from _versions("kernel", "the kernel", KERNEL.warn, facts, run)
    yield from _versions("image", "the system", IMAGE.warn, facts, run)
    torches = yield from _versions("torch", "torch", TORCH.fail, facts, run)
    alike = _usual_ones(torches, facts)
    builds = yield from _versions("cuda", "torch's CUDA", CUDA.fail, alike, run)
    alike = _usual_ones(builds, alike)
    nccls = yield from _versions("nccl", "NCCL", NCCL.fail, alike, run)
    cudnns = yield from _versions("cudnn", "cuDNN", CUDNN.warn, alike, run)
    same = _usual_ones(cudnns, _usual_ones(nccls, alike))
    minors = vote((rank, _minor(reading)) for rank, reading in facts.items())
    yield from _against_most("Python", minors, PYTHON.warn, run)
    yield from _versions("python", "Python", PYTHON.info, _usual_ones(minors, facts), run)
    alike = _usual_ones(minors, alike)
    loaded = {
        rank: {**{name: reading["versions"][name] for name in ("cuda", "nccl")}, "path": reading["paths"].get("nccl")}
        for rank, reading in facts.items()
    }
    yield from two_nccls.findings({rank: reading["packages"] for rank, reading in facts.items()}, loaded, run)
    yield from _differing_packages(alike, run)
    yield from _differing_paths(alike, run)
    yield from _differing_bytes({rank: facts[rank] for rank in same if rank in alike}, run)
    yield from _unreadable_code(facts, run)
    yield from _differing_code(facts, run)
    yield from _uncompared_code(facts, run)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    yield from traits("driver", {"GPU driver": reading["versions"].get("driver")})
    yield from traits("software", {name: value for name, value in reading["versions"].items() if name != "driver"})
    named = [package.split(" ", 1) for package in reading["packages"] if " " in package]
    yield from traits("software", {name: version for name, version in named if name not in NO_MATTER})
    known = reading["code"]
    yield from traits("software", {"training code": known["digest"] or known["commit"]})


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001
    reading = next(iter(facts.values()))
    versions, known = reading["versions"], reading["code"]
    names = {"python": "Python", "torch": "torch", "nccl": "NCCL", "driver": "driver"}
    parts = [f"{called} {versions[name]}" for name, called in names.items() if versions[name]]
    parts += [ranges.count(len(reading["packages"]), "package")]
    parts += [f"code {_called(known)}"] if known["digest"] or known["commit"] else []
    return ", ".join([*parts, "files not compared"] if _uncompared(facts) else parts)


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    """Versions, code and packages that differ between nodes."""
    values: dict[str, dict[str, str]] = {}
    differing = {
        package.split(" ", 1)[0] for package in _differing({id(f): f["packages"] for f in facts.values()}.values())
    }
    for rank, reading in facts.items():
        node = _node(rank, run)
        for name, version in reading["versions"].items():
            values.setdefault(name, {})[node] = version or ""
        values.setdefault("training code", {})[node] = _called(reading["code"])
        packages = dict(package.split(" ", 1) for package in reading["packages"])
        for name in differing:
            values.setdefault(f"package {name}", {})[node] = packages.get(name, "")
    if table := plots.differing("software that differs", values, "versions"):
        yield table


def _minor(reading: Facts) -> str:
    return ".".join(str(reading["versions"]["python"]).split(".")[:2])


def _usual_ones(votes: Vote[str], facts: Mapping[int, Facts]) -> Mapping[int, Facts]:
    """The ranks with the usual value: further differences on the others follow from the first."""
    if votes.unanimous:
        return facts
    return {rank: facts[rank] for rank in votes.ranks_of[votes.usual] if rank in facts} if votes.decided else {}


def _versions(
    name: str, called: str, say: Callable[..., Finding], facts: Mapping[int, Facts], run: Run
) -> Generator[Finding, None, Vote[str]]:
    """Findings about one component's version; returns the vote. Unknown versions do not vote."""
    votes = vote(
        (rank, version) for rank, reading in facts.items() if (version := reading["versions"][name]) is not None
    )
    yield from _against_most(called, votes, say, run)
    return votes


def _against_most(called: str, votes: Vote[str], say: Callable[..., Finding], run: Run) -> Iterator[Finding]:
    for rank, value in votes.odd():
        yield say(f"{called} is {value}, expected {votes.usual} as on {votes.share('node')}", node=_node(rank, run))
    if not votes.decided and not votes.unanimous:
        yield say(f"{called} is {_sides(votes, run)}, expected the same on all nodes")


def _node(rank: int, run: Run) -> str:
    return run.job.node_of(rank).node


def _sides(votes: Vote[str], run: Run) -> str:
    """ "2.6.0 on node-0; 2.7.0 on node-1 and 3 others" """
    sides = []
    for value, ranks in votes.ranks_of.items():
        others = f" and {ranges.count(len(ranks) - 1, 'other')}" if len(ranks) > 1 else ""
        sides.append(f"{value} on {_node(ranks[0], run)}{others}")
    return words.clauses(sides, NAMED)


def _differing_packages(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    lists = {id(reading): reading["packages"] for reading in facts.values()}  # equal facts are one object
    names = {name for package in _differing(lists.values()) for name in package.split(" ")[:1]} - NO_MATTER
    versions = {id_: dict(package.split(" ", 1) for package in packages) for id_, packages in lists.items()}
    odd: dict[int, list[str]] = {}
    split: list[str] = []
    for name in sorted(names):
        votes = vote((rank, versions[id(reading)].get(name, MISSING)) for rank, reading in facts.items())
        for rank, version in votes.odd():
            expected = "none" if votes.usual == MISSING else votes.usual
            odd.setdefault(rank, []).append(f"{name} is {version}, expected {expected}")
        if not votes.decided:
            split.append(f"{name} is {_sides(votes, run)}")
    for rank, differences in odd.items():
        text = f"{ranges.count(len(differences), 'package')} different from most nodes: "
        text += words.clauses(differences, NAMED)
        yield PACKAGES.warn(text, node=_node(rank, run), evidence={"packages": differences[:IN_EVIDENCE]})
    if split:
        text = f"{ranges.count(len(split), 'package')} different between nodes, expected the same on all: "
        text += words.clauses(split, NAMED)
        yield PACKAGES.warn(text, evidence={"packages": split[:IN_EVIDENCE]})


def _differing(lists: Iterable[list[str]]) -> set[str]:
    """The entries that are in some lists but not in all."""
    first, *others = [set(names) for names in lists] or [set()]
    return first.union(*others) - first.intersection(*others)


def _differing_bytes(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Of packages and libraries whose versions are the same."""
    lists = {id(reading): reading["packages"] for reading in facts.values()}  # equal facts are one object
    differing = _differing(lists.values())
    names = {package.split(" ", 1)[0] for package in differing}
    versions = dict(package.split(" ", 1) for own in [*lists.values()][:1] for package in own)
    files = {rank: reading["package_files"] for rank, reading in facts.items() if reading.get("package_files")}
    compared = {name: versions[name] for name in package_files.COMPARED if name in versions and name not in names}
    yield from same_bytes.packages(files, compared, run)
    loaded = {
        rank: {name: library for name, library in reading["libraries"].items() if not libraries.is_of(name, names)}
        for rank, reading in facts.items()
        if "libraries" in reading
    }
    machines = {rank: (facts[rank]["versions"]["kernel"] or "").rpartition(" ")[2] for rank in loaded}
    for of_machine in grouped(loaded, machines.__getitem__).values():  # x86_64 and aarch64 have their own
        yield from same_bytes.libraries({rank: loaded[rank] for rank in of_machine}, run)
    yield from same_bytes.unread(loaded, files, run)


def _differing_paths(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    votes = vote((rank, path) for rank, reading in facts.items() if (path := reading["paths"]["torch"]) is not None)
    if votes.decided:  # if all differ, each node has its own environment
        yield from _against_most("torch's folder", votes, PATHS.info, run)


def _unreadable_code(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Says nothing about a repository unless --code asked for it."""
    for rank, reading in facts.items():
        if run[CODE] and (why := reading["code"]["unknown"]):
            say = NO_SOURCES.fail if why in (source_files.NO_FOLDER, source_files.IS_FILE) else NO_SOURCES.warn
            yield say(f"{run[CODE]} cannot be compared: {why}, expected its source files", node=_node(rank, run))


def _uncompared(facts: Mapping[int, Facts]) -> dict[str, list[int]]:
    """{why: ranks} of the nodes whose code could not be compared with that of others by content."""
    codes = {rank: reading["code"] for rank, reading in facts.items()}
    why: dict[str, list[int]] = {}
    for rank, source in codes.items() if len(codes) > 1 else ():
        is_alone = not (source["digest"] or source["commit"]) and any(other["commit"] for other in codes.values())
        if reason := source["unknown"] or (code.NO_REPOSITORY if is_alone else ""):
            why.setdefault(reason, []).append(rank)
    return why


def _uncompared_code(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Says of which nodes it is not known whether their code is the same."""
    for why, ranks in _uncompared(facts).items() if not run[CODE] else ():
        everywhere = len(ranks) == len(facts)
        on = "all nodes" if everywhere else words.some((_node(rank, run) for rank in ranks), NAMED)
        folder = facts[ranks[0]]["code"]["folder"]
        sentence = f"the files of the code in {folder} on {on} could not be compared: {why}"
        where = {"node": _node(ranks[0], run)} if len(ranks) == 1 else {}
        yield NO_SOURCES.not_measured(f"{sentence}; expected to compare each file's content", **where)


def _differing_code(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """By content; where that is unknown on some nodes and the same on the others, by commit on all."""
    codes = {
        rank: source for rank, reading in facts.items() if (source := reading["code"])["digest"] or source["commit"]
    }
    votes = vote((rank, source["digest"]) for rank, source in codes.items() if source["digest"])
    if votes.unanimous and any(source["unknown"] for source in codes.values()):
        votes = vote((rank, source["commit"]) for rank, source in codes.items() if source["commit"])
    if votes.unanimous:
        return
    usual, *others = (codes[ranks[0]] for ranks in votes.ranks_of.values())
    if not votes.decided:
        sides = vote({rank: _called(codes[rank]) for ranks in votes.ranks_of.values() for rank in ranks})
        say, files = _weighed(others[0], usual)
        yield say(f"the code is {_sides(sides, run)}, expected the same on all nodes{files}")
    for rank, _ in votes.odd():
        own = codes[rank]
        say, files = _weighed(own, usual)
        expected = f"{_called(usual)} as on {votes.share('node')}"
        text = f"the code in {own['folder']} is {_called(own)}, expected {expected}{files}"
        yield say(text, node=_node(rank, run))


def _called(source: code.SourceCode) -> str:
    """ "commit 8af7772e2e with edits, digest 18cddcd29cbb" """
    commit = [f"commit {source['commit'][:10]}{' with edits' if source['edited'] else ''}"] if source["commit"] else []
    return ", ".join([*commit, f"digest {source['digest']}"] if source["digest"] else commit)


def _weighed(own: code.SourceCode, usual: code.SourceCode) -> tuple[Callable[..., Finding], str]:
    """Different sources compute something different: fail. Different settings may be intended, a build may have written
    files that git does not track (the version), and a different folder may not even hold the job's code: warn."""
    names = sorted({file.split(" ", 1)[1] for file in _differing([own["files"], usual["files"]])})
    listed = bool(own["files"] and usual["files"])
    generated = {*own.get("untracked", ()), *usual.get("untracked", ())}
    sources = [name for name in names if name.endswith(source_files.SOURCES) and name not in generated]
    computes = any(not name.endswith(source_files.SCRIPTS) for name in sources)
    harmless = own["folder"] != usual["folder"] or (listed and not computes)
    differences = f"; different: {words.clauses(names, NAMED)}" if listed else ""
    return SOURCES.warn if harmless else SOURCES.fail, differences
