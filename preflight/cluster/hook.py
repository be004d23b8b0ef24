"""`preflight hook`: prints the hooks that the tests run in a real Slurm, with this machine's paths."""

import os
import shutil
import sys
from importlib import resources

HOOKS = {
    "slurm-prolog": "prolog.sh",
    "slurm-health": "health.sh",
    "slurm-epilog": "epilog.sh",
    "sbatch": "job.sbatch",
    "node-problem-detector": "npd.sh",
    "kubernetes": "kubernetes.yaml",
    "jobset": "jobset.yaml",
    "kubeflow-trainer": "trainer.yaml",
    "mpijob": "mpijob.yaml",
    "nvsentinel": "nvsentinel.yaml",
}
"""Names of the files in examples/ and in hooks/."""
EXAMPLE_PATHS = {"@BIN@": "/opt/preflight/bin", "@SLURM@": "/usr/bin", "@CONF@": "/etc/slurm/slurm.conf"}
"""What examples/ has in place of a machine's own paths."""


def paths() -> dict[str, str]:
    """Where preflight, Slurm's commands and its configuration are on this machine."""
    slurm = shutil.which("scontrol")
    return {
        "@BIN@": os.path.dirname(os.path.abspath(sys.executable)),
        "@SLURM@": os.path.dirname(slurm) if slurm else EXAMPLE_PATHS["@SLURM@"],
        "@CONF@": os.environ.get("SLURM_CONF", EXAMPLE_PATHS["@CONF@"]),
    }


def text(name: str, filled: dict[str, str]) -> str:
    script = (resources.files("preflight.cluster") / "hooks" / HOOKS[name]).read_text()
    folders = dict.fromkeys((filled["@BIN@"], filled["@SLURM@"], "/usr/bin", "/bin"))  # Slurm's may be one of these
    for word, path in {**filled, "@PATH@": ":".join(folders)}.items():
        script = script.replace(word, path)
    return script


def run(name: str) -> int:
    print(text(name, paths()), end="")
    return 0
