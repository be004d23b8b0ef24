"""The first of its name on PYTHONPATH: under `preflight debug` and `preflight resume` each Python process runs it. It
runs the sitecustomize that it hides, and prepares a rank (preflight_debug_rank.py, preflight_resume_rank.py). Any
version of Python can read it."""

import os
import sys

OWN = os.path.dirname(os.path.abspath(__file__))
MODULES = (("PREFLIGHT_DEBUG", "preflight_debug_rank"), ("PREFLIGHT_RESUME", "preflight_resume_rank"))
"""By the variable that asks for it."""


def begin():  # type: ignore[no-untyped-def]
    """Runs the user's own first; the site module reports what it raises."""
    ours = sys.modules.pop("sitecustomize", None)
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if os.path.abspath(folder) != OWN]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)
        for name, module in MODULES:
            if name in os.environ and sys.version_info >= (3, 8):
                prepare(module)  # type: ignore[no-untyped-call]


def prepare(module):  # type: ignore[no-untyped-def]
    """Nothing here may break the job: a full disk, a closed stdout."""
    sys.path.insert(0, OWN)
    try:
        __import__(module).install()
    except Exception:  # noqa: S110
        pass
    finally:
        sys.path.remove(OWN)


if __name__ == "sitecustomize":
    begin()  # type: ignore[no-untyped-call]
