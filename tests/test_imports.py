"""Imports run one way, rooms and families hold what they say, and what must start quickly imports no torch."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping

from preflight.planning import registry
from tests.sizes import ROOT, product_files, relative

ROOMS = ("core", "sdk", "nccl", "failure_book", "planning", "hangs", "results", "history", "sinks", "engine", "explain",
         "rendezvous", "checkpoint", "debug", "resume", "cluster", "cli")  # fmt: skip
"""A room imports from itself and from those to its left. Beside them stand errors (imported by all, imports nothing),
check (what checks may use of core and sdk), and testing (for authors of checks)."""
ROOMS_OF_TRAINING = (("trainer",), ("strategies",), ("checkpoint", "speed", "user"))
"""Those of train_smoke. A room imports from itself and from those before it; `command` and `__main__` from all."""
OF_CHECKS = ("preflight.check", "preflight.nccl", "preflight.sdk")
"""What every check may import, beside its own package and its family's shared."""

READS_PICKLES = ("preflight/sdk/pickles.py", "checks/data/resume/runs.py")
"""The second reads back what it has written itself."""


@functools.cache  # several tests read all files
def imported(text: str) -> tuple[str, ...]:
    """Full names of all that is imported anywhere in it: `from a import b` is a.b."""
    return (*_imported(text),)


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _is_in(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def no_room_to_the_left(path: str, name: str) -> bool:
    folder, room, *_ = [*path.removesuffix(".py").split("/"), ""]
    top = name.split(".")[1] if _is_in(name, "preflight") and "." in name else ""
    if folder != "preflight" or not top:
        return False
    if room == "errors":
        return True
    if room == "check":
        return top not in ("core", "sdk", "errors")
    if top in ("check", "errors", "testing") or room not in ROOMS:
        return (top, room) in (("check", "core"), ("check", "sdk"))
    return top in ROOMS and ROOMS.index(top) > ROOMS.index(room)


def no_later_room_of_training(path: str, name: str) -> bool:
    folder, room, *_ = [*path.removesuffix(".py").split("/"), ""]
    if folder != "train_smoke" or not _is_in(name, "preflight.train_smoke"):
        return False
    imported_room = [*name.split("."), "", ""][2]
    places = {known: place for place, rooms in enumerate(ROOMS_OF_TRAINING) for known in rooms}
    beside = len(ROOMS_OF_TRAINING)
    return imported_room != room and places.get(imported_room, beside) >= places.get(room, beside + 1)


def not_for_checks(path: str, name: str) -> bool:
    folder, family, part, *_ = [*path.removesuffix(".py").split("/"), "", ""]
    if folder != "checks":
        return False
    if not _is_in(name, "preflight"):
        return name.startswith(".") or name.partition(".")[0] in ("rich", "tests")
    allowed = [*OF_CHECKS, f"preflight.checks.{family}.shared", *["preflight.train_smoke"] * (family == "train")]
    allowed += ["preflight.failure_book"] * (f"{family}.{part}" in ("comm.init", "node.kernel"))
    if part != "shared":
        allowed.append(f"preflight.checks.{family}.{part}")
    packages = {f"preflight.checks.{family}.{child}" for child in ("shared", part)}
    return not _is_in(name, *allowed) and name not in packages


RULES: Mapping[str, Callable[[str, str], bool]] = {
    "a room imports from the rooms to its left": no_room_to_the_left,
    "a room of train_smoke imports from the rooms before it": no_later_room_of_training,
    "a check imports no other check and nothing of the engine": not_for_checks,
    "sdk/pickles reads pickles": lambda path, name: (
        name.partition(".")[0] in ("pickle", "_pickle", "marshal", "shelve") and path not in READS_PICKLES
    ),
    "the engine imports no check": lambda path, name: (
        path.startswith("preflight/") and _is_in(name, "preflight.checks")
    ),
}
"""Each holds for a file's path in the repository and the name that it imports, and is true where the rule is broken."""


def offenders(files: Mapping[str, str]) -> list[str]:
    """`file imports name: rule`, for the texts of files by their path in the repository."""
    return [
        f"{path} imports {name}: {rule}"
        for path, text in files.items()
        for name in imported(text)
        for rule, is_broken in RULES.items()
        if is_broken(path, name)
    ]


def _texts() -> dict[str, str]:
    return {relative(path): path.read_text() for path in product_files()}


def in_circles(files: Mapping[str, str]) -> list[str]:
    """The modules that import each other, straight or through others, and those between two circles. All imports count:
    those for types only, and those within functions."""
    leads_to = _graph(files)
    leads_from = {name: {other for other, names in leads_to.items() if name in names} for name in leads_to}
    left = set(leads_to)
    while outside := {name for name in left if not (leads_to[name] & left and leads_from[name] & left)}:
        left -= outside
    return sorted(left)


def _graph(files: Mapping[str, str]) -> dict[str, set[str]]:
    """What each module imports, of these."""
    texts = {_module(path): text for path, text in files.items()}
    return {name: set(_modules(text, texts)) - {name} for name, text in texts.items()}


def not_shared(files: Mapping[str, str]) -> list[str]:
    """The modules in a family's `shared` that serve fewer than two checks, straight or through others of `shared`."""
    graph = _graph(files)

    def checks_with(module: str, passed: frozenset[str] = frozenset()) -> set[str]:
        importers = {name for name, names in graph.items() if module in names} - passed
        through = {name for name in importers if ".shared." in name}
        served = {
            ".".join(name.split(".")[2:4]) for name in importers - through if name.startswith("preflight.checks.")
        }
        return served.union(*(checks_with(name, passed | importers) for name in through))

    return [name for name in sorted(graph) if ".shared." in name and len(checks_with(name)) < 2]


def _module(path: str) -> str:
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if _is_in(name, "preflight") else f"preflight.{name}"


def _modules(text: str, known: Container[str]) -> Iterator[str]:
    """What is imported is a module, or defined in one."""
    for name in imported(text):
        yield from [module for module in (name, name.rpartition(".")[0]) if module in known][:1]


def test_imports_run_one_way() -> None:
    files = _texts()
    assert {path.partition("/")[0] for path in files} >= {"preflight", "checks", "train_smoke"}
    assert offenders(files) == []


def test_no_modules_import_each_other() -> None:
    assert in_circles(_texts()) == []


def test_a_circle_is_seen() -> None:
    files = {
        "preflight/engine/leader.py": "if TYPE_CHECKING:\n    from preflight.engine.supervisor import Supervisor",
        "preflight/engine/supervisor.py": "def f():\n    from preflight.engine import context",
        "preflight/engine/context.py": "import preflight.engine.leader, preflight.core.job",
        "preflight/core/job.py": "",
        "preflight/cli/main.py": "from preflight.engine import supervisor",
    }
    assert in_circles(files) == [f"preflight.engine.{name}" for name in ("context", "leader", "supervisor")]
    assert not in_circles({**files, "preflight/engine/context.py": "import preflight.core.job"})


def test_a_forbidden_import_is_seen() -> None:
    wrong = {
        "def f():\n    from preflight.checks.env import launch",
        "from preflight.checks.env.launch import Facts",
        "from preflight.checks.comm.shared import sweep",
        "from preflight.engine import supervisor",
        "import preflight.engine.supervisor",
        "from preflight.train_smoke.trainer import train",
        "from preflight.rendezvous import codes",
        "from . import launch",
        "import rich",
        "from rich.console import Console",
    }
    right = {
        "from preflight.check import Plan",
        "from preflight.checks.env.software.installed import versions",
        "from preflight.checks.env.shared import made",
        "from preflight.nccl import version",
        "import torch",
    }
    path = "checks/env/software/made.py"
    assert {line for line in wrong | right if offenders({path: line})} == wrong
    assert offenders({"checks/env/shared/made.py": "from preflight.checks.env import software"})
    assert offenders(
        {"preflight/results/made.py": "from preflight.engine import worker\nimport preflight.core.job"}
    ) == ["preflight/results/made.py imports preflight.engine.worker: a room imports from the rooms to its left"]
    assert offenders({"preflight/cli/made.py": "from preflight.checks.env import launch"})
    assert offenders({"preflight/checkpoint/made.py": "import pickle"})
    assert offenders({"preflight/checkpoint/made.py": "from pickle import Unpickler"})
    assert not offenders({"preflight/sdk/pickles.py": "import pickle"})


def test_an_import_from_a_later_room_of_training_is_seen() -> None:
    wrong = {
        "from preflight.train_smoke import user",
        "from preflight.train_smoke.user import validation",
        "from preflight.train_smoke.speed.trace import Event",
        "from preflight.train_smoke.command import main",
        "import preflight.train_smoke",
    }
    right = {
        "from preflight.train_smoke.trainer import task",
        "from preflight.train_smoke.strategies.ddp import BUCKET_MB",
        "from preflight.train_smoke.checkpoint import model",
        "from preflight.sdk import memory",
    }
    assert {line for line in wrong | right if offenders({"train_smoke/checkpoint/made.py": line})} == wrong
    assert offenders({"train_smoke/trainer/made.py": "from preflight.train_smoke.strategies import ddp"})
    assert not offenders({"train_smoke/command.py": "from preflight.train_smoke.user import names"})
    assert not offenders({"train_smoke/__main__.py": "from preflight.train_smoke.command import main"})


def test_what_is_shared_serves_two_checks() -> None:
    assert not_shared(_texts()) == []


def test_what_serves_one_check_is_not_shared() -> None:
    files = {
        "checks/env/shared/made.py": "",
        "checks/env/shared/through.py": "from preflight.checks.env.shared import made",
        "checks/env/launch.py": "from preflight.checks.env.shared import made, through",
    }
    assert not_shared(files) == ["preflight.checks.env.shared.made", "preflight.checks.env.shared.through"]
    assert not not_shared({**files, "checks/env/software/a.py": "from preflight.checks.env.shared import through"})


def test_a_familys_folder_lists_its_checks() -> None:
    families = {id_.partition(".")[0] for id_ in registry.BUILT_IN}
    found = {
        f"{family}.{entry.name.removesuffix('.py')}"
        for family in families
        for entry in (ROOT / "checks" / family).iterdir()
        if entry.name not in ("__init__.py", "__pycache__", "shared")
    }
    assert found == set(registry.BUILT_IN)


def test_a_room_is_explained_where_it_begins_and_holds_no_code_there() -> None:
    told = {}
    of_training = [ROOT / "train_smoke" / name for rooms in ROOMS_OF_TRAINING for name in rooms]
    for room in (*(ROOT / "preflight").iterdir(), *(ROOT / "checks").glob("*/shared"), *of_training):
        if room.name in ROOMS or room.name == "shared" or room in of_training:
            tree = ast.parse((room / "__init__.py").read_text())
            told[relative(room)] = bool(ast.get_docstring(tree)) and len(tree.body) == 1
    assert len(told) > len(ROOMS)
    assert [room for room, is_right in told.items() if not is_right] == []


def test_nothing_is_imported_for_others_to_import() -> None:
    """A check names its parts (PARTS), everybody else imports from where it is defined."""
    facades = ("preflight/check.py", "preflight/__init__.py")
    again = [
        f"{relative(path)}: {alias.name}"
        for path in product_files()
        if relative(path) not in facades
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert again == []


def test_a_class_name_has_one_meaning() -> None:
    """`Facts` is each check's own."""
    found = Counter(
        node.name
        for path in product_files()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Facts"
    )
    assert [name for name, count in found.items() if count > 1] == []


def untyped(text: str) -> int:
    """How many signatures have a `dict[str, Any]`: the type checker sees no key of it."""
    return sum(
        any("dict[str, Any]" in ast.unparse(note) for note in _annotations(node))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    listed = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    yield from (argument.annotation for argument in listed if argument and argument.annotation)
    yield from [node.returns] if node.returns else []


UNTYPED: Mapping[str, int] = {
    "checks/comm": 6, "checks/data": 6, "checks/env": 1, "checks/gpu": 8, "checks/net": 1, "checks/train": 1,
    "preflight": 2, "preflight/checkpoint": 8, "preflight/cluster": 3, "preflight/core": 13, "preflight/debug": 2,
    "preflight/engine": 19, "preflight/explain": 20, "preflight/failure_book": 5, "preflight/hangs": 4,
    "preflight/history": 3, "preflight/planning": 1, "preflight/rendezvous": 10, "preflight/results": 8,
    "train_smoke": 6,
}  # fmt: skip
"""Signatures with a `dict[str, Any]`, by room. Only the edges should have some, where JSON comes or goes: a number here
may only shrink. What has keys of its own is a record."""


def test_a_dict_of_anything_is_counted_in_signatures_only() -> None:
    text = "def f(a: dict[str, Any]) -> dict[str, Any]: ...\nasync def g() -> list[dict[str, Any]]: ...\n"
    assert untyped(text) == 2
    assert untyped("b: dict[str, Any] = {}\ndef f(*, c: Mapping[str, int]) -> None:\n    d: dict[str, Any]") == 0


def test_signatures_name_their_records() -> None:
    found: Counter[str] = Counter()
    for path in product_files():
        folder, room, *rest = relative(path).split("/")
        found[f"{folder}/{room}" if rest and folder != "train_smoke" else folder] += untyped(path.read_text())
    more = {room: count for room, count in found.items() if count > UNTYPED.get(room, 0)}
    less = {room: count for room, count in UNTYPED.items() if found[room] < count}
    assert (more, less) == ({}, {}), "more: make it a record; less: write the new number into UNTYPED"


def modules_after(code: str) -> set[str]:
    """Names of what a fresh interpreter has imported after it."""
    told = f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_command_line_and_all_quick_checks_import_no_torch() -> None:
    seen = modules_after(
        "import preflight.cli.main\n"
        "from preflight.planning import registry\n"
        "from preflight.check import Level\n"
        "checks = [registry.load(registry.sources()[id_]) for id_ in registry.BUILT_IN]\n"
        "assert any(check.plan.level is Level.QUICK for check in checks)"
    )
    assert "preflight" in seen
    assert not seen & {"torch", "numpy", "rich", "pynvml", "psutil"}


def test_the_list_imports_nothing_that_checks_are_made_of() -> None:
    """It is to be there at once; `tests/test_check_pages.py` holds that what it tells is what the checks say."""
    seen = modules_after("from preflight.cli.main import _dispatch\n_dispatch(['list'])")
    assert "preflight.cli.catalog" in seen
    assert not seen & {"preflight.check", "preflight.checks", "preflight.engine", "importlib.metadata", "json"}


def test_a_quick_run_imports_only_what_it_may_need() -> None:
    seen = modules_after(
        "from preflight.core.job import Job\n"
        "from preflight.check import Level\n"
        "from preflight.engine import event_loop, loading\n"
        "from preflight.planning import plan, registry\n"
        "request = plan.Request(plan.CheckSelection(Level.QUICK), {}, registry.sources())\n"
        "loading.load(event_loop.EventLoop(9.0), Job('local', 1, 'gloo', ()), request)"
    )
    assert "preflight.checks.node.limits" in seen
    assert not [name for name in seen if name.startswith(("preflight.checks.train", "preflight.checks.comm"))]
