import functools

import pytest

from tests import golden

NAMES = sorted(path.stem for path in golden.FOLDER.glob("*.txt"))


@functools.cache
def screens() -> dict[str, str]:
    return dict(golden.screens())


@pytest.mark.parametrize("name", NAMES)
def test_the_screen_looks_as_it_must(name: str) -> None:
    path = golden.FOLDER / f"{name}.txt"
    assert screens()[name] == path.read_text(), f"look at it, and run python -m tests.golden: {path.name}"
    assert all(len(line) <= int(name.rpartition("_")[2]) for line in screens()[name].splitlines())


def test_every_screen_is_kept() -> None:
    assert sorted(screens()) == NAMES


def test_a_sound_run_fits_one_screen() -> None:
    assert all(screens()[name].count("\n") <= 24 for name in NAMES if "sick" not in name)
    assert all(screens()[name].count("\n") <= 48 for name in NAMES)
