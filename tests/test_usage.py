"""Mistakes in the command: one clear sentence, exit code 2, before anything starts."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from preflight.cli import environment, main
from preflight.planning.registry import BUILT_IN
from tests import running


def preflight(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return running.run_to_end(running.preflight(*arguments), cwd=cwd)


_MEET, _OF_4 = ["rendezvous"], ["--nnodes", "4", "--node-rank", "1"]
MISTAKES = [
    (["run", "--only", "comm.alreduce"], "did you mean comm.all_reduce"),
    (["run", "--only", "com"], "did you mean comm"),
    (["--skip", "xyzzy"], "known are comm, comm.all_gather, comm.all_reduce, comm.all_to_all, "),
    (["--al"], "did you mean --all"),
    (["ru"], "did you mean run"),
    (["list", "--level", "quick"], "--level: list has no such option; it is one of run"),
    (["run", "--only", "plugin.swap"], "there is no such check or family; name its file with --plugin FILE"),
    (["run", "--set", "plugin.swap.gib=1"], "there is no check plugin.swap; name its file with --plugin FILE"),
    (["describe", "plugin.swap"], "there is no such check or code; name its file with --plugin FILE"),
    (["run", "--level", "fast"], "invalid choice: 'fast'"),
    (["run", "--level", "quick", "--all"], "--all is --level full"),
    (["run", "-q", "-v"], "not allowed with argument"),
    (["run", "--deadline", "soon"], "soon is not a number of seconds"),
    (["run", "--deadline", "0"], "0 is not a number of seconds"),
    (["run", "--backend", "mpi"], "invalid choice: 'mpi'"),
    (["run", "--set", "comm.all_reduce.max_mb=1"], "did you mean comm.all_reduce.max_mib"),
    (["run", "--set", "comm.all_reduce.max_mib=many"], "expected a whole number of MiB"),
    (["run", "--set", "comm.al_reduce.max_mib=1"], "did you mean comm.all_reduce"),
    (["run", "--set", "comm.all_reduce.max_mib"], "expected ID.OPTION=VALUE"),
    (["run", "--plugin", "no-module"], "neither a module's name nor a .py file"),
    (["describe", "comm.all_reduced"], "did you mean comm.all_reduce"),
    (["describe", "comm.all_reduce.wrong"], "did you mean comm.all_reduce.wrong_result"),
    (["describe", "preflight.rendezvous.port_take"], "did you mean preflight.rendezvous.port_taken"),
    (["show", "nowhere.json"], "cannot be read"),
    (["run", "--level", "quick", "--only", "train"], "--only train: has no check of --level quick"),
    (["run", "--config", ""], "--config: it is empty"),
    (["run", "--report", ""], "--report: it is empty"),
    (["run", "--only", " "], "--only: it is empty"),
    (["run", "--model", "model.build"], "--model: model.build: expected MODULE:FUNCTION or FILE.py:FUNCTION"),
    (["run", "--model", "llama/config"], "as in my_project.model:build; or a config.json of transformers"),
    (["run", "--set", "train.model.tp_plan=plan", "--model", "m:f"], "expected MODULE:FUNCTION or FILE.py:FUNCTION"),
    (["run", "--set", "train.model.tp_ranks=0", "--model", "m:f"], "train.model.tp_ranks=0: "),
    (["run", "--model", ""], "--model: it is empty"),
    (_MEET, "the following arguments are required: --endpoint, --nnodes, --node-rank"),
    ([*_MEET, "--endpoint", "node-0", *_OF_4], "expected HOST:PORT, as in node-0:29500"),
    ([*_MEET, "--endpoint", "tcp://node-0:1", *_OF_4], "expected HOST:PORT"),
    ([*_MEET, "--endpoint", "fd00::1:29500", *_OF_4], "or [fd00::1]:29500"),
    ([*_MEET, "--endpoint", "node-0:0", *_OF_4], "expected HOST:PORT"),
    ([*_MEET, "--endpoint", "0.0.0.0:29500", *_OF_4], "expected a host that all nodes can reach"),
    ([*_MEET, "--endpoint", "[fe80::1%eth0]:29500", *_OF_4], "expected HOST:PORT"),
    ([*_MEET, "--endpoint", "node-0:65536", *_OF_4], "expected HOST:PORT"),
    ([*_MEET, "--endpoint", "node-0:1", *_OF_4, "--nnodes", "1:4"], "for an elastic job (1:4) give the number"),
    (
        [*_MEET, "--endpoint", "node-0:1", *_OF_4, "--node-rank", "4"],
        "expected a whole number from 0 to 3 with --nnodes 4",
    ),
    ([*_MEET, "--endpoint", "node-0:1", *_OF_4, "--timeout", "0"], "0 is not a number of seconds"),
    ([*_MEET, "--endpoint", "node-0:1", *_OF_4, "--rdzv-backend", "etcd3"], "invalid choice: 'etcd3'"),
    ([*_MEET, "--endpoint", "node-0:1", *_OF_4, "--nodes", "4"], "did you mean --nnodes"),
    (["--local_rank=1", "--level", "fast"], "invalid choice: 'fast'"),  # as DeepSpeed starts it
    (["--level", "quick", "--local-rank=1"], "--local-rank=1: run has no such option"),
    (["gate"], "gate: expected a command after --"),
    (["gate", "srun", "python", "-m", "preflight", "--report", "x"], "--report comes after the --"),
    (["gate", "--close", "--", "true"], "--close: gate has no such option; did you mean --closed?"),
    (["gate", "--open", "--closed", "--", "true"], "not allowed with argument"),
    (["hook", "slurm"], "invalid choice: 'slurm'"),
    (["nodes", "nowhere.json", "--bad"], "nowhere.json: cannot be read"),
    (["nodes", "nowhere.json"], "one of the arguments --good --bad is required"),
    (["pick", "-N", "0"], "'0' is not a whole number of 1 or more"),
    (["pick", "-N", "2"], "pick -N 2: this is not a Slurm job, expected one of at least 2 nodes"),
]


def _words(value: Sequence[str]) -> str:
    return value[:40] if isinstance(value, str) else " ".join(value)[:40]


AS_PROCESSES = [
    *(MISTAKES[number] for number in (0, 3, 20, 25)),
    (["run", "--plugin", "not_there.py"], "there is no such file"),
    (["run", "--json", "/dev/null/report.json"], "cannot be written"),
    (["run", "--report", "/proc/nowhere"], "cannot be written"),
    (["run", "--baseline", "nowhere"], "--baseline nowhere: cannot be read"),
    (["run", "--config", "nowhere.toml"], "nowhere.toml: cannot be read (No such file or directory)"),
]
"""One each of a check's name, an option, an output that cannot be written, and another command; and what preflight
reads in a child of its own: that takes signals and a timer, which would end pytest."""


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=_words)
def test_mistake_is_one_sentence_and_exit_2(
    arguments: Sequence[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which takes milliseconds; AS_PROCESSES are the same in processes of their own."""
    _without_a_launcher(monkeypatch)
    for run in (
        "preflight.engine.local_launch.launch",
        "preflight.engine.supervisor.run",
    ):  # or what is no mistake would begin here
        monkeypatch.setattr(run, lambda *_, run=run, **__: pytest.fail(f"{run} was called"))
    with pytest.raises(SystemExit) as exited:
        main.main(list(arguments))
    _is_one_sentence(exited.value.code, *capsys.readouterr(), says)


@pytest.mark.parametrize(("arguments", "says"), AS_PROCESSES, ids=_words)
def test_mistake_ends_the_process_with_2(arguments: Sequence[str], says: str) -> None:
    finished = preflight(*arguments)
    _is_one_sentence(finished.returncode, finished.stdout, finished.stderr, says)


def _is_one_sentence(code: object, output: str, error: str, says: str) -> None:
    assert (code, output) == (2, ""), (code, output, error)
    assert says in error and error.count("\n") == 1 and error.startswith("preflight: "), error


def _without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that running.environment() gives to a process."""
    clean = running.environment()
    for name in set(os.environ) - set(clean):
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--report", "/proc/nowhere"], "--report /proc/nowhere: cannot be written"),
        (["--plugin", "alone", "--set", "plugin.alone.deeds=raise"], "did you mean plugin.alone.deed"),
    ],
    ids=["unwritable", "plugin's option"],
)
def test_what_only_the_run_can_see_ends_all_ranks_with_2(arguments: Sequence[str], says: str, tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for rank, env in enumerate(running.plain_ranks(2)):
        run.start_rank(rank, ["--all", "--deadline", "60", *arguments], env)
    finished = run.finish()
    assert finished.exit_codes == [2, 2], finished.told()
    assert says in finished.output and "PASS" not in finished.output, finished.told()


def test_only_one_rank_says_it(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(3), "--only", "nonsense")
    assert finished.exit_codes == [2, 2, 2] and finished.output.count("\n") == 1, finished.told()


def test_variables_stand_for_options_that_the_command_line_does_not_give() -> None:
    environ = {
        "PREFLIGHT_LEVEL": "quick", "PREFLIGHT_ONLY": "env,node", "PREFLIGHT_STRICT": "1", "PREFLIGHT_SKIP": " ",
        "PREFLIGHT_SECRET": "x",
    }  # fmt: skip

    def words(*given: str, **more: str) -> list[str]:
        own = {**environ, **more}
        return [*environment.words_of(environment.used(["run", *given], own), own)]

    assert words() == ["--level=quick", "--only=env,node", "--strict"]
    assert words("--all", "--only=comm") == ["--strict"]
    assert words("--level", "full", "--strict") == ["--only=env,node"]
    assert words(PREFLIGHT_STRICT="0") == ["--level=quick", "--only=env,node"]


def test_a_variable_that_is_wrong_is_named() -> None:
    shown = running.run_to_end(running.preflight(), {**running.environment(), "PREFLIGHT_LEVEL": "fast"})
    assert shown.returncode == 2 and "invalid choice: 'fast'" in shown.stderr
    assert "(the environment has PREFLIGHT_LEVEL)" in shown.stderr


def test_help_and_version_are_no_mistakes() -> None:
    assert preflight("--version").stdout.startswith("preflight 0.")
    shown = preflight("--help")
    assert shown.returncode == 0 and "Exit codes" in shown.stdout
    run = preflight("run", "--help").stdout
    assert "--only" in run and "\nwhat is checked:\n" in run and run.count("torchrun [...] -m preflight") == 2


def test_list_and_describe() -> None:
    listed = preflight("list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["check", *BUILT_IN]
    page = preflight("describe", "comm.all_reduce").stdout
    assert "--set comm.all_reduce.max_mib=" in page and "comm.all_reduce.wrong_result" in page
    assert "Another process has the port on node 0" in preflight("describe", "preflight.rendezvous.port_taken").stdout
    assert "wrong sums" in preflight("describe", "comm.all_reduce.wrong_result").stdout
    assert "did not end within its deadline" in preflight("describe", "timed_out").stdout


PLUGIN = """from preflight.check import Level, Plan, Scope

PLAN = Plan(Scope.NODE, Level.QUICK{more})
def measure(ctx): return {{}}
def judge(facts, run): return iter(())
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", ""),
        (", deadline_s='5'", "PLAN.deadline_s is '5', expected a number of seconds above 0 (mine.py line 3)"),
        (", needs=('env.lunch',)", "PLAN.after names env.lunch, which is not a check; did you mean env.launch?"),
        (") / 0 # (", "TypeError: unsupported operand type(s) for /: 'Plan' and 'int' (mine.py line 3)"),
    ],
    ids=["sound", "deadline", "needs", "raises"],
)
def test_describe_tells_why_a_plugin_cannot_be_loaded(more: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN.format(more=more))
    told = preflight("describe", "plugin.mine", "--plugin", str(tmp_path / "mine.py"))
    assert told.returncode == (1 if says else 0), told
    assert told.stdout.startswith("plugin.mine") and not told.stderr, told
    assert ("cannot be loaded: " in told.stdout) == bool(says) and says in told.stdout, told


BROKEN = "raise ValueError('odd\\nand long')"


def test_a_plugin_that_raises_is_told_with_its_line_and_leaves_its_stack_in_the_evidence(tmp_path: Path) -> None:
    plugin, report = tmp_path / "mine.py", tmp_path / "report.json"
    judging = PLUGIN.format(more="").replace("return iter(())", BROKEN)
    for text, message in (
        (f"{PLUGIN.format(more='')}{BROKEN}\n", "cannot be loaded: ValueError: odd (mine.py line 6)"),
        (judging, "judge() raised ValueError: odd (mine.py line 5)"),
    ):
        plugin.write_text(text)
        told = preflight("--level", "quick", "--only", "plugin.mine", "--plugin", str(plugin), "--json", str(report))
        (finding,) = json.loads(report.read_text())["checks"][0]["findings"]
        assert told.returncode == 3 and finding["message"].endswith(message), told
        assert finding["evidence"]["stack"].startswith("Traceback") and str(plugin) in finding["evidence"]["stack"]
        assert message in " ".join(told.stdout.split()) and "Traceback" not in told.stdout
    plugin.write_text(BROKEN)
    again = preflight("show", str(report), "--judge", "--plugin", str(plugin))
    assert again.returncode == 2 and "plugin.mine: cannot be loaded: ValueError: odd (mine.py line 1)" in again.stderr


def test_a_report_can_be_shown_and_judged_again(tmp_path: Path) -> None:
    running.run_ranks(tmp_path, running.plain_ranks(2), "--only", "comm.init")
    shown = preflight("show", str(tmp_path))
    assert shown.returncode == 0 and "verdict: PASS" in shown.stdout, shown
    strict = preflight("show", str(tmp_path), "--judge", "--set", "comm.init.slow_s=0")
    assert "comm.init.late_rank" in strict.stdout and "verdict: WARN" in strict.stdout, strict
    (tmp_path / "facts.jsonl.gz").unlink()
    lost = preflight("show", str(tmp_path), "--judge")
    assert lost.returncode == 2 and "there are no facts beside it" in lost.stderr, lost


@pytest.mark.parametrize("names", ["env.variables,node,gpu.inventory", "plugin.mine"])
def test_a_quick_check_alone_is_quick(names: str, tmp_path: Path) -> None:
    """In a prolog: one process without torch."""
    (tmp_path / "mine.py").write_text(PLUGIN.format(more=""))
    poison = tmp_path / "torch"
    poison.mkdir()
    (poison / "__init__.py").write_text("raise ImportError('quick must not import torch')")
    env = running.environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    chosen = ("--level", "quick", "--only", names, "--plugin", str(tmp_path / "mine.py"), "--deadline", "60")
    finished = running.run_to_end(running.preflight(*chosen), env)
    assert finished.returncode == 0, finished
    expected = {"env.variables", "node.limits", "gpu.inventory"} if "node" in names else {names}
    assert "1 rank on 1 node" in finished.stdout and expected <= set(finished.stdout.split()), finished
    assert "node.clock" not in finished.stdout, finished


def test_strict_makes_a_skip_a_failure(tmp_path: Path) -> None:
    finished = running.run_ranks(
        tmp_path, running.plain_ranks(1), "--only", "comm.all_reduce", "--skip", "comm.init", "--strict"
    )
    assert finished.check("comm.all_reduce")["skipped"] == "needs comm.init, which was not selected"
    assert finished.exit_codes == [1], finished.told()


IN_PART = """from preflight.check import Code, Level, Plan, Scope

PLAN = Plan(Scope.NODE, Level.QUICK)
NO_TIME = Code("A part was not measured.", fix="Set --deadline.")
def measure(ctx): return {}
def judge(facts, run): yield NO_TIME.not_measured("b was not measured: there was no time")
def summarize(facts, run): return "a is 1"
"""


def test_what_is_measured_in_part_is_a_skip_and_what_needs_it_runs(tmp_path: Path) -> None:
    (tmp_path / "partial.py").write_text(IN_PART)
    (tmp_path / "mine.py").write_text(PLUGIN.format(more=", needs=('plugin.partial',)"))
    plugins = [word for name in ("partial", "mine") for word in ("--plugin", str(tmp_path / f"{name}.py"))]
    finished = running.run_ranks(tmp_path, running.plain_ranks(1), "--only", "plugin", *plugins)
    part, needing = finished.check("plugin.partial"), finished.check("plugin.mine")
    assert (part["status"], part["skipped"]) == ("skip", "in part: b was not measured: there was no time")
    assert (needing["status"], finished.exit_codes) == ("pass", [0]), finished.told()
    again = preflight("show", str(tmp_path), "--judge", *plugins)
    assert "SKIP  plugin.partial" in again.stdout and "skipped in part, see below; a is 1" in again.stdout, again
    assert "SKIP  [plugin.partial.no_time]" in again.stdout, again
    strict = running.run_ranks(tmp_path, running.plain_ranks(1), "--only", "plugin.partial", "--strict", *plugins)
    assert strict.exit_codes == [1] and strict.report["verdict"] == "pass", strict.told()


def test_the_report_on_stdout_is_json_alone(tmp_path: Path) -> None:
    import json

    (env,) = running.plain_ranks(1)
    finished = running.run_to_end(running.preflight("--only", "env", "--json", "-", "--facts"), env)
    report = json.loads(finished.stdout)
    assert report["checks"][0]["facts"][0]["ranks"] == "0"
    assert "verdict: PASS" in finished.stderr


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").symlink_to(precious)
    running.run_ranks(tmp_path / "out", running.plain_ranks(1), "--only", "env")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "out" / "report.json").is_symlink()


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", f'rmdir {gone} && exec "$@"', "sh", *running.preflight("--level", "quick")]
    finished = running.run_to_end(command, cwd=gone)
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1), finished
    assert "the current folder is gone" in finished.stderr, finished


def test_what_a_broken_installation_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "-orch-2.0.dist-info").mkdir()
    env = running.environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    command = running.preflight("--level", "quick")
    finished = running.run_to_end(command, env)
    assert finished.returncode in (0, 2), finished
    assert "Traceback" not in finished.stderr, finished


def test_a_fault_of_its_own_is_no_failure_of_the_machine() -> None:
    """Exit code 1 would say that a failure was found."""
    code = (
        "from preflight.cli import main; from preflight.planning import registry; registry.sources = lambda *_: 1 / 0; "
    )
    code += "main.main(['list'])"
    command = [sys.executable, "-c", code]
    finished = running.run_to_end(command)
    assert finished.returncode == 3 and "a fault of preflight itself" in finished.stderr, finished
