"""`preflight.run()` if the user's folder has a file named like a module of Python's own: Python imports the user's.

(The commands take the current folder off the path first.) Imports only sys, which is not a file.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def api() -> "ModuleType":
    """Imports preflight.cli.api. Raises ImportError, in one sentence, if that imported a module of the user's instead
    of Python's, or failed because of one that was imported before."""
    before = set(sys.modules)
    try:
        from preflight.cli import api
    except (Exception, SystemExit) as error:
        refuse({*_hiding(set(sys.modules)), *_passed_through(error)})
        raise
    refuse(_hiding(set(sys.modules) - before))
    return api


def refuse(hiding: set[str]) -> None:
    if hiding:
        files = " and ".join(sorted(hiding))
        rest = "hides a module of Python's own, which is needed here: rename it, or start Python in another folder"
        raise ImportError(f"preflight.run(): {files} {rest}") from None


def _hiding(names: set[str]) -> set[str]:
    """The files of the modules that are named like Python's own but are not."""
    files = {name: getattr(sys.modules[name], "__file__", None) for name in names & sys.stdlib_module_names}
    return {file for file in files.values() if file and not _is_pythons(file)}


def _passed_through(error: BaseException) -> set[str]:
    """Like `_hiding`, for modules that failed to import: the files in the stack, or in a syntax error."""
    files = [getattr(error, "filename", None) or ""]
    stack = error.__traceback__
    while stack:
        files.append(stack.tb_frame.f_code.co_filename)
        stack = stack.tb_next
    return {file for file in files if _module(file) in sys.stdlib_module_names and not _is_pythons(file)}


def _module(file: str) -> str:
    folder, _, name = file.removesuffix("/__init__.py").rpartition("/")
    return name.removesuffix(".py") if folder else ""


def _is_pythons(file: str) -> bool:
    import os

    return file.startswith((os.path.dirname(os.__file__) + os.sep, "<frozen")) and "site-packages" not in file
