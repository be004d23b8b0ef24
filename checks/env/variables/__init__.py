"""Environment variables: the library reads each as intended, and all ranks have the same.

Reads NCCL_*, TORCH_*, GLOO_*, CUDA_*, UCX_*, FI_*, OFI_* and OMP_NUM_THREADS as each process got them, and what
NCCL adds from its files. If torch has loaded an NCCL that reports its parameters (2.30), a separate process asks it
for them: what an environment plugin sets is in no variable. variables.tsv has what is known about each variable, with
its source.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from preflight.check import (
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Severity,
    Trait,
    entries,
    plots,
    ranges,
    traits,
    vote,
)
from preflight.checks.env.variables import knowledge
from preflight.checks.env.variables.knowledge import Variable
from preflight.nccl import config_files
from preflight.nccl import parameters as nccl_parameters

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=20, estimate_s=0.2)

DIFFERS = Code(
    "A variable differs between ranks.",
    fix="Set {variable} once for all nodes, in the job's script; look for a different value in the node's shell "
    "start-up files, image and nccl.conf.",
)
UNKNOWN = Code("No library knows a variable.", fix="Correct the name {variable}, or remove it.")
WRONG_VALUE = Code("A library does not read a value as intended.", fix="Correct {variable}.")
WRONG_GRAMMAR = Code("A list of interfaces is not in the library's grammar.", fix="Correct {variable}.")
NO_EFFECT = Code("A variable has no effect.", fix="Remove {variable}.")
DEPRECATED = Code("A variable has a newer name.", fix="Replace {variable}, or remove it.")
LEFTOVER = Code("A variable is left over from debugging.", fix="Remove {variable} from the job's environment.")
CONF_LINE = Code(
    "A line of NCCL's configuration file sets a different variable than intended.",
    fix="Write NAME=VALUE in {file}, without spaces, quotes or export.",
)
CONF_MISSING = Code(
    "NCCL_CONF_FILE does not name a readable file.",
    fix="Correct the path (~ is not expanded), or unset NCCL_CONF_FILE; with it, ~/.nccl.conf is not read either.",
)
PARAMETERS = Code(
    "NCCL does not report its parameters.",
    fix="Look at the environment plugin (NCCL_ENV_PLUGIN, libnccl-env.so), which NCCL loads first: without it "
    "(NCCL_ENV_PLUGIN=none) NCCL should answer.",
)
PLUGINS_FIX = (
    "Compare the environment plugins (NCCL_ENV_PLUGIN, libnccl-env.so) and nccl.conf of both ranks: {variable} is the "
    "same in their environments."
)
LONGEST = 1000
"""The most characters of a value to keep."""
GRAMMARS = ("ifnames", "hcas", "gloo_ifname")


class Facts(TypedDict):
    values: dict[str, str]
    """What the libraries get, environment and files together."""
    origin: dict[str, str]
    """The file of each variable that is not from the environment."""
    conf_lines: list[tuple[str, int, str]]
    conf_missing: str
    hcas: list[str]
    parameters: dict[str, str] | None
    """NCCL's own values; None if this NCCL cannot be asked."""
    silent: str
    """Why NCCL did not answer, or ""."""


def measure(ctx: Context) -> Facts:
    ctx.doing("NCCL's configuration files", file=ctx.environ.get("NCCL_CONF_FILE", "~/.nccl.conf, /etc/nccl.conf"))
    conf = config_files.read(ctx.environ)
    own = {name: value for name, value in ctx.environ.items() if knowledge.is_ours(name)}
    added = {name: setting for name, setting in conf["settings"].items() if knowledge.is_ours(name)}
    ctx.doing("NCCL's parameters")
    parameters = nccl_parameters.ask(ctx.environ)
    ctx.doing("devices in /sys/class")
    return {
        "values": {
            name: _cut(value)
            for name, value in ({name: setting["value"] for name, setting in added.items()} | own).items()
        },
        "origin": {name: setting["origin"] for name, setting in added.items()},
        "conf_lines": conf["odd_lines"],
        "conf_missing": conf["missing"],
        "hcas": entries("/sys/class/infiniband"),
        "parameters": None if isinstance(parameters, str) else parameters,
        "silent": parameters if isinstance(parameters, str) else "",
    }


def _cut(value: str) -> str:
    """A value too long for any library, shortened but still distinguishable by its hash."""
    if len(value) <= LONGEST:
        return value
    digest = hashlib.sha256(value.encode(errors="replace")).hexdigest()[:12]
    return f"{value[:60]}... ({len(value):,} characters, hash {digest})"


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    names = sorted({name for reading in _distinct(facts) for name in reading["values"]})
    for name in names:
        row = knowledge.find(name)
        if row is None or row.status != "build":
            yield from _differing(name, row, facts, run)
    yield from _differing_in_nccl(set(names), facts, run)
    for (finding, details), ranks in _by_finding(facts, run).items():
        yield from _findings_of(finding, dict(details), ranks, facts, run)


def record(reading: Facts, _job: Job) -> list[Trait]:
    return traits("variable", reading["values"])


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001
    names = {name for reading in _distinct(facts) for name in reading["values"]}
    files = {path for reading in _distinct(facts) for path in reading["origin"].values()}
    shown = ", ".join(sorted(names)) if len(names) <= 3 else ranges.count(len(names), "variable")
    where = f", some in {' and '.join(sorted(files))}" if files else ""
    return f"{shown or 'none'} set{where}"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    """The variables that differ, by node; a node whose ranks differ shows all its values."""
    of_node: dict[str, dict[str, set[str]]] = {}
    names = {name for reading in _distinct(facts) for name in reading["values"]}
    for rank, reading in facts.items():
        for name in names:
            node = run.job.node_of(rank).node
            of_node.setdefault(name, {}).setdefault(node, set()).add(reading["values"].get(name, ""))
    own = {name for name in names if (row := knowledge.find(name)) and row.differs == "own"}
    joined = {
        name: {node: " or ".join(sorted(values)) for node, values in nodes.items()}
        for name, nodes in of_node.items()
        if name not in own
    }
    if table := plots.differing("variables that differ", joined, "variables"):
        yield table


def _distinct(facts: Mapping[int, Facts]) -> list[Facts]:
    """The distinct facts: ranks with equal facts share one object, so a thousand ranks usually have only a few."""
    return list({id(reading): reading for reading in facts.values()}.values())


# Between ranks


def _differing(name: str, row: Variable | None, facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    severity = _weight(name, row)
    if severity is None:
        return
    votes = vote((rank, reading["values"].get(name)) for rank, reading in facts.items())
    if votes.unanimous:
        return
    for rank, value in votes.odd():
        file = facts[rank]["origin"].get(name)
        setting = "not set" if value is None else f"{value!r}{f' (from {file})' if file else ''}"
        text = f"{name} is {setting}, expected {votes.among()}"
        yield DIFFERS.finding(severity, text, variable=name, file=file, **run.job.where(rank))
    if not votes.decided:
        text = f"{name} is {votes.sides()}; expected one value on all ranks"
        yield DIFFERS.finding(severity, text, variable=name)


def _differing_in_nccl(compared: set[str], facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Differences that only NCCL's parameters show. `compared`: the variables already compared."""
    asked = {
        rank: parameters for rank, reading in facts.items() if (parameters := reading.get("parameters")) is not None
    }
    differ = [name for name in compared if len({reading["values"].get(name) for reading in _distinct(facts)}) > 1]
    for name in sorted({name for parameters in asked.values() for name in parameters}.difference(differ)):
        severity = _weight(name, knowledge.find(name))
        votes = vote((rank, parameters.get(name)) for rank, parameters in asked.items())
        if severity is None or votes.unanimous:
            continue
        fix = PLUGINS_FIX.format(variable=name)
        for rank, value in votes.odd():
            text = f"NCCL itself reads {name} as {value!r}, expected {votes.among()}"
            yield DIFFERS.finding(severity, text, fix=fix, variable=name, **run.job.where(rank))
        if not votes.decided:
            text = f"NCCL itself reads {name} as {votes.sides()}; expected one value"
            yield DIFFERS.finding(severity, text, fix=fix, variable=name)


def _weight(name: str, row: Variable | None) -> Severity | None:
    """The severity if ranks differ; None if each may have its own value."""
    if row is None:
        return Severity.WARN if name.startswith(knowledge.COMPLETE) else Severity.INFO
    if row.status in ("build", "absent", "removed") or row.differs == "own":
        return None
    return Severity(row.differs)


# On each rank

Statement = tuple[tuple[Code, Severity, str], tuple[tuple[str, Any], ...]]
"""((code, severity, message), details): a statement about one environment, hashable so that equal ones merge."""


def _by_finding(facts: Mapping[int, Facts], run: Run) -> dict[Statement, list[int]]:
    ranks_of: dict[int, list[int]] = {}
    for rank, reading in facts.items():
        ranks_of.setdefault(id(reading), []).append(rank)
    found: dict[Statement, list[int]] = {}
    for reading in _distinct(facts):
        for statement in _statements(reading, run):
            found.setdefault(statement, []).extend(ranks_of[id(reading)])
    return found


def _findings_of(
    finding: tuple[Code, Severity, str], details: dict[str, Any], ranks: list[int], facts: Mapping[int, Facts], run: Run
) -> Iterator[Finding]:
    """A finding per rank; if all ranks have it, one that blames the variable rather than a rank."""
    code, severity, text = finding
    for where in [{}] if len(ranks) == len(facts) else [run.job.where(rank) for rank in sorted(ranks)]:
        yield code.finding(severity, text, **details, **where)


def _statements(reading: Facts, run: Run) -> Iterator[Statement]:
    for name in sorted(reading["values"]):
        value, file = reading["values"][name], reading["origin"].get(name)
        row = knowledge.find(name)
        for code, severity, text, fix in _statements_of_variable(name, value, row, reading, run):
            shown = f"{text} (set in {file})" if file else text
            yield (code, severity, shown), (("variable", name), ("file", file), ("fix", fix))
    for path, line, odd in reading["conf_lines"]:
        text = f"the line sets a variable {odd!r}, expected {odd.split()[-1] if odd.split() else 'a name'}"
        yield (CONF_LINE, Severity.WARN, text), (("file", path), ("line", line))
    if reading.get("silent"):
        text = (
            f"NCCL was asked for its parameters: {reading['silent']}; expected an answer, as the job needs one to start"
        )
        yield (PARAMETERS, Severity.WARN, text), ()
    if reading["conf_missing"]:
        text = f"NCCL_CONF_FILE is {reading['conf_missing']!r}, expected a readable file"
        yield (CONF_MISSING, Severity.WARN, text), (("variable", "NCCL_CONF_FILE"), ("file", reading["conf_missing"]))


Words = tuple[Code, Severity, str, str | None]


def _statements_of_variable(name: str, value: str, row: Variable | None, reading: Facts, run: Run) -> Iterator[Words]:
    if not value:  # every library treats it as not set
        return
    if row is None:
        yield from _unknown(name)
    elif row.status in ("absent", "removed"):
        yield from _without_effect(name, value, row)
    elif row.status != "build":
        if row.status == "deprecated":
            yield DEPRECATED, Severity.INFO, f"{name} is deprecated, expected {row.note}", None
        yield from _wrong(name, value, row, reading, run)
        yield from _left_over(name, value, row, reading)


def _unknown(name: str) -> Iterator[Words]:
    """Only info without a similar name: it may be a plugin's, or newer than the table."""
    complete, meant = name.startswith(knowledge.COMPLETE), knowledge.meant(name)
    if meant:
        text = f"{name} is set, which {knowledge.reader(name)} does not know; did you mean {meant}?"
        yield UNKNOWN, Severity.WARN, text, f"Rename it to {meant}, or remove it."
    elif complete:
        text = f"{name} is set, which {knowledge.reader(name)} does not know; expected a known name, or a plugin's"
        yield UNKNOWN, Severity.INFO, text, None


def _without_effect(name: str, value: str, row: Variable) -> Iterator[Words]:
    gone = "no longer has such a variable" if row.status == "removed" else "has no such variable"
    text = f"{name}={value} has no effect: NCCL {gone}, expected {row.note}"
    use = "" if row.note.startswith("nothing") else f"; use {row.note}"
    yield NO_EFFECT, Severity.WARN, text, f"Remove {name}{use}."


def _wrong(name: str, value: str, row: Variable, reading: Facts, run: Run) -> Iterator[Words]:
    problem = knowledge.problem(row, value)
    code = WRONG_GRAMMAR if row.kind in GRAMMARS else WRONG_VALUE
    if problem is not None:
        severity = _as_felt(problem.severity, row, run)
        text = f"{name} is {value!r}, and {problem.reads}; expected {problem.expected}"
        yield code, severity, text, f"Set {name} to {problem.expected}."
    elif row.kind == "hcas":
        yield from _wider_than_meant(name, value, reading)


def _as_felt(severity: str, row: Variable, run: Run) -> Severity:
    """Only warn about what a backend refuses that this run does not use."""
    backend = "gloo" if row.kind == "gloo_ifname" else "nccl" if row.kind in ("torch_int", "torch_bool") else None
    return Severity.WARN if backend not in (None, run.job.backend) else Severity(severity)


def _wider_than_meant(name: str, value: str, reading: Facts) -> Iterator[Words]:
    """NCCL matches prefixes: mlx5_1 also takes mlx5_10."""
    if "=" in value:
        return
    wanted = [word.partition(":")[0] for word in value.removeprefix("^").split(",")]
    longer = [(hca, word) for hca in reading["hcas"] for word in wanted if hca not in wanted and hca.startswith(word)]
    wider = [hca for hca, word in longer if word[-1:].isdigit() and hca[len(word) :].isdigit()]
    if wider:
        text = f"{name} is {value!r}, which also takes {', '.join(wider)}; expected exact names, after an ="
        exact = value.replace("^", "^=") if "^" in value else f"={value}"
        yield WRONG_GRAMMAR, Severity.WARN, text, f"Write {name}='{exact}'."


def _left_over(name: str, value: str, row: Variable, reading: Facts) -> Iterator[Words]:
    severity = row.leftover_severity(value)
    if severity and not (name == "NCCL_IB_DISABLE" and not reading["hcas"]):
        text = f"{name}={value} is a debugging setting, expected none: {row.note}"
        yield LEFTOVER, Severity(severity), text, None
