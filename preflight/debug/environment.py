"""Variables for the job, so that a failure leaves traces. What the user has set stays."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FOLDER = "PREFLIGHT_DEBUG"
HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET"
"""NCCL's default and NET, which names the interfaces and HCAs in use: they write at the start, not in each step. COLL,
P2P, CALLS and PROXY write in each step; GRAPH writes hundreds of lines per rank that show no failure."""
SOCKETS = "sockets"
"""Of mode 0700: whoever can reach a rank's socket can make it write its flight recorder."""
FOLDERS = ("nccl", "ranks", "recorded", "records", "stacks")
MATTER = re.compile(
    r"NCCL_DEBUG|NCCL_DEBUG_SUBSYS|NCCL_DEBUG_FILE|TORCH_(NCCL|FR)_(DUMP|DEBUG_INFO|TRACE|BUFFER)\w*|TORCH_FR_\w+"
    r"|TORCH_DISTRIBUTED_DEBUG|PYTHONFAULTHANDLER|PET_(LOG_DIR|TEE|REDIRECTS)"
)
"""The user's settings that decide what a failure leaves."""


@dataclass(frozen=True)
class Prepared:
    environ: Mapping[str, str]
    kept: tuple[str, ...]
    """The user's settings of MATTER: "NCCL_DEBUG=WARN"."""


def prepared(environ: Mapping[str, str], folder: str, command: Sequence[str]) -> Prepared:
    """`folder`: absolute, with FOLDERS in it."""
    wanted = {**_nccl(environ, folder), **_torch(folder), **_torchrun(environ, folder, command)}
    kept = [f"{name}={value}" for name, value in sorted(environ.items()) if MATTER.fullmatch(name)]
    paths = [HOOK, *filter(None, [environ.get("PYTHONPATH")])]
    ours = {FOLDER: folder, "PYTHONPATH": os.pathsep.join(paths)}
    return Prepared({**wanted, **environ, **ours}, tuple(kept))


def _nccl(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Sends NCCL's log to one file per process, warnings included. A user who set NCCL_DEBUG wants it on the screen."""
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS}
    if "NCCL_DEBUG" not in environ:
        wanted["NCCL_DEBUG_FILE"] = os.path.join(folder, "nccl", "%h.%p.log")
    return wanted


def _torch(folder: str) -> dict[str, str]:
    """No desync debugging (it writes to the store in each collective), no C++ stacks (resolving them takes seconds).
    The size of the flight recorder is set in the rank: the name of its variable depends on torch's version."""
    recorded = os.path.join(folder, "recorded", "rank-")
    return {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": recorded,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": recorded,
        "TORCH_DISTRIBUTED_DEBUG": "INFO",  # DDP names unused parameters; DETAIL would add a collective to each
        "PYTHONFAULTHANDLER": "preflight",  # any word turns it on, and the hook knows this one
    }


def _torchrun(environ: Mapping[str, str], folder: str, command: Sequence[str]) -> dict[str, str]:
    """A file per rank, and the error files; torchrun reads each of its options from PET_*, too
    (torch/distributed/argparse_util.py), but an option in the command wins. Output that the user redirects stays off
    the screen."""
    wanted = {"PET_LOG_DIR": os.path.join(folder, "ranks")}
    redirects = any(re.match(r"(-r|--redirects)(=|\d|$)", word) for word in command)
    if not redirects and "PET_REDIRECTS" not in environ:
        wanted["PET_TEE"] = "3"
    return wanted


def elsewhere(environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Patterns of glob for the traces that the user sends elsewhere: torchrun's --log-dir, NCCL_DEBUG_FILE."""
    paths = [value for word, value in itertools.pairwise(command) if word in ("--log-dir", "--log_dir")]
    paths += [word.partition("=")[2] for word in command if re.match("--log[-_]dir=", word)]
    paths += [environ[name] for name in ("PET_LOG_DIR",) if environ.get(name)]
    file = environ.get("NCCL_DEBUG_FILE", "")
    return [*paths, *([re.sub("%[hp]", "*", file)] if file and file not in ("stdout", "stderr") else [])]
