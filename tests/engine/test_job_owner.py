"""Which variables name a process's job."""

import pytest

from preflight.engine import job_owner

TASK = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("launcher", "environ", "named"),
    [
        ("env", TASK, ("Slurm job", "40")),  # one world over the tasks of an array
        ("slurm", TASK, ("Slurm step", "41.0")),
        ("slurm", {**TASK, "SLURM_HET_JOB_ID": "7"}, ("Slurm step", "7.0")),
        ("env", {"PBS_JOBID": "12[3].server"}, ("PBS job", "12.server")),
        ("env", {"PBS_JOBID": "12.server"}, ("PBS job", "12.server")),
        ("torchrun", {**TASK, "TORCHELASTIC_RUN_ID": "none"}, ("", "")),
        ("env", {}, ("", "")),
    ],
)
def test_what_names_a_job(launcher: str, environ: dict[str, str], named: tuple[str, str]) -> None:
    assert job_owner.named(launcher, environ) == named
