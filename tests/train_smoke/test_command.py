"""`python -m preflight.train_smoke`: the run of one strategy's checks, under another name."""

import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.engine import local_launch
from preflight.errors import UsageError
from preflight.train_smoke.command import translated
from preflight.train_smoke.trainer.names import STRATEGIES
from tests import running

SOME = {
    "pp": {"1f1b": "one forward", "zbv": "stages in a V"},
    "ddp": {"plain": "as it comes", "no_sync": "two"},
    "fsdp2": {"plain": "cut", "offload": "on the CPU"},
}


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ("", "--all --only train.pp,train.ddp,train.fsdp2 --set train.pp.variants=all"),
        ("--strategy ddp", "--all --only train.ddp"),
        ("--strategy pp", "--all --only train.pp --set train.pp.variants=all"),
        ("--strategy pp/1f1b,ddp", "--all --only train.pp,train.ddp --set train.pp.variants=1f1b"),
        ("--strategy ddp,fsdp2", "--all --only train.ddp,train.fsdp2"),
        (
            "--strategy=ddp/plain,fsdp2/offload,ddp",
            "--all --only train.ddp,train.fsdp2 --set train.fsdp2.variants=offload",
        ),
        ("--strategy=fsdp2/offload", "--all --only train.fsdp2 --set train.fsdp2.variants=offload"),
        ("--strategy ddp --level standard --report r", "--only train.ddp --level standard --report r"),
        ("--all --json - --strategy ddp", "--only train.ddp --all --json -"),
        ("--model m:f", "--all --only train.model --model m:f"),
        ("--model m:f --strategy tp", "--all --only train.model --model m:f --set train.model.strategies=tp"),
        (
            "--strategy ddp/no_sync --model m:f --set a.b=1",
            "--all --only train.model --model m:f --set train.model.strategies=ddp/no_sync --set a.b=1",
        ),
    ],
)
def test_its_words_are_those_of_a_run(words: str, run: str) -> None:
    assert translated(words.split(), SOME) == ["run", *run.split()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--strategy dpd", "--strategy dpd: 'dpd' is not a strategy; did you mean ddp"),
        ("--strategy DDP", "--strategy DDP: 'DDP' is not a strategy; did you mean ddp"),
        ("--strategy ddp,", "--strategy ddp,: '' is not a strategy; known are ddp, fsdp2, pp"),
        ("--strategy ddp,zero", "--strategy ddp,zero: 'zero' is not a strategy; known are ddp, fsdp2, pp"),
        ("--strategy ddp/no_snyc", "did you mean ddp/no_sync?"),
        ("--strategy ddp/offlaod --model m:f", "did you mean fsdp/offload"),
        ("--strategy pp/1f1b --model m:f", "'pp/1f1b' is not a strategy; known are ddp, fsdp, fsdp2, pp, tp"),
        ("--strategy fsdp2/", "'fsdp2/' is not a strategy; did you mean fsdp2"),
        ("--strategy", "expected one argument"),
        ("--only comm", "--only: --strategy says what is run here"),
        ("--skip=comm", "--skip: --strategy says what is run here"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        translated(words.split(), SOME)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def module(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "preflight.train_smoke", *arguments]
    return running.run_to_end(command, cwd=cwd)


def test_it_lists_the_variants_and_runs_nothing_of_the_current_folder(tmp_path: Path) -> None:
    for name in ("argparse", "torch", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the current folder')")
    listed = module("--list", cwd=tmp_path)
    assert listed.returncode == 0, listed
    names = [f"{strategy}/{variant}" for strategy, its in STRATEGIES.items() for variant in its]
    assert [line.split()[0] for line in listed.stdout.splitlines()] == names
    wrong = module("--strategy", "ddp/plian", cwd=tmp_path)
    said = "preflight: --strategy ddp/plian: 'ddp/plian' is not a strategy; did you mean ddp/plain?\n"
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", said)


def test_without_a_launcher_its_own_ranks_get_the_words_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[list[str]] = []
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def launch(words: list[str], _: float) -> int:
        launched.append(words)
        return 5

    monkeypatch.setattr(local_launch, "launch", launch)
    with pytest.raises(SystemExit) as ended:
        main.main(["--strategy", "ddp"], lambda words: translated(words, SOME))
    assert ended.value.code == 5
    assert launched == [["run", "--all", "--only", "train.ddp"]]


def test_under_torchrun_it_is_a_run(tmp_path: Path) -> None:
    words = ["--strategy", "ddp", "--level", "standard", "--report", str(tmp_path), "--deadline", "60"]
    torchrun = [word if word != "preflight" else "preflight.train_smoke" for word in running.torchrun(2, *words)]
    run = running.Run(tmp_path)
    run.start(torchrun, running.environment())
    finished = run.finish()
    assert finished.report["command"][:3] == ["run", "--only", "train.ddp"], finished.told()
    assert finished.check("train.ddp")["status"] == "pass" and finished.exit_codes == [0], finished.told()
