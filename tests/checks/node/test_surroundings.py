from pathlib import Path

import pytest

from preflight.checks.node.limits.surroundings import surroundings


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, [], "host"),
        ({}, [".dockerenv"], "container"),
        ({}, ["run/.containerenv"], "container"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, [".dockerenv"], "kubernetes"),
        ({"SLURM_JOB_ID": "7"}, [], "slurm"),
        ({"SLURM_JOB_ID": "7", "APPTAINER_CONTAINER": "a.sif"}, [".dockerenv"], "slurm"),
    ],
)
def test_who_sets_the_limits(environ: dict[str, str], files: list[str], expected: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert surroundings(environ, str(tmp_path)) == expected
