import os
import tomllib
from pathlib import Path

import pytest

from preflight.errors import UsageError
from preflight.planning import config, registry, toml_file
from preflight.planning.config import Config
from preflight.planning.policy import Waiver

WHOLE = """
level = "full"
only = ["comm"]
skip = ["comm.all_reduce"]
strict = true
deadline = 300
backend = "gloo"
report = "out"
baseline = "good"
plugins = ["site.py", "a.module"]

[options.comm.init]
slow_s = 20.5
[options."plugin.site"]
deep = true

[severity]
"env.variables.leftover" = "fail"
env.launch.uneven = "info"

[[waivers]]
code = "node.limits.shm"
node = "gpu-17"
until = 2026-12-31
reason = "ticket 123"
"""


def test_all_of_it() -> None:
    assert config.parse(tomllib.loads(WHOLE), "/etc/preflight") == Config(
        level="full", only=("comm",), skip=("comm.all_reduce",), strict=True, deadline=300.0, backend="gloo",
        report="out", baseline="good", plugins=("/etc/preflight/site.py", "a.module"),
        options={"comm.init.slow_s": "20.5", "plugin.site.deep": "true"},
        severity={"env.variables.leftover": "fail", "env.launch.uneven": "info"},
        waivers=(Waiver("node.limits.shm", "2026-12-31", "ticket 123", "gpu-17"),),
    )  # fmt: skip


def test_an_empty_file_says_nothing() -> None:
    assert config.parse({}) == Config()
    assert (Config().strict, Config().level, Config().only) == (False, None, ())


def test_the_longest_and_the_shortest_deadline() -> None:
    assert [config.parse({"deadline": seconds}).deadline for seconds in (3, 86400)] == [3.0, 86400.0]


WAIVER = '[[waivers]]\ncode = "a.b.c"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("levle = 1", "levle: there is no such key; did you mean level?"),
        ("level = 'deep'", "level: expected quick or standard or full, got 'deep'"),
        ("only = 'comm'", "only: expected a list of strings, got 'comm'"),
        ("strict = 1", "strict: expected true or false, got 1"),
        ("deadline = 1", "deadline: expected a number of seconds from 3 to 86400, got 1"),
        ("deadline = true", "deadline: expected a number of seconds"),
        ("options = 3", "options: expected a table, got 3"),
        ("[options.comm.init]\nslow_s = [1]", "options.comm.init.slow_s: expected a string, a number, true or false"),
        ("[severity]\na.b = 'error'", "severity.a.b: expected fail or warn or info, got 'error'"),
        ("waivers = 1", "waivers: expected [[waivers]] with code, until and reason"),
        (WAIVER, "waivers[1]: until is missing"),
        (f"{WAIVER}until = 2026-12-31\nreason = ''", "waivers[1]: reason is missing"),
        (f"{WAIVER}until = 'soon'\nreason = 'r'", "waivers[1]: until: expected a day like 2026-12-31, got 'soon'"),
        (f"{WAIVER}until = '2026-99-99'\nreason = 'r'", "waivers[1]: until: expected a day like 2026-12-31"),
        (f"{WAIVER}until = 2026-12-31T00:00:00\nreason = 'r'", "waivers[1]: until: expected a day like 2026-12-31"),
        (f"{WAIVER}until = 2026-12-31\nreason = 'r'\nnodes = 'x'", "waivers[1]: nodes: there is no such key; did you"),
        (f"{WAIVER}until = 2026-12-31\nreason = 'r'\nnode = 3", "waivers[1]: node: expected a string, got 3"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        config.parse(tomllib.loads(text))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.process
def test_a_file_that_is_not_there_or_no_toml_is_said_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "preflight.toml"
    with pytest.raises(UsageError, match=r"preflight\.toml: cannot be read \(No such file") as error:
        config.read(str(path))
    assert not error.value.everywhere, "each rank may have its own file system"
    path.write_text("level =\n")
    with pytest.raises(UsageError, match=r"preflight\.toml: is not valid TOML: Invalid value \(at line 1"):
        config.read(str(path))
    for text in (f"deadline = {'9' * 5000}", f"x = {'[' * 5000}"):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"preflight\.toml: "):
            config.read(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        config.read(str(path))


@pytest.mark.process
def test_a_pipe_is_no_settings_file(tmp_path: Path) -> None:
    """A file that hangs is in tests/test_unanswered.py."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"cannot be read \(it is not a regular file\)"):
        config.read(str(tmp_path / "pipe"))


LONG_KEYS = {
    "bare": f"a = 1\n{'a.' * 100_000}b = 1\n",
    "spaced": f"a = 1\n{'a . ' * 10_000}b = 1\n",
    "quoted": "a = 1\n" + '"a".' * 10_000 + "b = 1\n",
    "of a table": f"a = 1\n[{'a.' * 10_000}b]\n",
    "inline": f"a = 1\nc = {{ {'a.' * 10_000}b = 1 }}\n",
}


@pytest.mark.process
@pytest.mark.parametrize("text", LONG_KEYS.values(), ids=LONG_KEYS)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tomllib takes n * n steps for n parts: a minute for 100,000."""
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("it was parsed"))
    (tmp_path / "long.toml").write_text(text)
    with pytest.raises(UsageError, match=r"long\.toml: line 2: a key of more than 64 parts, expected a few"):
        config.read(str(tmp_path / "long.toml"))


@pytest.mark.process
def test_dots_that_are_no_key_are_read(tmp_path: Path) -> None:
    text = f"# {'.' * 1000} {'a.' * 40}\n[options]\n'train.model.model' = \"{'x' * 2000}{'...' * 300}:f\"\n"
    (tmp_path / "sound.toml").write_text(text)
    assert len(config.read(str(tmp_path / "sound.toml")).options["train.model.model"]) == 2902


@pytest.mark.process
def test_what_takes_long_to_parse_for_any_reason_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keys that are almost too long: none of them is, but together they are."""
    monkeypatch.setattr(toml_file, "PARSE_S", 0.5)
    parts = ".".join(["a"] * 60)
    (tmp_path / "many.toml").write_text("".join(f"{parts}.b{number} = 1\n" for number in range(8_000)))
    with pytest.raises(UsageError, match=r"many\.toml: cannot be parsed \(no answer within 0\.\d s\)"):
        config.read(str(tmp_path / "many.toml"))


def test_codes_are_known_ones() -> None:
    sources = registry.sources()
    config.check_codes(["env.launch.late", "comm.init.late_rank"], sources)
    for code in ("comm.init.timed_out", "preflight.run.lost", "plugin.mine.crashed"):
        with pytest.raises(UsageError, match=f"{code}: what was not measured can be neither waived nor made less"):
            config.check_codes([code], sources)
    with pytest.raises(UsageError, match=r"env\.launch\.lat: there is no such code; did you mean env\.launch\.late"):
        config.check_codes(["env.launch.lat"], sources)
    plugins = {**sources, "plugin.mine": registry.Source("plugin.mine", "file", "mine.py")}
    config.check_codes(["plugin.mine.anything"], plugins)


def test_an_old_name_of_a_code_is_still_understood() -> None:
    old = '[severity]\n"env.launch.no_gpu" = "warn"\n' + WAIVER.replace("a.b.c", "env.launch.shared_gpu")
    read = config.parse(tomllib.loads(old + 'until = 2026-12-31\nreason = "r"\n'))
    assert read.severity == {"gpu.inventory.no_gpu": "warn"} and read.waivers[0].code == "gpu.inventory.shared_gpu"
    assert read.renamed == {
        "env.launch.no_gpu": "gpu.inventory.no_gpu",
        "env.launch.shared_gpu": "gpu.inventory.shared_gpu",
    }
