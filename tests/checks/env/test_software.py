"""What differs on one node: on real nodes, and with made-up facts of many."""

import gzip
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from preflight import testing
from preflight.check import Run
from preflight.checks.env import software
from preflight.checks.env.software import Facts, code, installed, libraries, package_files, source_files
from preflight.planning import registry
from tests import made, running
from tests.checks.env.test_code import git
from tests.faults import ELSEWHERE
from tests.nodes import run_nodes
from tests.on_hosts import found_each_as
from tests.running import Finished
from tests.standin import library

ONLY = ("--only", "env.software")
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)


def found_in(finished: Finished, severity: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = finished.check("env.software")["findings"]
    return [finding for finding in found if severity in ("", finding["severity"])]


def facts_in(folder: Path) -> list[tuple[str, Facts]]:
    """(ranks, facts) of each group of ranks with equal facts."""
    with gzip.open(folder / "facts.jsonl.gz", "rt") as lines:
        groups = [json.loads(line) for line in lines]
    return [(group["ranks"], group["facts"]) for group in groups if group["check"] == "env.software"]


def with_path(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), running.environment()["PYTHONPATH"]])}


def torch_in(folder: Path, changed: Mapping[str, Callable[[str], str]]) -> Path:
    """A torch: links to the real one's files, but for those that are changed."""
    _link(Path(torch.__file__).parent, folder / "torch", "", changed)
    return folder


def _link(real: Path, folder: Path, inside: str, files: Mapping[str, Callable[[str], str]]) -> None:
    folder.mkdir(parents=True)
    for entry in real.iterdir():
        name = inside + entry.name
        if name in files:
            (folder / entry.name).write_text(files[name](entry.read_text()))
        elif any(file.startswith(f"{name}/") for file in files):
            _link(entry, folder / entry.name, f"{name}/", files)
        elif entry.name != "__pycache__":
            (folder / entry.name).symlink_to(entry)


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


def answering(version: object) -> Callable[[str], str]:
    return lambda text: f"{text}\n\ndef version():\n    return {version!r}\n"


def with_cudnn(version: int) -> Callable[[str], str]:
    """Its own `version` starts CUDA: who calls it gets none."""
    starts = "def version():\n    raise RuntimeError('CUDA is started')"
    return lambda text: f"{text}\n\nclass _cudnn:\n    getVersionInt = staticmethod(lambda: {version})\n\n{starts}\n"


def test_nodes_that_are_alike_are_sound(tmp_path: Path) -> None:
    finished = run_nodes(tmp_path, 3, *ONLY)
    assert found_in(finished) == [] and finished.exit_codes == [0, 0, 0], finished.told()
    ((ranks, facts),) = facts_in(tmp_path)
    assert ranks == "0-2"  # equal facts are sent once
    versions = facts["versions"]
    assert (versions["torch"], versions["python"]) == (torch.__version__, platform.python_version())
    assert versions["kernel"] == f"{platform.release()} {platform.machine()}"
    assert facts["paths"]["torch"] == os.path.dirname(torch.__file__)
    assert f"torch {torch.__version__}" in facts["packages"]
    assert any(package.startswith("psutil ") for package in facts["packages"])


def test_without_torch_imported_the_versions_are_the_same(tmp_path: Path) -> None:
    """`--level quick` alone reads them from torch's files."""
    run = running.Run(tmp_path)
    run.start(running.preflight("--level", "quick", "--report", str(tmp_path)), running.environment())
    assert run.finish().report["job"]["launcher"] == "local"
    ((_, facts),) = facts_in(tmp_path)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["cuda"] == (torch.version.cuda or "none")
    assert facts["paths"]["torch"] == os.path.dirname(torch.__file__)


def with_python(folder: Path, version: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.version = '{version} (main)' + sys.version[6:]\n")
    return with_path(folder)


def test_other_pythons_and_other_torches(tmp_path: Path) -> None:
    """A node each. Of another torch its folder and its own NCCL are not told beside it; another patch of Python and
    the same torch at another path are told, and no more."""
    patch = ".".join([*platform.python_version_tuple()[:2], "99"])
    torches: dict[int, dict[str, Callable[[str], str]]] = {
        3: {"version.py": replaced(torch.__version__, "2.0.0"), "cuda/nccl.py": answering((2, 14, 3))},
        4: {"version.py": replaced(f"cuda: Optional[str] = {torch.version.cuda!r}", "cuda: Optional[str] = '11.8'")},
        5: {},
    }
    own = {node: with_path(torch_in(tmp_path / str(node), changed)) for node, changed in torches.items()}
    own |= {1: with_python(tmp_path / "1", "3.9.1"), 2: with_python(tmp_path / "2", patch)}
    finished = run_nodes(tmp_path, 7, *ONLY, own=own)
    found_each_as(finished, "software_python", "software_torch", "software_cuda")
    infos = {finding["where"]["node"]: finding for finding in found_in(finished, "info")}
    assert sorted(infos) == ["node-2", "node-5"] and ELSEWHERE["software_paths"].is_told_by([infos["node-5"]])
    assert infos["node-2"]["code"] == "env.software.python", finished.told()
    text = f"Python is {patch}, expected {platform.python_version()} as on 5 of 6 nodes"
    assert text in infos["node-2"]["message"], finished.told()


@needs_mounts
@pytest.mark.skipif(not shutil.which("setarch"), reason="setarch makes the kernel call itself 2.6")
def test_another_driver_kernel_and_packages_and_other_libraries(tmp_path: Path) -> None:
    def with_driver(version: str) -> str:
        return f"mount -t tmpfs none /sys/module\nmkdir /sys/module/nvidia\necho {version} >/sys/module/nvidia/version"

    nccl, cudnn = "cuda/nccl.py", "backends/cudnn/__init__.py"
    first = torch_in(tmp_path / "usual", {nccl: answering((2, 21, 5)), cudnn: with_cudnn(90100)})
    second = torch_in(tmp_path / "odd", {nccl: answering((2, 20, 5)), cudnn: with_cudnn(8907)})
    for name in ("psutil-0.0.1.dist-info", "left_over-1.2-py3.11.egg-info", "pip-1.0.dist-info"):
        (second / name).mkdir()
    usual, odd = with_driver("550.54.15"), with_driver("535.54.03")
    before, wrap = {0: usual, 1: odd, 2: usual}, {1: ["setarch", platform.machine(), "--uname-2.6"]}
    own, environ = {1: with_path(second)}, with_path(first)
    finished = run_nodes(tmp_path, 3, *ONLY, before=before, wrap=wrap, own=own, environ=environ)
    names = ("driver", "kernel", "packages", "nccl", "cudnn")
    found_each_as(finished, *(f"software_{name}" for name in names))


@pytest.mark.skipif(not library.can_build, reason="the stand-in needs gcc")
def test_the_nccl_that_is_loaded_counts_and_not_the_one_that_torch_was_built_with(tmp_path: Path) -> None:
    environ = with_path(torch_in(tmp_path / "same", {"cuda/nccl.py": answering((2, 21, 5))}))
    environ |= {"LD_PRELOAD": str(library.nccl(tmp_path))}
    own = {1: {"STANDIN_NCCL_VERSION": "22809"}}
    finished = run_nodes(tmp_path, 3, *ONLY, own=own, environ=environ, wrap={rank: ["env"] for rank in range(3)})
    found_each_as(finished, "software_preloaded")


# The code


def clones_of(folder: Path, count: int, *, init: Sequence[str] = ("init", "-q"), more: int = 0) -> dict[int, Path]:
    """A repository for each node, with the same commit. `more`: so many further files."""
    first = folder / "0"
    first.mkdir(parents=True)
    git(first, *init)
    for name in ("train.py", "config.yaml", "README.md"):
        (first / name).write_text("import own\n1\n" if name == "train.py" else "1\n")
    (first / "data").mkdir()
    for number in range(more):
        (first / "data" / f"{number}.json").touch()
    git(first, "add", ".")
    git(first, "commit", "-qm", "first")
    for number in range(1, count):
        git(folder, "clone", "-q", "0", str(number))
    return {number: folder / str(number) for number in range(count)}


@needs_mounts
def test_clones_that_are_unlike_and_clones_that_are_not(tmp_path: Path) -> None:
    """A node each. Not told is of the fifth, whose clone was touched, and has another README, an empty commit and what
    training left behind, and of the sixth, which is outside of the repository, as where ssh has started it from the
    home folder."""
    clones = clones_of(tmp_path / "clones", 10)
    for number in (1, 4):
        (clones[number] / "train.py").write_text("2\n")
    git(clones[1], "commit", "-qam", "second")
    (clones[2] / "train.py").write_text("3\n")
    (clones[3] / "config.yaml").write_text("2\n")
    os.utime(clones[5] / "train.py", (1, 1))
    (clones[5] / "README.md").write_text("2\n")
    (clones[5] / "metrics.json").write_text("{}")
    git(clones[5], "commit", "-qam", "readme")
    elsewhere, code = {4: clones[4], 6: tmp_path}, tmp_path / "code"
    code.mkdir()
    before = {number: f"mount --bind {clone} {code}" for number, clone in clones.items() if number not in elsewhere}
    finished = run_nodes(tmp_path, 10, *ONLY, before=before, places={**dict.fromkeys(before, code), **elsewhere})
    settings = next(finding for finding in finished.findings() if finding["where"] == {"node": "node-3"})
    assert settings["severity"] == "warn" and settings["message"].endswith("; different: config.yaml"), finished.told()
    found_each_as(finished, "software_commit", "software_edits", "software_folder", beside=[settings])
    message = next(finding["message"] for finding in finished.findings() if finding["where"] == {"node": "node-1"})
    for number, word in ((1, "is"), (0, "expected")):
        assert f"{word} commit {git(clones[number], 'rev-parse', 'HEAD')[:10]}, digest" in message


@needs_mounts
def test_edits_are_seen_in_repositories_of_all_kinds(tmp_path: Path) -> None:
    """A node each: three sound ones, of which two have an index of another kind, and those that an edit is on."""
    clones = clones_of(tmp_path / "clones", 8)
    for folder in clones.values():
        (folder / "own.py").write_text("1\n")
    git(clones[1], "update-index", "--index-version", "4")
    git(clones[2], "update-index", "--split-index")
    git(clones[3], "update-index", "--index-version", "4")
    git(clones[4], "update-index", "--split-index")
    for number in (3, 4):
        (clones[number] / "train.py").write_text("import own\n3\n")
    (clones[5] / "own.py").write_text("2\n")
    index = clones[6] / ".git" / "index"
    index.write_bytes(index.read_bytes().replace(b"DIRC\0\0\0\2", b"DIRC\0\0\0\11"))
    shared = tmp_path / "code"
    shared.mkdir()
    before = {number: f"mount --bind {clone} {shared}" for number, clone in clones.items()}
    finished = run_nodes(tmp_path, 8, *ONLY, before=before, places=dict.fromkeys(clones, shared))
    (unknown,) = found_in(finished, "info")
    assert ELSEWHERE["software_no_index"].is_told_by([unknown]) and unknown["not_measured"] is True
    assert ELSEWHERE["software_no_index"].says in unknown["message"]
    found_each_as(finished, *(f"software_edits_{name}" for name in ("version_4", "split", "untracked")))
    assert "files not compared" in finished.check("env.software")["summary"]


@needs_mounts
@pytest.mark.parametrize("kind", ["many", "sha256"])
def test_an_edit_is_seen_in_clones_of_this_kind(kind: str, tmp_path: Path) -> None:
    init = ("init", "-q", *(["--object-format=sha256"] if kind == "sha256" else []))
    clones = clones_of(tmp_path / "clones", 3, init=init, more=20_001 if kind == "many" else 0)
    (clones[1] / "train.py").write_text("import own\n4\n")
    shared = tmp_path / "code"
    shared.mkdir()
    before = {number: f"mount --bind {clone} {shared}" for number, clone in clones.items()}
    finished = run_nodes(tmp_path, 3, *ONLY, before=before, places=dict.fromkeys(clones, shared))
    found_each_as(finished, f"software_edits_{kind}")


@needs_mounts
def test_a_patched_torch_and_another_library_of_the_same_version(tmp_path: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    functional, gomp = torch_folder / "nn" / "functional.py", next((torch_folder / "lib").glob("libgomp*"))
    (tmp_path / "functional.py").write_text(functional.read_text() + "\n# patched\n")
    (tmp_path / "libgomp.so.1").write_bytes(gomp.read_bytes() + b"\0")
    before = {1: f"mount --bind {tmp_path / 'functional.py'} {functional}"}
    wrap = {2: ["env", f"LD_PRELOAD={tmp_path / 'libgomp.so.1'}"]}
    finished = run_nodes(tmp_path, 4, *ONLY, before=before, wrap=wrap)
    found_each_as(finished, "software_patched", "software_library")
    (library,) = (finding for finding in finished.findings() if finding["code"] == "env.software.library")
    assert library["where"]["file"] == str(tmp_path / "libgomp.so.1")
    (tmp_path / "quick").mkdir()
    quick = run_nodes(tmp_path / "quick", 2, *ONLY, "--level", "quick", before={1: before[1]})
    assert quick.findings() == [], quick.told()


def test_folders_of_the_code_that_are_unlike(tmp_path: Path) -> None:
    folders = {number: tmp_path / "folders" / str(number) for number in range(5)}
    for folder in folders.values():
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "net.py").write_text("1\n")
    (folders[1] / "src" / "net.py").write_text("2\n")
    shutil.rmtree(folders[2] / "src")
    finished = run_nodes(tmp_path, 5, *ONLY, "--set", "env.software.code=src", places=folders)
    found_each_as(finished, "software_code", "software_no_code")


def test_a_folder_without_code_is_a_warning_on_each_node(tmp_path: Path) -> None:
    empty = node(code={**code.of_folder(str(tmp_path)), "folder": "src"})
    found = judged(empty, empty, empty, code="src")
    assert [(finding["severity"], finding["code"]) for finding in found] == [("warn", "env.software.no_sources")] * 3
    assert found[0]["message"] == "src cannot be compared: it holds no source files, expected its source files"


# Made-up facts


def known(
    commit: str = "a", *files: str, folder: str = "/job", unknown: str = "", edited: bool = False
) -> code.SourceCode:
    return {
        "folder": folder, "commit": commit * 40 or None, "digest": "-".join(files) or None, "files": list(files),
        "edited": ["train.py"] if edited else [], "unknown": unknown,
    }  # fmt: skip


VERSIONS: dict[str, str | None] = {
    "python": "3.11.7", "torch": "2.6.0", "cuda": "12.4", "nccl": "2.21.5", "cudnn": "90100", "driver": "550.54",
    "kernel": "5.15", "image": "Debian 12",
}  # fmt: skip
PACKAGES = ["numpy 2.1.0", "pip 24.0", "torch 2.6.0"]


def files(digest: str, *edited: str, unread: str = "") -> package_files.PackageFiles:
    return {"digest": digest, "edited": list(edited), "unread": unread}


def loaded(unread: str = "", sample: str = "", **digests: str) -> dict[str, libraries.Library]:
    return {
        f"{name}.so": {
            "path": f"/lib/{name}.so", "digest": digest, "sample": f"of {digest}" if digest else sample,
            "unread": unread if not digest else "",
        }
        for name, digest in digests.items()
    }  # fmt: skip


def node(*, packages: Sequence[str] = PACKAGES, code: code.SourceCode | None = None, path: str = "/env/torch",
         torch_files: package_files.PackageFiles | None = None, libraries: dict[str, libraries.Library] | None = None,
         **versions: str | None) -> Facts:  # fmt: skip
    return {
        "versions": {**VERSIONS, **versions}, "packages": list(packages), "paths": {"torch": path},
        "code": code or known("a", "1 train.py", "1 config.yaml"),
        "package_files": {"torch": torch_files or files("1")},
        "libraries": loaded(libnccl="1", libgomp="1") if libraries is None else libraries,
    }  # fmt: skip


def judged(*facts: Facts, **settings: str) -> list[dict[str, Any]]:
    nodes = {f"node-{rank}": [rank] for rank in range(len(facts))}
    return testing.judge(software, dict(enumerate(facts)), nodes=nodes, settings=settings)


@dataclass
class Odd:
    finds: str
    odd: Facts
    says: str
    usual: Facts = field(default_factory=node)


EDITED = known("a", "2 train.py", "1 config.yaml", edited=True)
ODD = [
    Odd("warn driver", node(driver="535.1"), "the GPU driver is 535.1, expected 550.54 as on 3 of 4 nodes"),
    Odd("warn kernel", node(kernel="4.18"), "the kernel is 4.18, expected 5.15 as on 3 of 4 nodes"),
    Odd("warn image", node(image="Rocky 9"), "the system is Rocky 9, expected Debian 12 as on 3 of 4 nodes"),
    Odd("warn python", node(python="3.10.2", packages=[], path="/x"),
        "Python is 3.10, expected 3.11 as on 3 of 4 nodes"),
    Odd("info python", node(python="3.11.2"), "Python is 3.11.2, expected 3.11.7 as on 3 of 4 nodes"),
    Odd("fail torch", node(torch="2.5.1", cuda="12.1", nccl="2.20.5", cudnn="8", packages=[], path="/x"),
        "torch is 2.5.1, expected 2.6.0 as on 3 of 4 nodes"),
    Odd("fail cuda", node(cuda="none", nccl="2.19.3", cudnn="8", packages=[], path="/x"),
        "torch's CUDA is none, expected 12.4 as on 3 of 4 nodes"),
    Odd("fail nccl", node(nccl="2.20.5"), "NCCL is 2.20.5, expected 2.21.5 as on 3 of 4 nodes"),
    Odd("warn cudnn", node(cudnn="8907"), "cuDNN is 8907, expected 90100 as on 3 of 4 nodes"),
    Odd("info paths", node(path="/x/torch"), "torch's folder is /x/torch, expected /env/torch as on 3 of 4 nodes"),
    Odd("warn packages", node(packages=["numpy 1.26.4", "wandb 1.0", "pip 9"]),
        "2 packages different from most nodes: numpy is 1.26.4, expected 2.1.0; wandb is 1.0, expected none"),
    Odd("warn packages", node(packages=[]), "1 package different from most nodes: numpy is missing, expected 2.1.0"),
    Odd("fail sources", node(code=known("b", "2 train.py", "1 config.yaml")),
        "the code in /job is commit bbbbbbbbbb, digest 2 train.py-1 config.yaml, expected commit aaaaaaaaaa, "
        "digest 1 train.py-1 config.yaml as on 3 of 4 nodes; different: train.py"),
    Odd("fail sources", node(code=EDITED), "the code in /job is commit aaaaaaaaaa with edits, digest"),
    Odd("fail sources", node(code=known("a", "1 train.py", "1 config.yaml", "1 new.py")), "; different: new.py"),
    Odd("warn sources", node(code=known("a", "1 train.py", "2 config.yaml")), "; different: config.yaml"),
    Odd("warn sources", node(code=known("a", "1 train.py", "1 config.yaml", "1 setup.sh")), "; different: setup.sh"),
    Odd("warn sources", node(code=known("b", "2 train.py", folder="/home")), "the code in /home is commit bbbbbbbbbb"),
    Odd("fail patched", node(torch_files=files("2", "torch/nn/functional.py")),
        "torch 2.6.0: torch/nn/functional.py is not as pip installed it, expected the files that are on 3 of 4 nodes"),
    Odd("fail patched", node(torch_files=files("2")), "torch 2.6.0: its Python files differ, expected the files that"),
    Odd("fail patched", node(), "torch 2.6.0: torch/x.py lacks the edits of most nodes, expected the files that are on",
        usual=node(torch_files=files("2", "torch/x.py"))),
    Odd("fail library", node(libraries=loaded(libnccl="2", libgomp="1")),
        "/lib/libnccl.so has other bytes than on most of 4 nodes, expected the same build of it"),
    Odd("warn library", node(libraries=loaded(libnccl="1", libgomp="2")), "/lib/libgomp.so has other bytes than on"),
    Odd("fail library", node(libraries=loaded(libnccl="2", libgomp="2")),
        "/lib/libnccl.so (and libgomp.so) has other bytes than on"),
]  # fmt: skip


@pytest.mark.parametrize("fault", ODD, ids=lambda fault: f"{fault.finds}: {fault.says[:30]}")
def test_the_odd_node_is_named(fault: Odd) -> None:
    (found,) = judged(fault.usual, fault.usual, fault.odd, fault.usual)
    severity, slug = fault.finds.split()
    assert (found["severity"], found["code"]) == (severity, f"env.software.{slug}")
    assert found["where"]["node"] == "node-2" and found["where"].keys() <= {"node", "file"}
    assert fault.says in found["message"] and "{" not in found["fix"]


@pytest.mark.parametrize("fault", ODD, ids=lambda fault: f"{fault.finds}: {fault.says[:30]}")
def test_of_one_against_one_nobody_is_named(fault: Odd) -> None:
    """Where a path alone differs, nothing is said at all. A node is named whose files alone are not as installed."""
    found = judged(fault.usual, fault.odd)
    severity, slug = fault.finds.split()
    told = [(finding["severity"], finding["code"], finding["where"].get("node")) for finding in found]
    edits = [
        slug == "patched" and bool(facts["package_files"]["torch"]["edited"]) for facts in (fault.usual, fault.odd)
    ]
    if slug == "paths":
        assert told == []
    elif any(edits):
        assert told == [(severity, "env.software.patched", f"node-{edits.index(True)}")]
    else:
        assert (severity, f"env.software.{slug}", None) in told and {node for *_, node in told} == {None}
        assert all("node-0" in finding["message"] and "node-1" in finding["message"] for finding in found)


BOTH = [*PACKAGES, "nvidia-nccl-cu12 2.29.3", "nvidia-nccl-cu13 2.28.9"]


@pytest.mark.parametrize(
    ("packages", "cuda", "version", "found"),
    [
        (BOTH, "13.0", "2.29.3", "warn"), (BOTH, "13.0", None, "warn"), (BOTH, "12.8", "2.29.3", "info"),
        (BOTH, "none", None, ""), (BOTH, None, None, ""), (BOTH[:4], "12.8", "2.29.3", ""),
        ([*PACKAGES, "nvidia-nccl-cu12 2.28.9", "nvidia-nccl-cu13 2.28.9"], "13.0", "2.28.9", ""),
    ],
    ids=["the other one won", "not known which", "the right one won", "for CPUs", "no torch", "one", "equal"],
)  # fmt: skip
def test_of_two_wheels_of_nccl_the_last_one_wins(
    packages: list[str], cuda: str | None, version: str | None, found: str
) -> None:
    found_ = judged(node(packages=packages, cuda=cuda, nccl=version))
    assert [finding["severity"] for finding in found_] == ([found] if found else [])
    if found == "warn":
        assert "pip uninstall nvidia-nccl-cu12; " in found_[0]["fix"] and "nvidia-nccl-cu13==2.28.9" in found_[0]["fix"]
        assert found_[0]["message"].endswith("expected nvidia-nccl-cu13 alone")


def test_every_code_has_a_fault() -> None:
    found = {fault.finds.split()[1] for fault in ODD} | {"no_sources", "two_nccls"}
    assert found == set(registry.load(registry.sources()["env.software"]).codes)


@pytest.mark.parametrize(
    "facts",
    [
        [node()],
        [node()] * 1024,
        [node(), node(driver=None, nccl=None, cudnn=None), node()],
        [node(code=known("")), node(code=known(""))],
        [node(path="/a"), node(path="/b"), node(path="/c")],
        [node(), node(packages=[*PACKAGES[:1], "pip 9.9"]), node()],
        [
            node(code=known("a", "1 x.py")),
            node(code=known("b", "1 x.py")),
            node(code=known("a", "1 x.py", folder="/y")),
        ],
        [node(code=known("a", unknown="too many"))],
        [node(torch_files=files("2", "torch/x.py"))] * 3,
        [node(libraries=loaded(libnccl="1")), node(libraries=loaded(libnccl="1", libcudart="7"))],
        [{key: value for key, value in node().items() if key not in ("libraries", "package_files")}] * 2,
    ],
    ids=["1", "1024", "unknown", "no code", "paths", "pip", "commit only", "alone", "patched alike", "more",
         "an older report"],
)  # fmt: skip
def test_what_is_alike_or_unknown_is_sound(facts: list[Facts]) -> None:
    assert judged(*facts) == []


def test_another_torch_fails_also_beside_another_python() -> None:
    """A warning hides no failure."""
    for facts in ([node(), node(python="3.10.2", torch="2.1"), node()], [node(), node(python="3.10.2", torch="2.1")]):
        assert [finding["code"].rpartition(".")[2] for finding in judged(*facts)] == ["torch", "python"]


def test_what_is_unknown_on_all_nodes_hides_nothing() -> None:
    (found,) = judged(*[node(torch=None, cuda=None, packages=packages) for packages in (PACKAGES, [], PACKAGES)])
    assert found["code"] == "env.software.packages"


def test_sides_are_told_with_one_node_of_each() -> None:
    (found,) = judged(node(torch="2.5"), node(), node(), node(torch="2.5"))
    assert found["where"] == {}
    assert found["message"] == (
        "torch is 2.5 on node-0 and 1 other; 2.6.0 on node-1 and 1 other, expected the same on all nodes"
    )


def test_many_odd_packages_are_counted() -> None:
    odd = node(packages=[*PACKAGES, *(f"p{number:02} 1" for number in range(60))])
    (found,) = judged(node(), odd, node())
    assert found["message"].startswith("60 packages different from most nodes: p00 is 1, expected none; ")
    assert found["message"].endswith("; p03 is 1, expected none; and 56 more")
    assert len(found["evidence"]["packages"]) == 50


def test_packages_that_have_no_majority_are_told_beside_those_that_have_one() -> None:
    rest = ["torch 2.6.0"]
    facts = [node(packages=[f"a {rank // 2}", f"b {rank == 3}", *rest]) for rank in range(4)]
    odd, split = judged(*facts)
    assert odd["where"] == {"node": "node-3"} and "b is True, expected False" in odd["message"]
    assert split["where"] == {} and "a is 0 on node-0 and 1 other; 1 on node-2 and 1 other" in split["message"]


@pytest.mark.parametrize(
    ("unknown", "severity"), [(source_files.NO_FOLDER, "fail"), ("it holds no source files", "warn")]
)
def test_a_folder_that_was_named_and_cannot_be_read(unknown: str, severity: str) -> None:
    facts = [node(code=known("", "1 x.py")), node(code=known("", unknown=unknown)), node(code=known("", "1 x.py"))]
    (found,) = judged(*facts, code="/job")
    assert (found["severity"], found["where"]) == (severity, {"node": "node-1"})
    assert found["message"] == f"/job cannot be compared: {unknown}, expected its source files"


TOO_NEW = "git's index has version 9; 2 to 4 are known"


@pytest.mark.parametrize(
    ("codes", "codes_found", "says"),
    [
        ([known("a", "1 x.py"), known("a", unknown=TOO_NEW), known("a", "1 x.py")], ["info no_sources"],
         f"the files of the code in /job on node-1 could not be compared: {TOO_NEW}; expected to compare"),
        ([known("a", unknown=TOO_NEW)] * 3, ["info no_sources"],
         f"the files of the code in /job on all nodes could not be compared: {TOO_NEW}"),
        ([known("a", "1 x.py"), known(""), known("a", "1 x.py"), known("")], ["info no_sources"],
         "the files of the code in /job on node-1 and node-3 could not be compared: it is in no git repository"),
        ([known("a", "1 x.py"), known("a", "1 x.py"), known("b", unknown=TOO_NEW)], ["fail sources", "info no_sources"],
         "the code in /job is commit bbbbbbbbbb, expected commit aaaaaaaaaa"),
        ([known("a", "1 x.py"), known("a", "1 x.py"), known("a", "2 x.py"), known("a", unknown=TOO_NEW)],
         ["fail sources", "info no_sources"], "digest 2 x.py, expected commit aaaaaaaaaa, digest 1 x.py"),
    ],
    ids=["one", "all", "elsewhere", "another commit", "an edit beside it"],
)  # fmt: skip
def test_code_that_could_not_be_compared_is_no_pass(
    codes: list[code.SourceCode], codes_found: list[str], says: str
) -> None:
    found = judged(*(node(code=each) for each in codes))
    assert [f"{finding['severity']} {finding['code'].rpartition('.')[2]}" for finding in found] == codes_found
    assert says in found[0]["message"] and [bool(finding.get("not_measured")) for finding in found][-1]
    facts = {rank: node(code=each) for rank, each in enumerate(codes)}
    assert software.summarize(facts, Run(made.job(*[1] * len(codes)), tuple(facts), {})).endswith("files not compared")


def test_bytes_that_could_not_be_read_are_no_pass() -> None:
    late = "the files could not be read within 12 s"
    slow = node(torch_files=files("", unread=late), libraries=loaded(late, libnccl="1", libgomp="", libtorch_cuda=""))
    found = judged(node(), slow, node(), slow)
    assert [finding["code"].rpartition(".")[2] for finding in found] == ["library", "patched"]
    assert all(finding["not_measured"] and finding["message"].endswith(late) for finding in found)
    assert "the bytes of libgomp.so and libtorch_cuda.so on node-1 and node-3" in found[0]["message"]


@pytest.mark.parametrize(("sample", "says"), [("of 1", "info"), ("of 2", "fail, info")])
def test_where_there_is_no_time_for_all_bytes_samples_are_compared(sample: str, says: str) -> None:
    """A sound node on a cold disk passes, also with --strict; another build is found all the same."""
    late = "the files could not be read within 12 s"
    slow = node(libraries=loaded(late, sample, libnccl="1", libtorch_cuda=""))
    usual = node(libraries=loaded(libnccl="1", libtorch_cuda="1"))
    found = judged(usual, slow, usual)
    assert ", ".join(finding["severity"] for finding in found) == says
    assert not any(finding.get("not_measured") for finding in found)
    text = (
        "the bytes of libtorch_cuda.so on node-1 were compared by size and 8 samples of 256 KiB, expected all of them"
    )
    assert text in found[-1]["message"] and found[-1]["message"].endswith(late)


@pytest.mark.parametrize(
    "odd",
    [
        {"torch": "2.5.1", "torch_files": files("2"), "libraries": loaded(libtorch="2")},
        {"nccl": "2.20.5", "torch_files": files("2"), "libraries": loaded(libnccl="2")},
        {"packages": [*PACKAGES, "nvidia-cublas-cu12 12.4"], "libraries": loaded(libnccl="1", libcublas="2")},
        {"kernel": "5.15 aarch64", "libraries": loaded(libnccl="2", libtorch="2")},
    ],
    ids=["torch", "NCCL", "a package of its own", "another machine"],
)
def test_what_another_version_explains_is_not_told_beside_it(odd: dict[str, Any]) -> None:
    usual = node(libraries=loaded(libnccl="1", libcublas="1", libtorch="1"))
    assert len(judged(usual, node(**odd), usual)) == 1


def test_the_summary_is_the_record_of_the_run() -> None:
    run = Run(made.job(1), (0,), {})
    text = "Python 3.11.7, torch 2.6.0, NCCL 2.21.5, driver 550.54, 3 packages, code commit aaaaaaaaaa with edits"
    assert software.summarize({0: node(code=EDITED)}, run).startswith(text)
    bare = node(nccl=None, driver=None, code=known(""))
    assert software.summarize({0: bare}, run) == "Python 3.11.7, torch 2.6.0, 3 packages"


# What is installed


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n", "550.54.15"),
        ("", None),
    ],
)
def test_the_driver_is_read_from_proc_where_sys_lacks_it(
    text: str, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "read", lambda path: text if path == "/proc/driver/nvidia/version" else "")
    assert installed.versions({})[0]["driver"] == version


def test_podman_tells_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/run/.containerenv": 'engine="podman-4"\nimage="site/train:1"\n', "/etc/os-release": "PRETTY_NAME=Arch\n"}
    monkeypatch.setattr(installed, "read", lambda path: files.get(path, ""))
    assert str(installed.versions({})[0]["image"]).startswith("Arch with ")
    assert str(installed.versions({})[0]["image"]).endswith(" in site/train:1")


def test_packages_are_named_as_pip_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = tmp_path / "later"
    names = ("Jinja2-3.1.6.dist-info", "nvidia_nccl_cu12-2.21.5.dist-info", "old.thing-1.0-py3.11.egg-info",
             "plain-2.0.egg-info", "in_work.egg-info", "torch")  # fmt: skip
    for name in (*names, "later/jinja2-1.0.dist-info", "later/more-1!0.1+cu124.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "nowhere"), str(tmp_path), str(later)])
    listed = ["jinja2 3.1.6", "more 1!0.1+cu124", "nvidia-nccl-cu12 2.21.5", "old-thing 1.0", "plain 2.0"]
    assert installed.package_names() == listed
