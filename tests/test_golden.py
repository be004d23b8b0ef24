import pytest

from tests import golden

SCREENS = dict(golden.screens())


@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_looks_as_it_must(name: str) -> None:
    path = golden.FOLDER / f"{name}.txt"
    assert SCREENS[name] == path.read_text(), f"look at it, and run python -m tests.golden: {path.name}"
    assert all(len(line) <= int(name.rpartition("_")[2]) for line in SCREENS[name].splitlines())


def test_a_sound_run_fits_one_screen() -> None:
    assert all(SCREENS[name].count("\n") <= 24 for name in SCREENS if "sick" not in name)
    assert all(SCREENS[name].count("\n") <= 48 for name in SCREENS)
