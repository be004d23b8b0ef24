import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from preflight.checkpoint import codes as of_checkpoint
from preflight.cli import main, running
from preflight.core import renamed_codes
from preflight.core.finding import OWN_SLUGS, RUN, RUN_SLUGS, Reported
from preflight.core.renamed_codes import RENAMED, RENAMED_UNDER_EVERY_CHECK
from preflight.planning import registry
from preflight.planning.policy import Policy, Waiver
from preflight.rendezvous import codes as of_rendezvous

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def all_codes() -> set[str]:
    checks = [registry.load(source) for source in registry.sources().values() if source.kind == "builtin"]
    by_command = {of_rendezvous.FAMILY: of_rendezvous.by_slug(), of_checkpoint.FAMILY: of_checkpoint.by_slug()}
    families: dict[str, Iterable[str]] = {**{check.id: check.codes for check in checks}, **by_command, RUN: RUN_SLUGS}
    return {f"{family}.{slug}" for family, slugs in families.items() for slug in slugs}


def test_no_old_name_is_a_code_and_each_new_name_is() -> None:
    assert set(RENAMED.values()) <= all_codes() and not set(RENAMED) & all_codes()
    assert set(RENAMED_UNDER_EVERY_CHECK.values()) <= set(OWN_SLUGS)
    assert not set(RENAMED_UNDER_EVERY_CHECK) & set(OWN_SLUGS)


def test_the_changelog_lists_them_all() -> None:
    listed = re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", CHANGELOG.read_text(), re.MULTILINE)
    under_every_check = {f"<check>.{old}": f"<check>.{new}" for old, new in RENAMED_UNDER_EVERY_CHECK.items()}
    assert dict(listed) == RENAMED | under_every_check and len(listed) == len(dict(listed))


@pytest.mark.parametrize(
    ("code", "today"),
    [
        ("env.variables.unlike", "env.variables.differs"),
        ("plugin.mine.unlike", "plugin.mine.unlike"),
        ("plugin.mine.out_of_step", "plugin.mine.desync"),
        ("out_of_step", "desync"),
        ("env", "env"),
        ("", ""),
    ],
)
def test_a_code_has_its_name_of_today(code: str, today: str) -> None:
    assert renamed_codes.current(code) == today


@pytest.mark.parametrize("old", [*RENAMED, *RENAMED_UNDER_EVERY_CHECK, "comm.init.out_of_step"])
def test_describe_gives_the_new_name_and_its_page(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    today = renamed_codes.current(old)
    main._dispatch(["describe", old])
    first, _, *page = capsys.readouterr().out.splitlines()
    assert first == f"{old} is now {today}" and any(today in line for line in page)


def test_a_code_that_was_not_renamed_is_described_without_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    main._dispatch(["describe", "env.variables.differs"])
    assert capsys.readouterr().out.startswith("env.variables.differs\n  A variable differs")


def test_an_earlier_report_is_read_with_the_names_of_today() -> None:
    old = {"severity": "warn", "code": "net.mesh.far", "message": "", "where": {}, "noticed_by": "", "evidence": {}}
    assert Reported.from_json({**old, "fix": ""}).code == "net.mesh.high_latency"
    waiver = {"code": "env.launch.unlike", "until": "2026-12-31", "reason": "ticket 7"}
    policy = Policy.from_json({"severities": {"net.mesh.far": "info"}, "waivers": [waiver]})
    assert policy.severities == {"net.mesh.high_latency": "info"}
    assert policy.waivers == (Waiver("env.launch.differs", "2026-12-31", "ticket 7"),)


@pytest.mark.process
def test_a_config_with_old_names_works_and_gives_the_new_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "preflight.toml"
    path.write_text("severity.net.mesh.far = 'info'\nseverity.env.launch.differs = 'warn'\n")
    options = argparse.Namespace(config=str(path), plugin=[], set=[])
    policy, _ = running.configured(options)
    assert policy and policy.severities == {"net.mesh.high_latency": "info", "env.launch.differs": "warn"}
    running.say_new_names(options)
    assert capfd.readouterr().err == f"preflight: {path}: net.mesh.far is now net.mesh.high_latency\n"
