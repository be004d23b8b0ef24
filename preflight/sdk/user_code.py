"""Loads and calls what a user gives as MODULE:FUNCTION. Messages about errors in it begin with file and line.

Used only in a worker, in a check whose plan is `fresh`: the user's folder comes first on sys.path there, and the code
may hang, crash or change anything.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

from preflight.core import own_code
from preflight.core.exceptions import Frame, Worker, first_words, out_of_a_collective, printed_frames
from preflight.errors import Skip, near_misses

STACK_LIMIT = 16_000
_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"


class UserError(Exception):
    """What is wrong with a user's code."""

    def __init__(self, sentence: str, file: str | None = None, line: int | None = None) -> None:
        """`sentence` begins with file and line, if they are known. `file` is relative to the current folder if it is
        in it."""
        super().__init__(sentence)
        self.text, self.file, self.line = sentence, file, line

    def to_json(self) -> dict[str, object]:
        """Facts: `file` (text or None), `line` (a number or None) and `text`."""
        return {"file": self.file, "line": self.line, "text": self.text}

    @property
    def stack(self) -> str:
        """Python's traceback of what the code raised, its last 16,000 characters; "" if it raised nothing. As evidence
        it is also written to DIR/logs of --report."""
        cause = self.__cause__
        return "".join(traceback.format_exception(cause))[-STACK_LIMIT:] if cause is not None else ""


class CodePlace(NamedTuple):
    """A line of the user's code."""

    file: str
    """Relative to the current folder if it is in it."""
    line: int
    function: str
    """"Net.forward"; "" for a module's own lines."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{f' in {self.function}()' if self.function else ''}"


@dataclass(frozen=True)
class UserCode:
    """A function of the user's, given by name. As an option: `option(UserCode.parse, None, "...")`."""

    module: str
    """A module's name, or the path of a .py file."""
    function: str
    """Its name in the module; dots lead into a class or an object."""
    start: str = field(default_factory=os.getcwd, compare=False)
    """The current folder before the user's code can change it."""

    @classmethod
    def parse(cls, given: str) -> "UserCode":
        """Raises ValueError if it does not look like MODULE:FUNCTION or FILE.py:FUNCTION."""
        module, _, function = given.strip().rpartition(":")
        if not (module.endswith(".py") or re.fullmatch(_NAME, module)) or not re.fullmatch(_NAME, function):
            raise ValueError("expected MODULE:FUNCTION or FILE.py:FUNCTION, as in my_project.model:build")
        return cls(module, function)

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    def call(self, *, may_be_none: bool = False, as_they_are: tuple[type, ...] = ()) -> Any:
        """Calls the function (or class) without arguments and returns the result; an instance of a type in
        `as_they_are` is returned itself. Raises UserError for everything that goes wrong in it; only an exception from
        a collective passes unchanged."""
        with _Blame(self, always=True):
            module = self._import()
            function = self._find(module)
            if isinstance(function, as_they_are):
                return function
            if not callable(function):
                kind = type(function).__name__
                raise _at(module, f"{self.function} is of type {kind}, expected a function or a class")
            _takes_no_arguments(function, self.function)
            result = function()
            if result is None and not may_be_none:
                _refuse(function, f"{self.function}() returns None: is a return missing?")
        return result

    def imported(self) -> None:
        """Imports its module, which may take as long as many ranks need that read one file system. Raises UserError."""
        with _Blame(self, always=True):
            self._import()

    def named(self) -> Any:
        """The named object itself, without calling it. Raises UserError."""
        with _Blame(self, always=True):
            return self._find(self._import())

    def blamed(self, *, always: bool = False) -> "_Blame":
        """A `with` for whatever calls the user's code again (a forward, a loss, a loader): an exception that passed
        through a line of it, also in a DataLoader worker, becomes a UserError that names the innermost one. Others pass
        unchanged; with `always` they become a UserError without a line. An exception from a collective always passes
        unchanged: it reports another rank's death."""
        return _Blame(self, always=always)

    def place(self) -> tuple[str, int] | None:
        """File and line at which the function, the class or the instance's class begins, once it has been called; None
        if they are not known."""
        with contextlib.suppress(Exception):
            found = inspect.unwrap(self._find(self._import()))
            code = getattr(found, "__code__", None)
            if code is None:
                return self.place_of(found if isinstance(found, type) else type(found))
            return _shown(code.co_filename), int(code.co_firstlineno)
        return None

    def place_of(self, thing: object) -> tuple[str, int] | None:
        """File and line at which a function or a class begins if it is the user's own code; else None."""
        with contextlib.suppress(Exception):
            thing = inspect.unwrap(thing) if callable(thing) else thing
            path = inspect.getsourcefile(thing)  # type: ignore[arg-type]  # a TypeError for what is neither
            if path and self.is_own(path, getattr(thing, "__module__", "")):
                code = getattr(thing, "__code__", None)
                line = code.co_firstlineno if code else inspect.getsourcelines(thing)[1]  # type: ignore[arg-type]
                return _shown(path), int(line)
        return None

    def innermost(self, frames: Iterable[Frame]) -> CodePlace | None:
        """The first of the frames that is the user's. `frames`: (path, line, function, module's name or None if only
        the file is known), the most recent call first."""
        for path, line, function, module in frames:
            if self.is_own(path, _module_at(path) if module is None else module):
                return CodePlace(_shown(path), line, _function_name(function))
        return None

    def innermost_printed(self, stack: str) -> CodePlace | None:
        """Like `innermost`, for a stack that faulthandler printed."""
        return self.innermost(printed_frames(stack))

    def is_own(self, path: str, module: str) -> bool:
        """Whether a source file, the module of this name, is the user's own."""
        if path.startswith("<"):
            return False
        path, standard = os.path.realpath(path), os.path.realpath(sysconfig.get_path("stdlib"))
        for home in self.homes():
            if path == home or path.startswith(os.path.join(home, "")):
                in_python = path.startswith(os.path.join(standard, "")) and not home.startswith(standard)
                if not in_python and own_code.is_own(path, home, module):
                    return True
        return False

    @property
    def path(self) -> str | None:
        """The path of the .py file, if one was given."""
        return os.path.join(self.start, self.module) if self.module.endswith(".py") else None

    @property
    def folder(self) -> str:
        """The user's folder: the file's, or the current one."""
        return os.path.dirname(os.path.abspath(self.path)) if self.path else self.start

    def _import(self) -> ModuleType:
        if sys.path[:1] != [self.folder]:
            sys.path.insert(0, self.folder)
        sys.dont_write_bytecode = True  # leaves no file in the user's folder; a hook may run as root there
        sys.argv = [self.module]  # the user's parser must not read preflight's options
        importlib.invalidate_caches()
        return _from_file(self.path) if self.path else _from_name(self.module, self.folder)

    def _find(self, module: ModuleType) -> Any:
        found: Any = module
        for name in self.function.split("."):
            if not hasattr(found, name):
                own = [key for key, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__]
                hint = near_misses(self.function, [key for key in own if callable(vars(module)[key])])
                raise _at(module, f"there is no function {self.function} in it{hint}")
            found = getattr(found, name)
        return found

    def homes(self) -> Iterator[str]:
        """Folders (and a single module's file) that hold the user's own code."""
        yield from {os.path.realpath(path) for path in (self.folder, self.start, os.getcwd())}
        loaded = sys.modules.get(self.module.partition(".")[0])
        for path in list(getattr(loaded, "__path__", None) or [getattr(loaded, "__file__", None)]):
            if path:
                yield os.path.realpath(path)


def _from_name(name: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        parent, _, missing = error.name.rpartition(".")
        where = list(getattr(sys.modules.get(parent), "__path__", [])) if parent else [folder]
        hint = near_misses(missing, [module.name for module in pkgutil.iter_modules(where)])
        raise UserError(f"{error.name}: there is no such module in {folder} or on Python's path{hint}") from None


def _from_file(path: str) -> ModuleType:
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise UserError(f"{_shown(path)}: there is no such file (the current folder is {os.getcwd()})")
    name = os.path.basename(path).removesuffix(".py")
    other = sys.modules.get(name)
    if other is not None and getattr(other, "__file__", None) == path:
        return other
    if other is not None:  # the user's platform.py must not be the one that torch imports
        name = f"user_code_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _at(module: ModuleType, sentence: str) -> UserError:
    path = getattr(module, "__file__", None)
    file = _shown(path) if path else None
    return UserError(f"{file or module.__name__}: {sentence}", file)


def _takes_no_arguments(function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # one in C may not tell
        return
    try:
        signature.bind()
    except TypeError as error:
        hint = f"; name a function that returns {name}(...)" if isinstance(function, type) else ""
        _refuse(function, f"{name}({', '.join(signature.parameters)}) is called without arguments: {error}{hint}")


def _refuse(function: Callable[..., Any], sentence: str) -> NoReturn:
    """Raises UserError with the place at which the function begins, or the `__init__` of a class."""
    code = getattr(inspect.unwrap(getattr(function, "__init__", function)), "__code__", None)
    code = getattr(inspect.unwrap(function), "__code__", code)
    if code is None:
        raise UserError(sentence) from None
    file, line = _shown(code.co_filename), int(code.co_firstlineno)
    raise UserError(f"{file}:{line}: {sentence}", file, line) from None


def _shown(path: str) -> str:
    path, folder = os.path.realpath(path), os.path.realpath(os.getcwd())
    return os.path.relpath(path, folder) if path.startswith(os.path.join(folder, "")) else path


# Whose line it was


class _Blame:
    """Turns an exception into a UserError. `always`: even if no line of the user's is known."""

    def __init__(self, code: UserCode, *, always: bool = False) -> None:
        self._code, self._always = code, always

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        # No SIGINT is sent to a worker: the user's code raised it.
        kinds = Exception | SystemExit | KeyboardInterrupt
        may_be_the_users = isinstance(error, kinds) and not isinstance(error, UserError | Skip)
        if error is None or not may_be_the_users or out_of_a_collective(error):
            return
        place, reason = self._place_and_reason(error, trace and trace.tb_frame)
        if place is not None:
            raise UserError(f"{place}: {reason}", place.file, place.line) from error
        if self._always:
            raise UserError(f"{self._code}: {reason}") from error

    def _place_and_reason(self, error: BaseException, own: FrameType | None) -> tuple[CodePlace | None, str]:
        """The user's innermost line in the exception or one of its causes, and what was raised. `own`: the frame with
        the `with` statement, which is the check's."""
        if isinstance(error, SyntaxError) and error.filename and self._code.is_own(error.filename, ""):
            return CodePlace(_shown(error.filename), error.lineno or 1, ""), _reason(error)  # it has no frame yet
        raised: BaseException | None = error
        for _ in range(10):  # exceptions may name each other in a ring
            worker = Worker.of(raised)
            if raised and worker and (place := self._code.innermost(worker.frames)):
                return place, _reason(raised)
            if place := self._code.innermost(_frames(raised, own)):
                return place, _reason(error)
            raised = raised and (raised.__cause__ or raised.__context__)
        return None, _reason(error)


def _frames(error: BaseException | None, own: FrameType | None) -> list[Frame]:
    """The frames of an exception in the form that `UserCode.innermost` takes."""
    trace = error.__traceback__ if error is not None else None
    found: list[Frame] = []
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        if trace.tb_frame is not own:
            found.append((code.co_filename, trace.tb_lineno, code.co_qualname, str(names.get("__name__", ""))))
        trace = trace.tb_next
    return found[::-1]


def _module_at(path: str) -> str:
    """The name of the loaded module with this file; "" if there is none."""
    loaded = list(sys.modules.items())
    return next((name for name, module in loaded if getattr(module, "__dict__", {}).get("__file__") == path), "")


def _function_name(qualified: str) -> str:
    """ "Net.forward"; a line in a comprehension counts as one of the function around it; "" for a module."""
    return re.sub(r"\.?<(?!lambda)\w+>", "", qualified).replace("..", ".").strip(".")


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if worker := Worker.of(error):
        return f"{worker.message} (in {worker.name})"
    return f"{type(error).__name__}: {first_words(error)}"
