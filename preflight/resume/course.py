"""What the three trainings of a test did."""

from dataclasses import dataclass, field

from preflight.core.finding import Reported
from preflight.resume.control import RepeatControl
from preflight.resume.training import TrainingEnd


@dataclass
class ResumedTrainings:
    reference: TrainingEnd | None = None
    """The training that never stopped."""
    stopped: TrainingEnd | None = None
    resumed: TrainingEnd | None = None
    stop_at: int = 0
    after: int | None = None
    """The steps done at the point of resume."""
    control: RepeatControl = field(default_factory=RepeatControl)
    findings: list[Reported] = field(default_factory=list)
