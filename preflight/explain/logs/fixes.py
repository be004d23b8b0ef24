"""What to do about an exception that matches no signature: by its type, its place, and who raised it."""

import re

from preflight.core import rank_ranges
from preflight.explain.logs.tracebacks import Traceback

CUDA = re.compile(r"\bCUDA\b|\bcuda\w*Error\b|CUBLAS|CUDNN|\bHIP\b")
CUDA_FIX = "CUDA reports errors late: run that rank with CUDA_LAUNCH_BLOCKING=1 to see the line that caused it."
BY_TYPE = (
    (
        r"^(?:ImportError|ModuleNotFoundError)$",
        "In the job's environment, on that node: which python; python -m pip check; import it by hand. All nodes must "
        "start the same environment.",
    ),
    (
        r"^(?:FileNotFoundError|NotADirectoryError|PermissionError|IsADirectoryError)$",
        "On that node, as the job's user: ls -ld on the path and its parents; id. Is the file system mounted there, "
        "and is the path absolute?",
    ),
    (
        r"^(?:HTTPError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|MaxRetryError|URLError)$",
        "On that node: curl -sI URL. Compute nodes often have no way out: set HTTPS_PROXY, or download it "
        "beforehand to a shared folder.",
    ),
)
"""Patterns of types, and the fix."""


def of_exception(traceback: Traceback, everywhere: bool, ranks: frozenset[int]) -> str:
    """One or two sentences: what to look at, and whether it is one rank's data or all ranks' code."""
    found = (fix for pattern, fix in BY_TYPE if re.search(pattern, traceback.type))
    place = f"{traceback.file}:{traceback.number}" if traceback.file else ""
    what = next(found, f"Look at {place}: its traceback shows the calls that led there." if place else READ)
    cuda = f" {CUDA_FIX}" if CUDA.search(traceback.raised) else ""
    return f"{what}{cuda}{_scope(everywhere, ranks)}"


READ = "Read that rank's own output from its first traceback on; this line alone shows no place."


def _scope(everywhere: bool, ranks: frozenset[int]) -> str:
    if everywhere:
        return " All ranks raise it, so one process alone will, too: try it with --nproc-per-node 1."
    if len(ranks) == 1:
        who = rank_ranges.ranks(ranks)
        return f" Only {who} shows it here: look at its data and at what the code does for that rank only."
    return ""
