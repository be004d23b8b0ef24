"""First on PYTHONPATH: NumPy is not installed, as far as this process and its children can see.

Not in one of tests/*/, whose sitecustomize changes nothing of torch's import: a rank with this starts cold. The next
sitecustomize on PYTHONPATH runs after it."""

import importlib.machinery
import importlib.util
import os
import sys


class WithoutNumPy(importlib.machinery.PathFinder):
    """Finds all modules of sys.path but NumPy's."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname.partition(".")[0] == "numpy":
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path, target)


sys.meta_path[:] = [WithoutNumPy if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]

_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [p for p in sys.path if p != os.path.dirname(__file__)]
)
if _spec and _spec.loader:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
