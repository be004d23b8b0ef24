"""Random bad inputs by a seed: a path that a command or an option takes leads to something damaged. The command ends,
in words, and calls nothing its own fault."""

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import path_arguments, running
from tests.path_arguments import ALL, SLOW, in_slurm, words_of

CHEAP = [case for case in ALL if case not in SLOW]
OPERAND = {"explain": "LOG", "history": "HISTORY", "checkpoint": "PATH"}
"""Whose operand is no report."""
TOML = '[run]\nskip = ["gpu"]\ndeadline = 30\n[comm.all_reduce]\nmax_mib = 1\n'
VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1e308,
    float("nan"),
    "",
    "\x1b[31m",
    "\ud800",
    "a\nb",
    [],
    {},
    [[]],
    {"": {}},
]
CONTROLS = {chr(code) for code in range(32)} - {"\n", "\t"} | {"\x7f"}
"""What must not reach a terminal from a file."""
Draw = random.Random


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return path_arguments.sound(tmp_path_factory.mktemp("sound"))


def _sound(command: str, option: str, sound: dict[str, str]) -> bytes:
    """What the damage begins from."""
    if option.startswith("-"):
        return TOML.encode()
    kind = OPERAND.get(command, "REPORT")
    return Path(sound[kind], *["report.json"] * (kind == "REPORT")).read_bytes()


def _bytes(data: bytes, draw: Draw) -> bytes:
    return draw.randbytes(draw.randrange(1, 5000))


def _cut(data: bytes, draw: Draw) -> bytes:
    return data[: draw.randrange(len(data))]


def _flipped(data: bytes, draw: Draw) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 20)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _doubled(data: bytes, draw: Draw) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + data + data[at:]


def _valued(data: bytes, draw: Draw) -> bytes:
    """Where it is JSON: another value somewhere. The damage that a parser does not see."""
    try:
        document = json.loads(data)
    except ValueError:
        return _flipped(data, draw)
    for _ in range(draw.randrange(1, 4)):
        _replace_one(document, draw)
    return json.dumps(document).encode()


def _replace_one(document: Any, draw: Draw) -> None:
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.8:
            place = place[key]
            continue
        place[key] = draw.choice(VALUES)
        return


def _nested(data: bytes, draw: Draw) -> bytes:
    opening = draw.choice([b"[", b'{"a":', b"a.", b"(", b"\x1b["])
    return opening * draw.choice([100, 5_000, 200_000])


def _other_text(data: bytes, draw: Draw) -> bytes:
    return data.decode("utf-8", "replace").encode(draw.choice(["utf-16", "utf-8-sig", "utf-32"]))


CONTENTS: tuple[Callable[[bytes, Draw], bytes], ...] = (
    _bytes, _cut, _flipped, _doubled, _valued, _valued, _valued, _nested, _other_text,
)  # fmt: skip


def _is_folder(path: Path) -> None:
    path.mkdir()
    (path / "report.json").mkdir()


def _is_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))


def _is_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


THINGS: tuple[Callable[[Path], None], ...] = (
    _is_folder, _is_socket, _is_sparse, lambda path: os.mkfifo(path), lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to("nowhere"), lambda path: path.touch(),
)  # fmt: skip
NAMES = ["x.py", "x.json", "a b.toml", "-x", "\x1b[31mred", "new\nline", "\udcff", "x" * 250, "%s", "[bold]", "$HOME"]


def _bad_input(data: bytes, folder: Path, draw: Draw) -> Path:
    path = folder / draw.choice(NAMES)
    if draw.random() < 0.3:
        draw.choice(THINGS)(path)
    else:
        path.write_bytes(draw.choice(CONTENTS)(data, draw))
    return path


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 300))])
def test_a_random_bad_input(seed: int, sound: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    command, option = draw.choice(CHEAP)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    path = _bad_input(_sound(command, option, sound), tmp_path / "bad", draw)
    words = [command, *words_of(command, option, str(path), sound)]
    done = subprocess.run(
        [sys.executable, "-m", "preflight", *words], timeout=running.HUNG_S, capture_output=True, check=False,
        env=running.environment(**(in_slurm(tmp_path) if command == "pick" else {})), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    told = (done.stdout + done.stderr).decode("utf-8", "replace")
    what = f"seed {seed}: {words} ended with {done.returncode}:\n{told[-3000:]}"
    assert done.returncode in (0, 1, 2, 3), what
    assert "Traceback" not in told and "fault of preflight itself" not in told and not CONTROLS & set(told), what
    assert done.returncode != 2 or (done.stdout == b"" and done.stderr.strip()), what
