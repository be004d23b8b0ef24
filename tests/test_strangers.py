"""A process that is no rank reaches the store of a running job, and writes there what it likes."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from preflight.engine.store_keys import SERVED_BY
from preflight.engine.store_seal import SECRET
from tests import running
from tests.faults import ELSEWHERE
from tests.faults.engine import STRANGERS
from tests.running import Finished
from tests.strangers import STRIKES, Stranger

DEADLINE_S = 120
A_SECRET = {SECRET: "0123456789abcdef0123456789abcdef"}
MORE = {
    "foreign", "other_rank", "left", "counter", "order_a_module", "settings", "stale_order", "arrival", "damaged",
    "beat",
}  # fmt: skip
"""Others of the same kind, with the same code of preflight's."""
SEALED = {"gone", "beat", "facts"}
"""Also where ranks share a secret."""


@contextlib.contextmanager
def held_run(folder: Path, **environ: str) -> Iterator[tuple[running.Run, Stranger, str]]:
    """A run whose rank 1 measures until the block ends, somebody who knows its id and reads its store, and that id."""
    begun, end = folder / "begun", folder / "end"
    deed = {"TEST_DEED": "wait_for_file", "TEST_BEGUN": str(begun), "TEST_AWAITED": str(end)}
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TEST_CHECK_DEADLINE_S": "60", **environ}
    words = ["--only", "env.launch,plugin.alone,plugin.after", "--plugin", "alone", "--plugin", "after"]
    with running.store_server() as (port, _):
        stranger, run = Stranger(port, folder), running.Run(folder, DEADLINE_S)
        first, second = running.plain_ranks(2, port, **environ)
        for rank, env in enumerate((first, {**second, **deed})):
            run.start_rank(rank, [*words, "--report", str(folder), "--deadline", str(DEADLINE_S)], env)
        running.await_file(begun, DEADLINE_S)
        yield run, stranger, stranger.run_of(1, 2)
        end.touch()
        run.finish()


def struck(name: str, folder: Path, environ: Mapping[str, str]) -> Finished:
    with held_run(folder, **environ) as (run, stranger, run_id):
        STRIKES[name](stranger, run_id)
        (folder / "end").touch()
        return run.finish()


CASES = [(name, False) for name in STRANGERS if name != "gone"] + [(name, True) for name in sorted(SEALED)]


@pytest.mark.parametrize(
    ("name", "sealed"),
    [
        pytest.param(*case, marks=pytest.mark.more if case[0] in MORE or case == ("facts", True) else ())
        for case in CASES
    ],
)
def test_what_a_stranger_writes_runs_nothing_passes_nothing_and_blames_no_rank(
    name: str, sealed: bool, tmp_path: Path
) -> None:
    finished = struck(name, tmp_path, A_SECRET if sealed else {})
    told, found = finished.told(), finished.findings()
    assert not (tmp_path / "ran").exists(), told
    assert ELSEWHERE[f"stranger_{name}"].is_told_by(found) and len(found) == 1, told
    assert found[0]["where"] == {} and "something else writes into the store at 127.0.0.1:" in found[0]["message"], told
    assert finished.exit_codes == [1, 1] and finished.left_over == [] and "fault of preflight" not in told, told
    assert ("signed" in found[0]["message"]) == sealed, told


@pytest.mark.parametrize("text", ["2", pytest.param("[" * 5000, marks=pytest.mark.more)], ids=["a number", "brackets"])
def test_what_does_not_say_whose_store_it_is(text: str, tmp_path: Path) -> None:
    """It stands there before the ranks come, as another program's."""
    with running.store_server() as (port, _):
        Stranger(port, tmp_path).store.set(SERVED_BY, text)
        ranks = running.plain_ranks(2, port, TORCHELASTIC_USE_AGENT_STORE="True")
        finished = running.run_ranks(tmp_path, ranks, "--only", "env.launch", deadline_s=30)
    for rank in (0, 1):
        (found,) = finished.findings(finished.report_named(f"report.rank-{rank}.json"))
        assert found["code"] == "preflight.run.foreign_writer" and found["where"] == {}, finished.told()
        assert f"{SERVED_BY} holds '" in found["message"], finished.told()
    assert finished.exit_codes == [1, 1] and finished.left_over == [], finished.told()


def test_ranks_with_a_secret_of_whom_nobody_wants_anything(tmp_path: Path) -> None:
    """Its values are signed in the store, and the secret is nowhere."""
    with held_run(tmp_path, **A_SECRET) as (run, stranger, run_id):
        assert stranger.store.get(f"{run_id}/now").startswith(b"hmac-sha256:")
        assert all(A_SECRET[SECRET].encode() not in stranger.store.get(f"{run_id}/{key}") for key in ("now", "job"))
        (tmp_path / "end").touch()
        finished = run.finish()
    told = finished.told()
    assert finished.findings() == [] and finished.exit_codes == [0, 0], told
    assert finished.check("plugin.after")["summary"] == "2 members, sum 2", told
    assert A_SECRET[SECRET] not in (tmp_path / "report.json").read_text() + finished.output


def test_a_rank_without_the_secret_is_said_so(tmp_path: Path) -> None:
    ranks = running.plain_ranks(2, None, **A_SECRET)
    del ranks[1][SECRET]
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.launch", deadline_s=20)
    (found,) = finished.findings()
    assert found["code"] == "preflight.run.foreign_writer" and found["where"] == {}, finished.told()
    assert SECRET in found["message"] and SECRET in found["fix"], finished.told()
    assert finished.exit_codes[0] == 1 and finished.exit_codes[1] in (1, 3), finished.told()


def test_a_secret_that_is_too_short_is_one_sentence(tmp_path: Path) -> None:
    done = running.run_to_end(
        running.preflight("run", "--only", "env.launch", "--level", "quick"), running.environment(**{SECRET: "abc"})
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert f"{SECRET} has 3 characters, expected 16 or more" in done.stderr


@pytest.mark.parametrize(
    "different",
    [("--set", "comm.all_reduce.max_mib=2"), pytest.param(("--plugin", "records"), marks=pytest.mark.more)],
    ids=["settings", "plugins"],
)
def test_ranks_that_were_given_different_arguments(different: tuple[str, str], tmp_path: Path) -> None:
    """Each rank takes checks and settings from its own command line, so they must agree."""
    run = running.Run(tmp_path)
    words = ["--only", "env.launch", "--report", str(tmp_path), "--deadline", "60"]
    for rank, env in enumerate(running.plain_ranks(3)):
        run.start_rank(rank, [*words, *(different if rank == 2 else ())], env)
    finished = run.finish()
    assert finished.exit_codes == [2, 2, 2], finished.told()
    assert "rank 2 and rank 0 were given different plugins or settings" in finished.output, finished.told()
