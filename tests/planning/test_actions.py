"""What an operator does about each code: reviewed one by one, and changed on purpose only."""

import pytest

from preflight.check import Action, Code, Finding
from preflight.checkpoint import codes as checkpoint_codes
from preflight.core.action import engine_action
from preflight.core.finding import OWN_SLUGS, RUN_SLUGS, Reported
from preflight.failure_book.book import book
from preflight.planning import describe, registry
from preflight.rendezvous import codes as rendezvous_codes
from preflight.results import console, formats
from preflight.resume import codes as resume_codes
from tests.made import finding, made_report, result

ACTIONS = {
    Action.RESTART_JOB: {
        "env.launch": {"late"},
        "comm.init": {"late_rank"},
        "comm.rails": {"slow_node", "slow_rank"},
        "comm.nodes": {"slow_gpu", "slow_node", "slow_pair"},
        "train.speed": {"slow_link"},
        "comm.pairs": {"slow_node", "slow_rank"},
    },
    Action.RESET_GPU: {
        "node.kernel": {"recovery", "sxid", "xid"},
        "gpu.health": {"recovery", "spins", "uncorrected"},
        "gpu.nvlink": {"fabric_health", "inactive", "slow"},
        "gpu.topology": {"nvlink_unused"},
        "gpu.compute": {"device_error"},
        "comm.init": {"gpu_failed"},
        "gpu.released": {"memory", "recovery", "uncorrected"},
    },
    Action.REBOOT: {
        "node.kernel": {"driver", "hung", "kernel_bug", "nic"},
        "gpu.inventory": {"count", "missing", "no_answer"},
        "gpu.health": {"no_answer"},
        "gpu.pcie": {"no_answer", "uplink"},
        "gpu.nvlink": {"no_answer", "switch"},
        "gpu.topology": {"no_answer"},
        "net.rdma": {"no_answer"},
        "net.efa": {"no_answer"},
        "gpu.released": {"no_answer"},
    },
    Action.REPLACE: {
        "node.kernel": {"aer", "disk", "link_down", "memory_error", "throttled"},
        "gpu.inventory": {"memory"},
        "gpu.health": {"hot", "inforom", "remapped", "retired", "sram", "throttled"},
        "gpu.pcie": {"errors", "generation", "replays", "width"},
        "gpu.nvlink": {"errors"},
        "gpu.topology": {"far_nic"},
        "net.interfaces": {"speed"},
        "net.rdma": {"down", "missing", "pcie", "slow"},
        "gpu.compute": {"below_own", "corrupt", "unstable", "wrong_copy", "wrong_product"},
        "comm.init": {"wrong_sum"},
        "comm.all_reduce": {"wrong_result"},
        "comm.all_gather": {"wrong_result"},
        "comm.reduce_scatter": {"wrong_result"},
        "comm.all_to_all": {"wrong_result"},
        "comm.broadcast": {"wrong_result"},
        "comm.send_recv": {"wrong_result"},
        "train.alone": {"differs_from_itself", "wrong_alone"},
        "net.rdma_errors": {"link", "went_down"},
        "net.interface_errors": {"damaged", "went_down"},
        "gpu.released": {"nvlink_errors", "pcie_errors", "throttled"},
    },
    Action.NONE: {
        "env.software": {"paths"},
        "node.kernel": {"file_server"},
        "node.storage": {"no_answer", "node_local", "slow"},
        "gpu.health": {"corrected"},
        "gpu.nvlink": {"domains", "no_bridge"},
        "net.rendezvous": {"slow_connect"},
        "net.mesh": {"asymmetric", "high_latency", "loss", "silent", "slow", "untried"},
        "gpu.compute": {"slow"},
        "comm.all_reduce": {"below_expected", "late_once", "late_rank", "slower_than_baseline", "too_slow"},
        "comm.all_gather": {"below_expected", "slower_than_baseline", "too_slow"},
        "comm.reduce_scatter": {"below_expected", "slower_than_baseline", "too_slow"},
        "comm.all_to_all": {"below_expected", "slower_than_baseline", "too_slow"},
        "comm.broadcast": {"below_expected", "slower_than_baseline", "too_slow"},
        "comm.send_recv": {"below_expected", "slower_than_baseline", "too_slow"},
        "comm.rails": {"slow_link", "slow_once", "slow_rail", "slow_together", "slower_than_baseline"},
        "comm.nodes": {"slow_once", "slower_of_two"},
        "comm.pairs": {"slow_link", "slow_once", "slow_rail", "slow_sides", "slower_than_baseline"},
        "train.alone": {"not_finite"},
        "train.ddp": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "train.fsdp2": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "train.fsdp": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "train.tp": {"not_finite", "out_of_sync", "wrong_start", "wrong_step"},
        "train.pp": {"not_finite", "out_of_sync", "wrong_start", "wrong_step"},
        "train.hybrid": {"not_finite", "out_of_sync", "wrong_start", "wrong_step"},
        "train.compile": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "train.expert": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "net.rdma_errors": {"retransmits"},
        "net.interface_errors": {"checksum", "retransmits"},
        "train.model": {"not_finite", "out_of_sync", "wrong_exchange", "wrong_start", "wrong_step"},
        "train.speed": {"slow_path", "stalls", "straggler"},
        "train.checkpoint": {"corrupts", "no_answer", "slow_node"},
        "gpu.released": {"corrected"},
    },
}
"""All other codes of checks: fix_config."""
CAUSES = {
    Action.REPLACE: {"gpu_hw_fault", "ib_fabric_error", "node_lost"},
    Action.RESTART_JOB: {"external_signal", "stray_connection"},
    Action.REBOOT: {"node_fault"},
    Action.NONE: {
        "app_crash",
        "diverged",
        "launch_failed",
        "remote_peer_failure",
        "service",
        "slow_rank_timeout",
        "storage",
        "unknown",
    },
}
"""Of preflight explain; all others: fix_config."""
BROKEN = Code("It is broken.", fix="Replace {gpu}.", action=Action.REPLACE)


def test_each_code_of_a_check_asks_for_what_was_decided() -> None:
    found: dict[str, dict[str, set[str]]] = {action: {} for action in ACTIONS}
    for source in registry.sources().values():
        check = registry.load(source)
        for slug, code in check.codes.items():
            if code.action is not Action.FIX_CONFIG:
                found[code.action].setdefault(check.id, set()).add(slug)
    assert found == ACTIONS


def test_each_cause_of_a_failed_job_asks_for_what_was_decided() -> None:
    found: dict[str, set[str]] = {}
    for slug, cause in book().causes.items():
        if cause.action is not Action.FIX_CONFIG:
            found.setdefault(cause.action, set()).add(slug)
    assert found == CAUSES


def test_commands_find_what_a_person_sets_right() -> None:
    known = {**rendezvous_codes.by_slug(), **checkpoint_codes.by_slug(), **resume_codes.by_slug()}
    assert {code.action for code in known.values()} == {Action.FIX_CONFIG}


@pytest.mark.parametrize("slug", [*OWN_SLUGS, *RUN_SLUGS])
def test_what_was_not_measured_is_no_nodes_fault(slug: str) -> None:
    assert engine_action("error", f"gpu.health.{slug}") is Action.NONE
    assert engine_action("fail", f"preflight.run.{slug}") not in (Action.RESET_GPU, Action.REPLACE)


ASKED = [
    (BROKEN.fail("it is", node="a", gpu=3), "replace"),
    (BROKEN.warn("it is", node="a", action=Action.RESET_GPU), "reset_gpu"),
    (BROKEN.info("it was", node="a"), "none"),
    (BROKEN.fail("nobody can be named"), "none"),
    (Code("A plugin's.", fix="See.").fail("it is"), "fix_config"),
]


@pytest.mark.parametrize(("made", "action"), ASKED)
def test_a_finding_carries_its_action(made: Finding, action: str) -> None:
    assert made.action == action


def test_the_report_and_its_readers_have_the_action() -> None:
    told = finding(node="node-0", action="reboot")
    report = made_report(result(told))
    assert report.checks[0].findings[0].action == "reboot"
    assert Reported.from_json(told.to_json()) == told
    assert console.finding_lines(told)[-1].endswith("fix: mend it (action: reboot)")
    assert "mend it (action: reboot)" in formats.markdown(report)
    assert "<code>reboot</code>" in formats.TEXTS["report.html"](report)


def test_a_report_of_an_older_preflight_has_none() -> None:
    old = finding().to_json()
    assert "action" not in old and Reported.from_json(old).action == ""


def test_describe_tells_it() -> None:
    check = registry.load(registry.sources()["gpu.pcie"])
    assert "  action: replace" in describe.page(check, "gpu.pcie.width").splitlines()
    assert describe.page(check, "gpu.pcie").count("    action: ") == len(check.codes)
