"""`preflight profile` and `--profile`: a node beside what its kind has, without a sibling in the run."""

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.engine import baseline
from preflight.errors import UsageError
from preflight.history import archive, profile
from preflight.history.run_entry import KeptTrait, RunEntry
from preflight.planning import node_kinds
from preflight.planning.node_kinds import ProfileKind
from tests import running
from tests.checks.gpu.in_machine import needs_machines, run
from tests.faults import ELSEWHERE
from tests.history import made as made_history
from tests.standin import machines

H100, CPU = "NVIDIA H100", ProfileKind("without a GPU")


def entry(node: str = "n0", gpus: int = 2, nics: Sequence[str] = ("eth0", "docker0"), **of: str) -> RunEntry:
    """As entry.entry() makes it of one node; `of`: values that are not the usual ones."""
    cards = [f"GPU-{node}-{number}" for number in range(gpus)]
    had = {
        "lanes": "16",
        "rate": "400",
        "driver": "550.1",
        "files": "1048576",
        "state": "up",
        "memory": "2000000",
        **of,
    }
    traits = [
        ["hardware", "gpu.inventory", "GPUs on the node", {node: str(gpus)}],
        *([["hardware", "node.limits", "instance type", {node: of["instance"]}]] if "instance" in of else []),
        ["hardware", "gpu.inventory", "model", dict.fromkeys(cards, H100)],
        ["hardware", "gpu.inventory", "serial", {card: card for card in cards}],
        ["link", "gpu.pcie", "PCIe lanes", dict.fromkeys(cards, had["lanes"])],
        *(["link", "net.interfaces", f"{nic} Mbit/s", {node: "100000"}] for nic in nics if had["state"] == "up"),
        *(["link", "net.interfaces", f"{nic} state", {node: had["state"]}] for nic in nics),
        ["link", "net.interfaces", "tunl0 MTU", {node: "1480"}],
        ["link", "net.rdma", "mlx5_0:1 Gb/s", {node: had["rate"]}],
        ["driver", "env.software", "GPU driver", {node: had["driver"]}],
        ["software", "env.software", "numpy", {node: "2.0"}],
        ["limit", "node.limits", "open files", {node: had["files"]}],
        ["limit", "node.limits", "MiB of memory", {node: had["memory"]}],
    ]
    checks = sorted({str(row[1]) for row in traits})
    return replace(
        made_history.entry(9), checks=dict.fromkeys(checks, "pass"), nodes=[node], places=dict.fromkeys(cards, node),
        traits=[KeptTrait.from_json(row) for row in traits if row[3]], absent={check: [] for check in checks},
        figures=(),
    )  # fmt: skip


def without(kept: RunEntry, check: str) -> RunEntry:
    """As if the check had not run."""
    return replace(
        kept, checks={id_: status for id_, status in kept.checks.items() if id_ != check},
        absent={id_: nodes for id_, nodes in kept.absent.items() if id_ != check},
        traits=[trait for trait in kept.traits if trait.check != check],
    )  # fmt: skip


def only(*checks: str, **of: str) -> RunEntry:
    """Of a node without GPUs on which only these have measured."""
    return replace(entry("n9", 0, (), **of), checks=dict.fromkeys(checks, "pass"), absent={id_: [] for id_ in checks})


def held(kept: RunEntry, *made: ProfileKind, asked: Sequence[str] = profile.READ) -> list[Reported]:
    return list(profile.findings(made or profile.kinds(entry()), kept, asked))


def test_a_profile_has_what_lasts_and_comes_back_from_its_file() -> None:
    made = profile.kinds(entry())
    assert made == [
        ProfileKind(
            "2 x NVIDIA H100", H100, (), 2,
            {"eth0 Mbit/s": 100000, "eth0 state": "up", "mlx5_0:1 Gb/s": 400, "GPU driver": "550.1"},
            {"PCIe lanes": 16},
            {"open files": 1048576, "MiB of memory": 2000000},
        )
    ]  # fmt: skip
    assert list(node_kinds.parse(tomllib.loads(profile.text(made, "run-1", "2026-01-01")))) == made


def test_a_node_that_has_all_of_it_is_not_told_of() -> None:
    assert held(entry("n9", memory="1950000", files="9999999")) == []


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"gpus": 1}, "fail profile_gpus reboot", "1 GPU on the node, expected 2 as in the profile (2 x NVIDIA H100)"),
    ({"gpus": 3}, "warn profile_gpus fix_config", "3 GPUs on the node, expected 2"),
    ({"nics": ()}, "fail profile_missing replace", "eth0 is not on the node, expected as in the profile"),
    ({"nics": ("ens3",)}, "warn profile_missing fix_config", "none of its network cards, but ens3: a container, or"),
    ({"lanes": "8"}, "warn profile_differs fix_config", "PCIe lanes 8, expected 16; GPU-n9-1: PCIe lanes 8"),
    ({"state": "down"}, "warn profile_differs fix_config", "1 value differs from the profile (2 x NVIDIA H100): eth0 "),
    ({"rate": "200"}, "warn profile_differs fix_config", "mlx5_0:1 Gb/s 200, expected 400"),
    ({"driver": "535.1"}, "warn profile_differs fix_config", "GPU driver 535.1, expected 550.1"),
    ({"files": "1024"}, "warn profile_differs fix_config", "open files 1024, expected at least 1048576"),
]


@pytest.mark.parametrize(("changed", "found", "says"), FAULTS, ids=[str(fault[0]) for fault in FAULTS])
def test_what_is_missing_or_differs_is_told(changed: dict[str, Any], found: str, says: str) -> None:
    (told,) = held(entry("n9", **changed))
    assert f"{told.severity} {told.code.removeprefix('preflight.run.')} {told.action}" == found
    assert says in told.message and told.where["node"] == "n9"


def test_what_was_not_looked_at_is_not_missing() -> None:
    """With --only env; and where a check could not measure on the node."""
    assert held(only("env.software"), asked=()) == []
    absent = {"net.interfaces": ["n9"], "gpu.inventory": ["n9"], "net.rdma": []}
    assert held(replace(entry("n9", 0, ()), absent=absent)) == []


def test_a_node_whose_gpus_were_not_looked_at_is_held_against_none_of_several_kinds() -> None:
    kept, kinds = only("env.software"), (ProfileKind("a", H100, (), 2), CPU)
    assert [(found.severity, found.code) for found in held(kept, *kinds, asked=())] == [
        ("info", "preflight.run.profile_kind")
    ]
    named = ProfileKind("n", "", ("n9",), None, {"GPU driver": "535.1"})
    assert [found.code for found in held(kept, *kinds, named, asked=())] == ["preflight.run.profile_differs"]


def test_a_profile_of_a_run_without_the_inventory_says_nothing_of_gpus() -> None:
    kept = entry(gpus=0)
    absent = {check: nodes for check, nodes in kept.absent.items() if check != "gpu.inventory"}
    (made,) = profile.kinds(replace(kept, absent=absent))
    assert made.gpus is None and "gpus" not in profile.text([made], "run-1", "2026-01-01")
    assert held(entry("n9", gpus=2), made) == []


def test_of_as_many_nodes_those_with_more_gpus_are_the_kind() -> None:
    seven, eight = entry("n0", 7), entry("n1", 8)
    places, traits = {**seven.places, **eight.places}, [*seven.traits, *eight.traits]
    both = replace(seven, nodes=["n0", "n1"], places=places, traits=traits)
    assert [kind.gpus for kind in profile.kinds(both)] == [8]


def test_facts_that_cannot_be_used_are_an_error_of_a_run_with_a_profile() -> None:
    left_out = {"gpu.pcie": "record() raised KeyError", "plugin.own": "record() raised KeyError"}
    kept = replace(entry("n9"), left_out=left_out)
    assert [(told.severity, told.code) for told in held(kept)] == [("error", "preflight.run.fault")]


def test_a_runs_entry_is_made_once_for_the_profile_and_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RunEntry] = []

    def counted(*_: object) -> RunEntry:
        made.append(entry("n9"))
        return made[-1]

    monkeypatch.setattr("preflight.history.entry.entry", counted)
    history = str(tmp_path / "runs")
    archive.write(history, made_history.entry(1), 1e6)
    unread: Any = None
    here: Any = SimpleNamespace(ask=lambda look, _: SimpleNamespace(value=look()))
    request: Any = SimpleNamespace(
        selection=SimpleNamespace(names=lambda _: True),
        sources={},
        profile_path="site.toml",
        profile=profile.kinds(entry("n9")),
    )
    found, early = baseline.compared_with_profile(here, request, unread, FactsStore())
    assert [each.code for each in found] == ["preflight.run.compared_with_profile"] and early
    assert RunEntry.from_json(json.loads(early)).to_json() == json.loads(json.dumps(made[0].to_json()))
    told, kept = baseline.compared_with_history(here, history, unread, FactsStore(), {}, early)
    assert len(made) == 1 and kept == early and [each.code for each in told] == ["preflight.run.compared_with_history"]
    assert baseline.compared_with_history(here, history, unread, FactsStore(), {})[1] == early and len(made) == 2
    assert baseline.compared_with_history(here, str(tmp_path / "none"), unread, FactsStore(), {}, early)[1] == early


def test_a_node_without_its_driver_has_lost_all_gpus() -> None:
    """gpu.inventory has left itself out: it is not in the report."""
    bare = without(entry("n9", 0), "gpu.inventory")
    assert [told.code for told in held(bare)] == ["preflight.run.profile_gpus"]


def test_nodes_have_the_kind_of_their_name_or_of_their_gpus() -> None:
    kinds = (ProfileKind("a", H100), ProfileKind("b", "NVIDIA A100"), ProfileKind("login", nodes=("login-*",)), CPU)
    assert [node_kinds.kind_of(kinds, node, models) for node, models in (
        ("n0", {H100}), ("n0", {"NVIDIA A100"}), ("login-3", {H100}), ("n0", set()), ("n0", {"NVIDIA T4"}),
    )] == [*kinds, None]  # fmt: skip
    mixed = (ProfileKind("a", "A"), ProfileKind("both", "A and B"))
    assert [node_kinds.kind_of(mixed, "n0", models) for models in ({"A"}, {"A", "B"}, {"A", "C"})] == [
        mixed[0], mixed[1], mixed[0]
    ]  # fmt: skip
    told = held(entry("n9", gpus=0), ProfileKind("a", "NVIDIA A100"), ProfileKind("b", "NVIDIA T4"))
    assert [(each.severity, each.code) for each in told] == [("warn", "preflight.run.profile_kind")]
    assert "which has no GPU; expected one of a and b" in told[0].message


def test_nodes_have_the_kind_of_their_instance_type() -> None:
    def placed(*nodes: tuple[str, set[str]]) -> list[ProfileKind | None]:
        return [node_kinds.kind_of(kinds, "n0", models, instance) for instance, models in nodes]

    p5, any_h100 = ProfileKind("p5", H100, instance="p5*.48xlarge"), ProfileKind("other", H100)
    kinds: tuple[ProfileKind, ...] = (p5, any_h100, CPU)
    lost_all, unknown = ("p5.48xlarge", set[str]()), ("", {H100})
    assert placed(("p5en.48xlarge", {H100}), ("DGXH100", {H100}), unknown) == [p5, any_h100, p5]
    assert placed(lost_all, ("m7i.metal", set()), ("p5.48xlarge", {"NVIDIA T4"})) == [p5, CPU, None]
    kinds = (p5,)
    assert placed(lost_all, ("", set()), ("p4d.24xlarge", {H100})) == [p5, p5, None]
    two = (ProfileKind("a", "NVIDIA T4", instance="p5.48xlarge"), p5)
    told = held(entry("n9", 0, instance="p5.48xlarge"), *two)
    assert [(each.severity, each.code) for each in told] == [("warn", "preflight.run.profile_kind")]
    assert "which has no GPU and is a p5.48xlarge; expected one of a and p5" in told[0].message


def test_a_node_whose_gpus_were_not_looked_at_is_known_by_its_instance_type() -> None:
    kept = only("env.software", "node.limits", instance="p5.48xlarge")
    kinds = (ProfileKind("a", H100, instance="p5.48xlarge", node={"GPU driver": "535.1"}), CPU)
    assert [told.code for told in held(kept, *kinds, asked=())] == ["preflight.run.profile_differs"]


def test_a_profile_has_the_instance_type() -> None:
    (made,) = profile.kinds(entry(instance="p5.48xlarge"))
    assert (made.name, made.instance) == ("2 x NVIDIA H100, p5.48xlarge", "p5.48xlarge")
    assert list(node_kinds.parse(tomllib.loads(profile.text([made], "run-1", "2026-01-01")))) == [made]


def test_it_says_what_was_held_against_what() -> None:
    kinds = profile.kinds(entry())
    told = profile.which("site.toml", kinds, entry("n9"), profile.READ)
    expected = 'compared with the profile site.toml: 1 node of the kind "2 x NVIDIA H100" (9 values)'
    assert (told.severity, told.code, told.message) == ("info", "preflight.run.compared_with_profile", expected)
    nothing = replace(only("env.launch"), traits=[])
    message = profile.which("site.toml", kinds, nothing, ()).message
    assert message == "no node was compared with the profile site.toml: none of its values was measured"


BAD = {
    "": "it has no kind of node, expected at least one [[kind]]",
    "kind = 3": "it has no kind of node",
    "[[kind]]\nGPUS = 8": "kind 1: GPUS: there is no such key; known are at_least, each_gpu",
    '[[kind]]\ngpus = "8"': "kind 1: gpus is '8', expected a whole number",
    "[[kind]]\ninstance = 5": "kind 1: instance is 5, expected a text",
    '[[kind]]\ninstance = "p5"\n[[kind]]\ninstance = "p5"': "several kinds have no GPU and the instance type 'p5'",
    '[[kind]]\nnodes = "gpu-*"': "kind 1: nodes is 'gpu-*', expected a list of names",
    "[[kind]]\nnode = 3": "kind 1: node is 3, expected a table",
    '[[kind]]\n[kind.at_least]\nfiles = "many"': "kind 1: at_least.files is 'many', expected a number",
    "[[kind]]\ngpus = -1": "kind 1: gpus is -1, expected 0 to 1024",
    "[[kind]]\n[kind.node]\nTorch = 2": "kind 1: node: Torch: there is no such value; did you mean torch?",
    "[[kind]]\n[kind.each_gpu]\nfans = 2": "kind 1: each_gpu: fans: there is no such value",
    "[[kind]]\n[kind.at_least]\nCPU = 4": "kind 1: at_least: CPU: there is no such value; did you mean CPUs?",
    "[[kind]]\n[kind.at_least]\nCPUs = inf": "kind 1: at_least.CPUs is inf, expected 0 to 1e+300",
    "[[kind]]\n[kind.at_least]\nCPUs = nan": "kind 1: at_least.CPUs is nan, expected 0 to 1e+300",
    f"[[kind]]\n[kind.at_least]\nCPUs = {'9' * 400}": "kind 1: at_least.CPUs is ",
    '[[kind]]\ngpu = "A"\n[[kind]]\ngpu = "A"': "several kinds have the GPU 'A', expected only one of them",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_profile_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        node_kinds.parse(tomllib.loads(text))
    assert str(refused.value).startswith(BAD[text])


def test_a_whole_number_may_be_written_as_a_float() -> None:
    (kind,) = node_kinds.parse(tomllib.loads('[[kind]]\n[kind.node]\n"eth0 Mbit/s" = 1e5'))
    assert held(entry("n9"), kind) == []


def preflight(folder: Path, *words: str, wrap: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*wrap, *running.preflight(*words)]
    environ = {**os.environ, **running.environment()}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False)


def test_a_bad_profile_ends_a_run_with_2(tmp_path: Path) -> None:
    for text, why in (
        (None, "cannot be read (No such file"),
        ("[[kind", "is not valid TOML"),
        ("kind = 3", "it has no kind"),
    ):
        if text:
            (tmp_path / "site.toml").write_text(text)
        done = preflight(tmp_path, "run", "--level", "quick", "--profile", "site.toml")
        assert done.returncode == 2 and f"--profile site.toml: {why}" in done.stderr, done.stderr


def test_a_report_that_somebody_has_changed_is_one_sentence(tmp_path: Path) -> None:
    preflight(tmp_path, "run", "--level", "quick", "--only", "node.limits", "--report", "sound")
    file = tmp_path / "sound/report.json"
    report = json.loads(file.read_text())
    report["job"]["nodes"] = []
    file.write_text(json.dumps(report))
    (tmp_path / "empty").mkdir()
    for name, why in (
        ("sound", "sound: nothing that a node has is in it: node.limits: it has facts of rank 0, which no node"),
        ("empty", "empty: this folder has no report.json"),
        ("", ""),
    ):
        done = preflight(tmp_path, "profile", name)
        assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.process
def test_a_profile_that_is_too_long_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[[kind]]\n" + "# long\n" * (1 << 18))
    with pytest.raises(UsageError, match="more than 1 MiB"):
        node_kinds.read(str(tmp_path / "site.toml"))


def of_profile(folder: Path) -> list[dict[str, Any]]:
    report = json.loads((folder / "report.json").read_text())
    found = [finding for check in report["checks"] for finding in check["findings"]]
    return [finding for finding in found if finding["code"].startswith("preflight.run.profile")]


QUICK = ("run", "--level", "quick", "--only", "node.limits,net.interfaces,net.rdma", "--report")
HOST = ("unshare", "--net", "--mount", "sh", "-c")
OWN = 'mount -t sysfs none /sys; ip link set lo up; exec "$@"'
NIC = (*HOST, f"ip link add nic0 type veth peer name nic1; ip link set nic0 up; ip link set nic1 up; {OWN}", "-")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="a host of its own needs root and iproute2")
def test_a_lowered_limit_and_a_missing_card_are_found_on_one_host(tmp_path: Path) -> None:
    """As a person does it: profile of a sound run, then a run on a host with less."""
    preflight(tmp_path, *QUICK, "sound", wrap=NIC)
    printed = preflight(tmp_path, "profile", "sound")
    assert '"nic0 Mbit/s" = 10000' in printed.stdout, printed.stderr
    (tmp_path / "site.toml").write_text(printed.stdout)
    again = preflight(tmp_path, *QUICK, "again", "--profile", "site.toml", wrap=NIC)
    assert "preflight.run.profile" not in again.stdout and again.returncode == 0, again.stdout
    assert 'compared with the profile site.toml: 1 node of the kind "GPUs not looked at" (' in again.stdout
    less = (*HOST, f"ulimit -n 500; {OWN}", "-")
    sick = preflight(tmp_path, *QUICK, "sick", "--profile", "site.toml", wrap=less)
    missing, lower = of_profile(tmp_path / "sick")
    assert ELSEWHERE["profile_nic_missing"].is_told_by([missing]), sick.stdout
    assert ELSEWHERE["profile_limit_lower"].is_told_by([lower]) and sick.returncode == 1, sick.stdout


@needs_machines
def test_a_gpu_fewer_is_found_on_one_node(tmp_path: Path) -> None:
    for name in ("sound", "again", "sick"):
        (tmp_path / name).mkdir()
    load = partial(machines.load, "h100_nvswitch", tmp_path, files={"/sys/class/dmi/id/product_name": "p5.48xlarge"})
    quick = ("--level", "quick", "--only", "gpu,node.limits")
    run(load(), tmp_path / "sound", *quick)
    printed = preflight(tmp_path, "profile", "sound")
    assert "gpus = 8" in printed.stdout and '"active NVLinks" = 18' in printed.stdout, printed
    assert 'instance = "p5.48xlarge"' in printed.stdout, printed
    (tmp_path / "site.toml").write_text(printed.stdout)
    words = (*quick, "--profile", str(tmp_path / "site.toml"))
    sound = run(load(), tmp_path / "again", *words)
    assert "preflight.run.profile" not in sound.told()
    sick = run(load({"count": 7}), tmp_path / "sick", *words)
    assert ELSEWHERE["profile_gpu_fewer"].is_told_by(of_profile(tmp_path / "sick")), sick.told()
