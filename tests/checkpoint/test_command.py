"""The command line of `preflight checkpoint`: its words, its exit codes, and what it is not given."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from preflight.cli import main
from preflight.errors import UsageError
from tests import running
from tests.checkpoint import saved
from tests.checkpoint.saved import net

pytestmark = pytest.mark.process


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "preflight", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=90, env=running.environment(), cwd=running.ROOT, check=False
    )


@pytest.mark.more
def test_the_screen_and_the_report(tmp_path: Path) -> None:
    state = net().state_dict()
    state["0.bias"][:] = float("nan")
    torch.save({"model": state}, tmp_path / "model.pt")
    done = run("checkpoint", tmp_path / "model.pt", "--json", tmp_path / "report.json")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"preflight checkpoint: {tmp_path}/model.pt: a file of torch.save, 1 file, ")
    assert lines[1:3] == [
        "  model.0  2 tensors, 144 elements, 576 B (float32)",
        "  model.1  2 tensors, 68 elements, 272 B (float32)",
    ]
    assert "FAIL  file model.pt, parameter model.0.bias  [preflight.checkpoint.not_finite]" in lines
    assert lines[-2].startswith("verdict: FAIL (do not resume from it: 1 finding), exit code 1, ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["checkpoint"]["elements"] == 212
    shown = run("show", tmp_path / "report.json")
    assert shown.stdout.splitlines() == lines[:-1]
    again = run("checkpoint", tmp_path / "model.pt", "--json", tmp_path / "report.json")
    assert again.returncode == 1, "a report of its own may be written over"


def refused(path: object, *more: str) -> str:
    with pytest.raises(UsageError) as error:
        main._dispatch(["checkpoint", str(path), *more])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("lines")
    (tmp_path / "image").write_bytes(b"\x89HDF\r\n")
    expected = "expected DCP (.metadata, *.distcp), a file of torch.save, or safetensors"
    for name, said in {
        "fifo": f"is neither a file nor a folder; {expected}",
        "empty": f"holds no checkpoint (it is empty); {expected}",
        "notes.txt": f"begins with b'lines'; {expected}",
        "image": f"is a file of HDF5 (Keras); {expected}",
        "nothing": "there is no such file or folder",
    }.items():
        assert refused(tmp_path / name) == f"{tmp_path / name}: {said}"
    (tmp_path / "step-5").mkdir()
    torch.save({}, tmp_path / "step-5" / "model.pt")
    assert refused(tmp_path).endswith("holds no checkpoint itself, but step-5 in it does: name one of them")


def test_a_link_to_itself_and_a_file_of_others(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    report = saved.look(tmp_path / "loop")
    (finding,) = report["checks"][0]["findings"]
    assert finding["message"] == "loop: cannot be read (Too many levels of symbolic links)"
    assert report["exit_code"] == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(net().state_dict(), path)
    path.chmod(0)
    child = os.fork()
    if not child:
        os.seteuid(65534)
        os._exit(saved.look(path)["exit_code"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "model.pt")
    said = refused(tmp_path / "model.pt", "--json", str(tmp_path / "model.pt"))
    assert said.endswith("model.pt exists and is not a report of checkpoint: choose another place")
    assert torch.load(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("model", "said"),
    [("exits", "it calls sys.exit(3)"), ("none_at_all", "returns str, expected a model"), ("nets", "did you mean net")],
)
def test_what_is_no_model(model: str, said: str, tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "model.pt")
    sentence = refused(tmp_path / "model.pt", "--model", f"tests.checkpoint.models:{model}")
    assert sentence.startswith(f"--model tests.checkpoint.models:{model}: ")
    assert said in sentence


def test_codes_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    main._dispatch(["describe", "preflight.checkpoint.truncated"])
    assert capsys.readouterr().out.startswith("preflight.checkpoint.truncated\n  A file ends before")
    with pytest.raises(UsageError, match=r"did you mean preflight.checkpoint.truncated"):
        main._dispatch(["describe", "preflight.checkpoint.truncate"])


HOSTILE = {
    "eval": b'cbuiltins\neval\n(S\'open("hacked", "w")\'\ntR.',
    "by attributes": b"cos\nsystem\n(S'touch hacked'\ntR.",
    "stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0ctouch hacked\x85R.",
    "popen": b"csubprocess\nPopen\n(S'touch hacked'\ntR.",
    "import": b"cimportlib\nimport_module\n(S'antigravity'\ntR.",
    "torch.load": b"ctorch\nload\n(S'other.pt'\ntR.",
    "hub": b"ctorch.hub\nload\n(S'someone/repository'\ntR.",
    "dotted": b"\x80\x04\x8c\x02os\x8c\x0bpath.system\x93\x8c\x0ctouch hacked\x85R.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_is_never_executed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("model.pt", "w") as made:
        made.writestr("archive/data.pkl", HOSTILE[name])
    report = saved.look(tmp_path / "model.pt")
    slugs = {finding["code"].rpartition(".")[2] for finding in report["checks"][0]["findings"]}
    assert "executes" in slugs
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_pickle_that_asks_for_memory_gets_none(tmp_path: Path) -> None:
    """An entry of the memo two billion away, and bytes of a length that is not there."""
    for number, data in enumerate((b"\x80\x02]r\xff\xff\xff\x7f.", b"\x80\x05\x8e" + (1 << 50).to_bytes(8, "little"))):
        with zipfile.ZipFile(tmp_path / f"{number}.pt", "w") as made:
            made.writestr("archive/data.pkl", data)
        findings = saved.look(tmp_path / f"{number}.pt")["checks"][0]["findings"]
        assert [finding["code"] for finding in findings] in (
            ["preflight.checkpoint.broken"], ["preflight.checkpoint.no_tensors"],
        )  # fmt: skip


def test_containers_that_hold_themselves_end(tmp_path: Path) -> None:
    ring: dict[str, object] = {"weight": torch.ones(2)}
    ring["again"] = [ring]
    torch.save(ring, tmp_path / "model.pt")
    assert saved.look(tmp_path / "model.pt")["checks"][0]["findings"] == []


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    """No damage of a head ends in anything but a finding or a sentence."""
    torch.save({"weight": torch.ones(3)}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for at in range(0, len(whole), 37):
        (tmp_path / "model.pt").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            report = saved.look(tmp_path / "model.pt")
        except UsageError:
            continue
        codes = {finding["code"] for finding in report["checks"][0]["findings"]}
        assert "preflight.checkpoint.unreadable" not in codes, f"byte {at}: {report['checks'][0]['findings']}"
