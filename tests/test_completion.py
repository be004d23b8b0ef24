"""`preflight completion`: asked of the real shells."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from preflight.cli import completion, main
from preflight.errors import UsageError

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_shtab_preflight preflight "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
ASKED = [
    (["preflight", "di"], {"diff"}),
    (["preflight", "run", "--hist"], {"--history"}),
    (["preflight", "--lev"], {"--level"}),
    (["preflight", "run", "--level", "q"], {"quick"}),
    (["preflight", "run", "--only", "comm.all_r"], {"comm.all_reduce"}),
    (["preflight", "describe", "comm.all_reduce.wr"], {"comm.all_reduce.wrong_result"}),
    (["preflight", "run", "--set", "gpu.nvlink.tr"], {"gpu.nvlink.training_s="}),
    (["preflight", "completion", "z"], {"zsh"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (made / shell).write_text(completion.script(shell))
    return made


def _ask(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("words", "offers"), ASKED)
def test_bash_offers_commands_options_checks_and_codes(folder: Path, words: Sequence[str], offers: set[str]) -> None:
    assert set(_ask("bash", "-c", BASH, "bash", str(folder / "bash"), *words)) == offers


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("words", "offers"), ASKED)
def test_fish_offers_them_too(folder: Path, words: Sequence[str], offers: set[str]) -> None:
    line = " ".join(words)
    told = _ask("fish", "--no-config", "-c", f"source {folder}/fish; complete -C '{line}' | cut -f1")
    assert offers <= set(told)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_takes_the_script(folder: Path) -> None:
    shutil.copy(folder / "zsh", folder / "_preflight")
    start = f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; echo $_comps[preflight]"
    told = _ask("zsh", "-f", "-c", start)
    assert told == ["_preflight"]
    script = (folder / "zsh").read_text()
    assert "comm.all_reduce.wrong_result" in script and "--history" in script


def test_without_shtab_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(UsageError, match=r"-m pip install shtab$"):
        main._dispatch(["completion", "bash"])
