"""The records of a run that a history keeps, and their form as JSON: one object per run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from preflight.results.fields import Fields, number, row, text

Of = tuple[str, str, str]
"""Kind, check and name of a trait; check, name and unit of measure of a figure."""


@dataclass(frozen=True)
class KeptFinding:
    """A failure, an error or a warning. Not the whole finding: evidence of 10,000 ranks is too much for years."""

    code: str
    severity: str
    nodes: Sequence[str]
    """The nodes that it blames."""
    gpu: str
    """The UUID, or ""."""
    message: str
    counts: bool

    @staticmethod
    def from_json(data: object, place: str) -> "KeptFinding":
        read = Fields(data, place)
        return KeptFinding(
            read.text("code"), read.text("severity"), read.texts("nodes"), read.text("gpu"), read.text("message"),
            read.flag("counts"),
        )  # fmt: skip


@dataclass(frozen=True)
class KeptFigure:
    """A figure from all that measured it. As JSON: [check, name, measure, the rest as an object]."""

    check: str
    name: str
    measure: str
    """Its unit of measure."""
    value: float
    """The median."""
    spread: float
    """The standard deviation of most values, as a share of their median."""
    n: int
    """Number of values."""
    of_job: bool
    """Whether it is a figure of all ranks together, which depends on their number."""
    less_is_better: bool
    least: float | None
    """As in core.record.Figure."""
    labels: Mapping[str, str]
    units: Mapping[str, float]
    """By node, or by the UUID of the GPU; empty for a figure of all ranks together."""

    @property
    def of(self) -> Of:
        return self.check, self.name, self.measure

    def to_json(self) -> list[object]:
        names = [each.name for each in fields(self)][3:]
        return [*self.of, {name: getattr(self, name) for name in names}]

    @staticmethod
    def from_json(data: object, place: str = "figures") -> "KeptFigure":
        check, name, measure, rest = row(data, place, 4)
        read = Fields(rest, f"{place}[3]")
        units, least = read.object("units"), read.data.get("least")
        return KeptFigure(
            text(check, f"{place}[0]"), text(name, f"{place}[1]"), text(measure, f"{place}[2]"),
            read.number("value"), read.number("spread"), read.integer("n"), read.flag("of_job"),
            read.flag("less_is_better"), None if least is None else number(least, f"{place}[3].least"),
            read.texts_by_name("labels"), {unit: units.number(unit) for unit in units.data},
        )  # fmt: skip


@dataclass(frozen=True)
class KeptTrait:
    """What something is. As JSON: [kind, check, name, the values as an object]."""

    kind: str
    check: str
    name: str
    values: Mapping[str, str]
    """By node, or by the UUID of the GPU."""

    @property
    def of(self) -> Of:
        return self.kind, self.check, self.name

    def to_json(self) -> list[object]:
        return [*self.of, dict(self.values)]

    @staticmethod
    def from_json(data: object, place: str = "traits") -> "KeptTrait":
        kind, check, name, values = row(data, place, 4)
        return KeptTrait(
            text(kind, place), text(check, place), text(name, place), Fields(values, f"{place}[3]").all_texts()
        )


@dataclass(frozen=True)
class RunEntry:
    """A run: who took part, how its checks ended, what they found, what nodes had, how fast it was."""

    run: str
    started: str
    job: str
    """The launcher and the size, for people."""
    kind: str
    """Runs of one kind are compared: backend, size, models of GPUs."""
    backend: str
    verdict: str
    checks: Mapping[str, str]
    """The status of each check."""
    findings: Sequence[KeptFinding]
    nodes: Sequence[str]
    machines: Mapping[str, str] = field(default_factory=dict)
    """Machine ids by node, as far as they are known."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The node of each GPU."""
    traits: Sequence[KeptTrait] = ()
    figures: Sequence[KeptFigure] = ()
    absent: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The nodes that have not measured a check, by check whose facts were read: their values are unknown."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Checks whose facts could not be used, and why."""

    def to_json(self) -> dict[str, object]:
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {
            "findings": [vars(finding) for finding in self.findings],
            "traits": [trait.to_json() for trait in self.traits],
            "figures": [figure.to_json() for figure in self.figures],
        }

    @staticmethod
    def from_json(value: object) -> "RunEntry":
        """Raises MalformedReport. Entries of earlier versions have no machines."""
        read = Fields(value)
        absent = read.object("absent")
        return RunEntry(
            read.text("run"), read.text("started"), read.text("job"), read.text("kind"), read.text("backend"),
            read.text("verdict"), read.texts_by_name("checks"), read.list_of("findings", KeptFinding.from_json),
            read.texts("nodes"), read.texts_by_name("machines") if "machines" in read else {},
            read.texts_by_name("places"), read.list_of("traits", KeptTrait.from_json),
            read.list_of("figures", KeptFigure.from_json),
            {check: absent.texts(check) for check in absent.data}, read.texts_by_name("left_out"),
        )  # fmt: skip
