import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from preflight import errors
from preflight.check import After, Code, Job, Level, Option, Plan, Scope, option
from preflight.core import finding
from preflight.errors import BrokenCheck, UsageError
from preflight.planning import entry_points, registry, validation
from preflight.planning.registry import Source, Spec
from tests import made

PARITY = {
    "drift", "not_averaged", "not_exchanged", "not_finite", "wrong_data", "out_of_sync", "wrong_clip",
    "unsteady", "wrong_exchange", "wrong_start", "wrong_step", "model_changed",
}  # fmt: skip
MODEL_PARALLEL = {
    "not_finite", "out_of_sync", "wrong_clip", "wrong_start", "wrong_step", "model_changed", "missing_collective",
    "wrong_gradient",
}  # fmt: skip
COLLECTIVE = {"below_expected", "slower_than_baseline", "too_slow", "wrong_result"}
IDS_AND_CODES = {
    "env.launch": {
        "invalid", "duplicate_rank", "rank_out_of_range", "late", "differs", "local_rank_taken", "local_world_size",
        "uneven", "not_grouped", "no_local_rank", "single_process", "bad_groups",
        "shared_cores", "few_cores",
    },
    "env.variables": {
        "differs", "unknown", "wrong_value", "wrong_grammar", "no_effect", "deprecated", "leftover", "parameters",
        "conf_line", "conf_missing",
    },
    "env.software": {
        "python", "torch", "cuda", "nccl", "cudnn", "driver", "kernel", "image", "packages", "sources", "no_sources",
        "paths", "patched", "library", "two_nccls",
    },
    "node.limits": {"memlock", "nofile", "tasks", "shm", "memory", "cpus", "disk", "ulimit",
                    "ports", "conntrack", "file_max", "pid_max"},
    "net.efa": {"no_plugin", "no_answer", "missing", "versions"},
    "net.rendezvous": {
        "unresolved", "unreachable", "silent_address", "different_addresses", "loopback", "slow_connect",
        "slow_name", "slow_reverse",
    },
    "node.clock": {"skewed"},
    "node.storage": {
        "no_answer", "missing", "broken", "denied", "read_only", "space", "inodes_left", "quota",
        "not_shared", "node_local", "different_mount", "different_options", "soft", "slow", "not_removed",
    },
    "node.leftovers": {"process", "shm_files", "hidden_processes"},
    "net.interfaces": {
        "none", "down", "loopback", "shared", "family", "internal", "link_local", "different_network", "mtu",
        "speed", "route", "second_interface",
    },
    "net.rdma": {
        "gid_index", "no_gid", "firmware", "link_layer", "pcie", "slow", "no_port_selected", "too_many", "unmatched",
        "no_answer", "down", "missing", "permission_denied", "unequal", "no_active_port",
    },
    "net.rdma_errors": {
        "went_down", "link", "retransmits", "counter_saturated",
    },
    "net.interface_errors": {"went_down", "damaged", "checksum", "dropped", "retransmits"},
    "net.mesh": {
        "local_error", "no_address", "same_address", "filtered", "refused", "reset", "no_route", "stranger", "silent",
        "mtu", "loss", "slow", "asymmetric", "high_latency", "untried",
    },
    "node.kernel": {
        "xid", "sxid", "recovery", "driver", "mismatch", "aer", "hung", "out_of_memory", "memory_error", "throttled",
        "nic", "link_down", "peermem", "acs", "iommu", "fabric_manager", "kernel_bug", "open_files", "disk",
        "file_server",
    },
    "gpu.inventory": {
        "no_answer", "count", "missing", "model", "vbios", "memory", "free_memory", "shared_gpu", "no_gpu",
        "not_visible", "torch_count", "mig", "exclusive", "excluded",
    },
    "gpu.health": {
        "no_answer", "uncorrected", "sram", "remapped", "retired", "corrected", "recovery", "inforom", "hot",
        "throttled", "process", "memory_used", "persistence", "ecc_mode", "clock", "power_limit", "bar1", "spins",
    },
    "gpu.pcie": {"no_answer", "width", "generation", "uplink", "replays", "errors"},
    "gpu.nvlink": {
        "no_answer", "inactive", "switch", "no_bridge", "slow", "errors", "fabric", "fabric_health", "clique",
        "domains", "imex",
    },
    "gpu.topology": {
        "no_answer", "no_p2p", "one_way", "nvlink_unused", "layout", "far_nic", "far_cpus", "affinity", "acs", "iommu",
        "patched", "small_bar",
    },
    "gpu.compute": {
        "wrong_product", "wrong_copy", "unstable", "corrupt", "different_bits", "device_error", "slow", "below_own",
    },
    "gpu.released": {
        "no_answer", "memory", "process", "shm", "uncorrected", "corrected", "recovery", "throttled",
        "pcie_errors", "nvlink_errors",
    },
    "comm.init": {
        "late_rank", "wrong_sum", "driver", "duplicate_gpu", "fabric_manager", "gpu_failed", "imex", "memlock",
        "no_interface", "open_files", "plugin", "rdma", "shared_memory", "unreachable", "versions",
    },
    "comm.transports": {
        "gdr_off", "nvls_off", "p2p_off", "plugin", "shm_off", "socket", "split_node", "differs", "versions",
    },
    "comm.all_reduce": {"below_expected", "late_rank", "late_once", "slower_than_baseline", "too_slow", "wrong_result"},
    "comm.all_gather": COLLECTIVE,
    "comm.reduce_scatter": COLLECTIVE,
    "comm.all_to_all": COLLECTIVE,
    "comm.broadcast": COLLECTIVE,
    "comm.send_recv": COLLECTIVE,
    "comm.rails": {
        "slow_link", "slow_node", "slow_rail", "slow_rank", "slow_together", "slower_than_baseline", "slow_once",
    },
    "comm.nodes": {"slow_gpu", "slow_node", "slow_pair", "slower_of_two", "slow_once"},
    "comm.paths": {"broken", "slow", "not_timed"},
    "comm.pairs": {
        "slow_link", "slow_node", "slow_rail", "slow_rank", "slow_sides", "slower_than_baseline", "slow_once",
    },
    "train.alone": {"differs_from_itself", "wrong_alone", "not_finite", "different_bits"},
    "train.ddp": PARITY,
    "train.fsdp2": PARITY,
    "train.fsdp": PARITY | {"not_run"},
    "train.tp": MODEL_PARALLEL,
    "train.pp": MODEL_PARALLEL | {"not_run"},
    "train.hybrid": MODEL_PARALLEL,
    "train.compile": PARITY | {"not_compiled"},
    "train.expert": PARITY,
    "train.model": PARITY | {
        "user_error", "wrong_return", "wrong_model", "wrong_batch", "wrong_loss", "sum_for_mean", "refused",
        "different_models", "different_batches", "different_weights", "unused", "batch_norm", "not_a_mean",
        "dropout", "few_rows", "left_out", "random_numbers", "synthetic", "smaller", "wrong_plan", "not_run", "untied",
        "buffers_by_rank", "forward_writes", "masks_differ", "masks_repeat", "other_buffers", "other_loss",
        "unequal_rows", "wrong_gradient",
    },
    "train.speed": {
        "data_bound", "fewer_cores", "slow_link", "slow_path", "slower_than_one", "stalls", "straggler", "wont_fit",
        "not_timed",
    },
    "train.checkpoint": {
        "unusable", "no_room", "not_shared", "unsafe", "no_answer", "not_removed", "slow_node", "damaged", "refused",
        "corrupts", "not_made",
        "wrong_weights", "wrong_optimizer", "lost_progress", "lost_random", "untied", "drift", "no_dcp",
    },
    "data.sampler": {
        "same_samples", "batch_sizes", "content", "dropped", "length", "never_seen", "no_batches", "not_proven",
        "different_loaders", "different_seeds", "overlap", "padded", "other_ranks_print", "same_order",
        "set_epoch_ignored", "stuck", "unequal_batches", "user_error", "workers_repeat", "other_ranks_write",
        "wrong_data_parallel", "wrong_global_batch", "wrong_replicas", "wrong_return",
    },
    "data.seeds": {
        "dropout_repeats", "epochs_repeat", "not_seen", "ranks_repeat", "some_differ", "weights_differ",
        "workers_repeat",
    },
    "data.resume": {
        "epoch_reset", "skipped_batches", "next_epoch", "order_changed", "refused", "repeated", "second_resume",
        "unseeded", "workers_change_order", "not_compared",
    },
}  # fmt: skip
"""Hooks and dashboards rely on these names. Add freely; a rename or a removal needs an alias."""
ENGINES_OWN = {"timed_out", "crashed", "lost", "raised", "bad_facts", "desync", "no_process"}


def built_in() -> list[registry.Check]:
    sources = registry.sources()
    return [registry.load(sources[id_]) for id_ in registry.BUILT_IN]


def test_ids_and_codes_are_frozen() -> None:
    assert {check.id: set(check.codes) for check in built_in()} == IDS_AND_CODES
    assert set(finding.OWN_SLUGS) == ENGINES_OWN


@pytest.mark.parametrize("name", ["fresh", "last", "judges_failures"])
def test_a_plan_says_yes_or_no(name: str) -> None:
    module = ModuleType("broken")
    vars(module).update(PLAN=Plan(Scope.RANK, Level.QUICK, **{name: "yes"}), measure=dict, judge=dict)  # type: ignore[arg-type]
    with pytest.raises(BrokenCheck, match=f"PLAN.{name} is 'yes', expected True or False"):
        registry.describe(Source("plugin.broken", "file"), module)


def test_a_setting_is_told_as_it_is_given() -> None:
    assert registry.how_to_set("train.model.model") == "--model MODULE:NAME"
    assert registry.how_to_set("train.checkpoint.dir") == "--checkpoint DIR"
    assert registry.how_to_set("comm.init.slow_s") == "--set comm.init.slow_s=VALUE"


def test_built_in_checks_are_listed_in_order_without_repetition() -> None:
    assert list(registry.sources())[: len(registry.BUILT_IN)] == list(registry.BUILT_IN)
    assert len(set(registry.BUILT_IN)) == len(registry.BUILT_IN)


def test_built_in_checks_depend_on_earlier_ones_only() -> None:
    for place, check in enumerate(built_in()):
        earlier = {*registry.BUILT_IN[:place], "preflight.strangers"}
        assert {*check.plan.after} <= earlier, check.id


def test_quick_checks_need_quick_checks_only() -> None:
    quick = {check.id for check in built_in() if check.plan.level is Level.QUICK}
    for check in built_in():
        assert check.id not in quick or set(check.plan.ids(After.NEEDS)) <= quick


def test_every_check_has_a_title_and_every_option_a_help() -> None:
    for check in built_in():
        assert check.title.endswith("."), check.id
        assert all(option.help for option in check.options.values()), check.id
        assert all(code.meaning and code.fix for code in check.codes.values()), check.id


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("comm.al_reduce", "; did you mean comm.all_reduce?"),
        ("comm.initt", "; did you mean comm.init?"),
        ("weather", f"; known are {', '.join(sorted(registry.BUILT_IN))}"),
    ],
)
def test_near_misses_are_named(word: str, says: str) -> None:
    assert errors.near_misses(word, reversed(registry.BUILT_IN)) == says


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert errors.near_misses("a", []) == ""


# Plugins


def _of_parts(parts: object) -> ModuleType:
    module = ModuleType("checked")
    vars(module).update(PLAN=Plan(Scope.NODE, Level.QUICK), measure=len, judge=len, PARTS=parts)
    return module


def _part(**constants: object) -> ModuleType:
    part = ModuleType("part")
    vars(part).update(constants)
    return part


def test_the_parts_of_a_check_hold_codes_and_options_of_it() -> None:
    slow, limit = Code("Slow.", fix="Wait."), option(float, 1.0, "seconds")
    parts = _part(SLOW=slow), _part(SLOW=slow, LIMIT_S=limit, other=limit)
    check = registry.describe(Source("plugin.x", "file"), _of_parts(parts))
    assert (check.codes, check.options) == ({"slow": slow}, {"limit_s": limit})
    assert check.code_id(slow) == "plugin.x.slow"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (_part(), r"PARTS is <module 'part'>, expected a tuple of modules"),
        (("part",), r"PARTS is \('part',\), expected a tuple of modules"),
        ((_part(SLOW=Code("A.", fix="")), _part(SLOW=Code("B.", fix=""))), "two of its PARTS define a different SLOW"),
    ],
)
def test_what_is_no_tuple_of_unambiguous_parts_breaks_the_check(parts: object, why: str) -> None:
    with pytest.raises(BrokenCheck, match=why):
        registry.describe(Source("plugin.x", "file"), _of_parts(parts))


def test_a_plugin_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk.py").write_text("")
    monkeypatch.chdir(tmp_path)
    expected = Source("plugin.disk", "file", str(tmp_path / "disk.py"))
    assert registry.plugin_source("disk.py") == expected
    assert registry.plugin_source(str(tmp_path / "disk.py")) == expected


@pytest.mark.parametrize(("name", "id_"), [("disk", "plugin.disk"), ("site.checks.disk", "plugin.disk")])
def test_a_plugin_is_a_module(name: str, id_: str) -> None:
    assert registry.plugin_source(name) == Source(id_, "module", name)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("gone.py", "--plugin gone.py: there is no such file"),
        ("no/such/place", "--plugin no/such/place: there is no such file"),
        ("a b", "--plugin a b: neither a module's name nor a .py file"),
        ("a..b", "--plugin a..b: neither a module's name nor a .py file"),
        ("", "--plugin : neither a module's name nor a .py file"),
    ],
)
def test_a_plugin_that_is_neither_is_a_usage_error(argument: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        registry.plugin_source(argument)
    assert str(error.value) == says


def test_plugins_come_after_built_in_checks() -> None:
    found = registry.sources(["site.disk"])
    assert list(found)[-1] == "plugin.disk"
    assert found["env.launch"].kind == "builtin"


@pytest.fixture
def entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with two entry points, installed for this test."""
    info = tmp_path / "site_checks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-checks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{entry_points.GROUP}]\nsite.weka = site_weka:check\nenv.launch = site_weka\n"
    )
    (tmp_path / "site_weka.py").write_text(SOUND)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("site_weka", None)


@pytest.mark.usefixtures("entry_point")
def test_an_entry_point_is_a_check() -> None:
    found = registry.sources()
    assert found["site.weka"] == Source("site.weka", "entry_point", "site_weka:check")
    check = registry.load(found["site.weka"])
    assert (check.id, check.title) == ("site.weka", "A disk that answers.")


def test_an_entry_point_in_an_archive_is_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "site_checks.zip", "w") as archive:
        archive.writestr("site_checks-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: site-checks\nVersion: 1\n")
        archive.writestr("site_checks-1.0.dist-info/entry_points.txt", f"[{entry_points.GROUP}]\nsite.zip = site_zip\n")
    monkeypatch.syspath_prepend(tmp_path / "site_checks.zip")
    assert registry.sources()["site.zip"] == Source("site.zip", "entry_point", "site_zip")


@pytest.mark.usefixtures("entry_point")
def test_an_entry_point_cannot_take_the_place_of_a_built_in_check() -> None:
    assert registry.sources()["env.launch"].kind == "builtin"


SOUND = '''"""A disk that answers.

More about it.
"""
from preflight.check import After, Code, Level, Plan, Scope, option
PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=lambda job: 2.0 * job.world_size)
LEAST_GB = option(int, 10, "least free space")
FULL = Code("A disk is full.", fix="Empty {device}.")
def measure(ctx): return {}
def judge(facts, run): return iter(())
'''


def written(folder: Path, text: str, name: str = "disk") -> Source:
    path = folder / f"{name}.py"
    path.write_text(text)
    return registry.plugin_source(str(path))


def test_a_file_is_loaded_with_its_options_and_codes(tmp_path: Path) -> None:
    check = registry.load(written(tmp_path, SOUND))
    assert (check.id, check.title) == ("plugin.disk", "A disk that answers.")
    assert list(check.options) == ["least_gb"] and list(check.codes) == ["full"]
    assert check.code_id(check.codes["full"]) == "plugin.disk.full"


def test_a_check_without_a_docstring_is_called_by_its_id(tmp_path: Path) -> None:
    assert registry.load(written(tmp_path, SOUND.partition('"""\n')[2])).title == "plugin.disk"


def test_a_module_is_found_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_disk.py").write_text(SOUND)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    assert registry.load(registry.plugin_source("my_own_disk")).id == "plugin.my_own_disk"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no PLAN = Plan(...)"),
        ("\nPLAN = {}", "it has no PLAN = Plan(...) (disk.py line 2)"),
        (SOUND.replace("def measure", "def mesure"), "it has no function measure()"),
        (SOUND.replace("def judge", "def juge"), "it has no function judge()"),
        (SOUND.replace("FULL =", "CRASHED ="), "the code crashed belongs to the engine; rename it (disk.py line 8)"),
    ],
)
def test_a_broken_check_says_what_it_lacks(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenCheck) as error:
        registry.load(written(tmp_path, text))
    assert str(error.value) == says


PLAN_AT = "(disk.py line 6)"


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("'nod', Level.QUICK", "PLAN.scope is 'nod', expected node, rank or world"),
        ("None, Level.QUICK", "PLAN.scope is None, expected node, rank or world"),
        ("Scope.NODE, 'fast'", "PLAN.level is 'fast', expected quick, standard or full"),
        ("Scope.NODE, Level.QUICK, deadline_s='5'", "PLAN.deadline_s is '5', expected a number of seconds above 0"),
        ("Scope.NODE, Level.QUICK, deadline_s=0", "PLAN.deadline_s is 0, expected a number of seconds above 0"),
        ("Scope.NODE, Level.QUICK, deadline_s=True", "PLAN.deadline_s is True, expected a number of seconds above 0"),
        ("Scope.NODE, Level.QUICK, estimate_s=None", "PLAN.estimate_s is None, expected a number of seconds above 0"),
        ("Scope.NODE, Level.QUICK, facts_version='1'", "PLAN.facts_version is '1', expected a whole number"),
        ("Scope.NODE, Level.QUICK, fresh=1", "PLAN.fresh is 1, expected True or False"),
        (
            "Scope.NODE, Level.QUICK, after=('env.launch',)",
            "PLAN.after is ('env.launch',), expected {id: After.NEEDS} or the like",
        ),
        (
            "Scope.NODE, Level.QUICK, after={'env.launch': 'needs'}",
            "PLAN.after is {'env.launch': 'needs'}, expected {id: After.NEEDS} or the like",
        ),
        ("Scope.NODE, lambda asked: 'fast'", "PLAN.level is 'fast', expected quick, standard or full"),
        ("Scope.NODE, None", "PLAN.level is None, expected quick, standard or full"),
        ("Scope.NODE, Level.QUICK, fresh=lambda asked: 1", "PLAN.fresh is 1, expected True or False"),
        (
            "Scope.NODE, lambda asked: asked.sets(option(int, 1, ''))",
            "PLAN asks for an option that is not a constant of the module",
        ),
    ],
)
def test_a_wrong_field_of_a_plan_is_named_with_its_line(field: str, says: str, tmp_path: Path) -> None:
    text = re.sub(r"PLAN = .*", f"PLAN = Plan({field})", SOUND)
    with pytest.raises(BrokenCheck) as error:
        registry.load(written(tmp_path, text))
    assert str(error.value) == f"{says} {PLAN_AT}"


def test_names_of_scope_and_level_are_understood(tmp_path: Path) -> None:
    text = re.sub(r"PLAN = .*", "PLAN = Plan('rank', 'full', 3)", SOUND)
    plan = registry.load(written(tmp_path, text)).plan
    assert plan == Plan(Scope.RANK, Level.FULL, 3)
    assert plan.scope is Scope.RANK and plan.level is Level.FULL


def test_an_id_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    plan = "PLAN = Plan(Scope.RANK, Level.FULL, after={'env.lunch': After.UNLESS_FAILED})"
    text = re.sub(r"PLAN = .*", plan, SOUND).replace("import Code", "import After, Code")
    check = registry.load(written(tmp_path, text))
    with pytest.raises(BrokenCheck) as error:
        validation.refuse_unknown_ids(check.module, check.plan, registry.sources())
    assert str(error.value) == f"PLAN.after names env.lunch, which is not a check; did you mean env.launch? {PLAN_AT}"
    validation.refuse_unknown_ids(check.module, check.plan, {"env.lunch"})


@pytest.mark.parametrize("slug", sorted(ENGINES_OWN))
def test_no_check_may_use_a_code_of_the_engine(slug: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenCheck, match=f"the code {slug} belongs to the engine"):
        registry.load(written(tmp_path, SOUND.replace("FULL =", f"{slug.upper()} =")))


def test_what_a_module_raises_comes_out(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        registry.load(written(tmp_path, "1 / 0"))


def test_the_code_of_another_module_is_refused(tmp_path: Path) -> None:
    check = registry.load(written(tmp_path, SOUND))
    with pytest.raises(BrokenCheck, match=r"a Code that is not a constant of the module: Elsewhere\."):
        check.code_id(Code("Elsewhere.", fix="none"))


# Options


def color(text: str) -> str:
    if text not in ("red", "green"):
        raise ValueError("red or green is expected")
    return text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "12", 12),
        (int, "-1", -1),
        (float, "2.5", 2.5),
        (str, "", ""),
        (str, "a=b", "a=b"),
        (color, "red", "red"),
        *[(bool, text, True) for text in ("true", "True", "yes", "1", "on", "ON")],
        *[(bool, text, False) for text in ("false", "FALSE", "no", "0", "off")],
    ],
)
def test_an_option_is_read_as_its_type(kind: Any, text: str, value: object) -> None:
    read = registry.parse_option("a.b.c", option(kind, None, "help"), text)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (int, "many", "--set a.b.c=many: not a valid int"),
        (int, "1.5", "--set a.b.c=1.5: not a valid int"),
        (float, "", "--set a.b.c=: not a valid float"),
        (bool, "maybe", "--set a.b.c=maybe: expected true or false"),
        (bool, "", "--set a.b.c=: expected true or false"),
        (color, "blue", "--set a.b.c=blue: red or green is expected"),
    ],
)
def test_an_option_of_the_wrong_type_is_a_usage_error(kind: Any, text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        registry.parse_option("a.b.c", option(kind, None, "help"), text)
    assert str(error.value) == says


def described(**constants: object) -> registry.Check:
    module = ModuleType("made")
    plan = Plan(Scope.RANK, Level.QUICK)
    vars(module).update({"PLAN": plan, "measure": dict, "judge": list, **constants})
    return registry.describe(Source("plugin.made", "module", "made"), module)


LEAST: Option[int] = option(int, 10, "least free space")


def test_a_check_reads_its_own_settings_only() -> None:
    check = described(LEAST=LEAST)
    assert check.values({"plugin.made.least": "3", "plugin.other.least": "many"}) == {LEAST: 3}
    assert check.values({}) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plugin.made.leest", "--set plugin.made.leest: there is no such option; did you mean plugin.made.least?"),
        ("plugin.made.LEAST", "--set plugin.made.LEAST: there is no such option; did you mean plugin.made.least?"),
        ("plugin.made.", "--set plugin.made.: there is no such option; did you mean plugin.made.least?"),
    ],
)
def test_an_unknown_option_is_a_usage_error_with_near_misses(name: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        registry.unknown_settings(described(LEAST=LEAST), {name: "1"})
    assert str(error.value) == says


def test_a_check_without_options_says_so() -> None:
    with pytest.raises(UsageError, match=r"there is no such option; plugin\.made has no options"):
        registry.unknown_settings(described(), {"plugin.made.least": "1"})


def test_settings_of_other_checks_are_none_of_its_business() -> None:
    registry.unknown_settings(described(LEAST=LEAST), {"plugin.other.leest": "1", "plugin.made.least": "4"})


def test_a_setting_of_the_wrong_type_is_found_before_the_run() -> None:
    with pytest.raises(UsageError, match="not a valid int"):
        registry.unknown_settings(described(LEAST=LEAST), {"plugin.made.least": "many"})


# Specs


def test_a_deadline_may_depend_on_the_job(tmp_path: Path) -> None:
    check = registry.load(written(tmp_path, SOUND))
    assert registry.spec_of(check, made.job(4), {}).deadline_s == 8.0
    assert registry.spec_of(described(), Job("env", 1, "gloo", ()), {}).deadline_s == 20.0


def test_what_cannot_apply_to_a_backend_needs_none_of_the_runs_time() -> None:
    """Otherwise a run that is short of time would end with an error for a check that has nothing to do there."""
    paths = registry.load(registry.sources()["comm.paths"])
    on_gloo, on_nccl = (registry.spec_of(paths, made.job(2, backend=backend), {}).plan for backend in ("gloo", "nccl"))
    assert on_gloo.estimate_s <= 5.0 and on_nccl.estimate_s == paths.plan.estimate_s


def test_a_spec_comes_back_from_json(tmp_path: Path) -> None:
    spec = registry.spec_of(registry.load(written(tmp_path, SOUND)), made.job(4), {})
    after = {"env.launch": After.NEEDS | After.READS}
    spec = replace(spec, plan=replace(spec.plan, after=after), left_out="give --data")
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.plan.scope is Scope.NODE and again.plan.level is Level.QUICK and again.id == "plugin.disk"


def test_two_plugins_of_one_name_are_a_usage_error(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("")
    with pytest.raises(errors.UsageError, match=r"there is a check plugin\.x already"):
        registry.sources([str(tmp_path / "a" / "x.py"), str(tmp_path / "b" / "x.py")])


def test_a_file_with_a_space_in_its_name_has_an_id_that_the_schema_takes(tmp_path: Path) -> None:
    (tmp_path / "my check.py").write_text("")
    assert registry.plugin_source(str(tmp_path / "my check.py")).id == "plugin.my_check"


def test_an_option_that_is_no_finite_number_is_a_usage_error() -> None:
    with pytest.raises(errors.UsageError, match="expected a finite number"):
        registry.parse_option("a.b.c", Option(float, 1.0, ""), "nan")


@pytest.mark.parametrize("deadline_s", ["0", "-1.0", "1e6", "None"])
def test_a_deadline_is_a_number_of_seconds_above_none(deadline_s: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenCheck, match=r"PLAN.deadline_s is .*, expected a number of seconds above 0"):
        registry.load(written(tmp_path, SOUND.replace("lambda job: 2.0 * job.world_size", deadline_s)))
