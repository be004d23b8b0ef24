"""Nodes by checks."""

from preflight.core.outcome import Outcome
from preflight.results.page import statuses
from tests import made


def test_nodes_that_are_alike_are_one_row_and_the_worst_stands_first() -> None:
    on = made.job(1, 1, 1, 1)
    table = statuses.build(
        made.made_report(
            made.result(made.finding("warn", node="node-2")),
            made.result(made.finding(rank=1), check="plugin.b"),
            on=on,
        )
    )
    assert [(kind.names, kind.statuses) for kind in table.kinds] == [
        ("node-1", ("pass", "fail")), ("node-2", ("warn", "pass")), ("node-[0,3]", ("pass", "pass")),
    ]  # fmt: skip
    assert table.letters() == ["PPWP", "PFPP"]


def test_who_could_not_measure_is_not_blamed_and_not_well() -> None:
    outcomes = {0: Outcome("measured"), 1: Outcome("timed_out", aborted=True), 2: Outcome("skipped", reason="no disk")}
    table = statuses.build(made.made_report(made.result(outcomes=outcomes), on=made.job(1, 1, 1)))
    assert table.columns == [["pass", "none", "skip"]]


def test_what_was_not_measured_is_a_skip_where_it_is() -> None:
    part = [made.finding("info", not_measured=True, node="node-1"), made.finding("info", not_measured=True)]
    table = statuses.build(made.made_report(made.result(*part), on=made.job(1, 1)))
    assert (table.columns, table.of_job) == ([["pass", "skip"]], ["skip"])


def test_a_finding_that_names_no_node_stands_apart_and_waived_ones_and_infos_nowhere() -> None:
    loose = made.result(made.finding(), made.finding("info", node="node-0"))
    table = statuses.build(
        made.made_report(loose, made.result(made.finding(peer_node="node-1", node="node-0"), check="p.q"))
    )
    assert table.of_job == ["fail", "pass"]
    assert table.columns == [["pass", "pass"], ["fail", "fail"]]
