"""The first of its name on PYTHONPATH: under `preflight debug` each Python process runs it. It runs the sitecustomize
that it hides, and prepares a rank (preflight_debug_rank.py). Any version of Python can read it."""

import os
import sys

OWN = os.path.dirname(os.path.abspath(__file__))


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
        if "PREFLIGHT_DEBUG" in os.environ and sys.version_info >= (3, 8):
            prepare()  # type: ignore[no-untyped-call]


def prepare():  # type: ignore[no-untyped-def]
    """Nothing here may break the job: a full disk, a closed stdout."""
    sys.path.insert(0, OWN)
    try:
        import preflight_debug_rank  # type: ignore[import-not-found]

        preflight_debug_rank.install()
    except Exception:  # noqa: S110
        pass
    finally:
        sys.path.remove(OWN)


if __name__ == "sitecustomize":
    begin()  # type: ignore[no-untyped-call]
