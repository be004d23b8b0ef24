"""What all nodes of a group have is one finding."""

from typing import Any

from preflight.core.finding import Reported
from preflight.core.groups import Group
from preflight.results import console
from preflight.results.groups import fold
from preflight.results.report_nodes import bad_nodes, good_nodes
from tests import made

JOB = made.job(*[2] * 8)


def group(name: str, *numbers: int) -> Group:
    return Group(name, tuple(f"node-{number}" for number in numbers))


RACKS = [group("rack 7", 0, 1, 2), group("rack 8", 3, 4, 5, 6, 7)]


def on_nodes(*numbers: int, **more: Any) -> list[Reported]:
    return [
        made.finding(message=f"it is {number}", node=f"node-{number}", fix=f"On node-{number}: look", **more)
        for number in numbers
    ]


def wheres(found: list[Reported]) -> list[dict[str, Any]]:
    return [dict(finding.where) for finding in found]


def test_all_of_a_rack_are_one_finding() -> None:
    (found,) = fold(on_nodes(0, 1, 2, noticed_by="0-3,9"), RACKS, JOB)
    assert found.where == {"group": "rack 7"} and found.nodes == ["node-0", "node-1", "node-2"] and not found.ranks
    assert found.message == (
        "all 3 nodes of rack 7 (node-0, node-1, node-2), and no other, have this; on node-0: it is 0"
    )
    assert found.fix == "Look first for what the nodes of rack 7 share. On node-0: look" and found.noticed_by == "9"
    assert console.culprit(found) == "rack 7 (3 nodes)"


def test_all_ranks_and_gpus_of_a_rack_are_one_finding() -> None:
    ranks = [made.finding(node=f"node-{rank // 2}", rank=rank, variable="X") for rank in range(6)]
    (found,) = fold(ranks, RACKS, JOB)
    assert found.where == {"group": "rack 7", "variable": "X"} and found.ranks == "0-5"
    gpus = [made.finding(node=f"node-{number}", gpu=gpu) for number in range(3) for gpu in range(8)]
    assert wheres(fold(gpus, RACKS, JOB)) == [{"group": "rack 7"}]


def test_a_rack_of_which_a_node_is_sound_is_not_named() -> None:
    found = on_nodes(0, 1)
    assert fold(found, RACKS, JOB) == found


def test_nearly_all_of_a_rack_are_one_finding_that_says_who_is_spared() -> None:
    job = made.job(*[2] * 64)
    racks = [group("rack 7", *range(32)), group("rack 8", *range(32, 64)), group("room a", *range(34))]
    found = on_nodes(*range(12), *range(13, 32), noticed_by="0,24-25")
    (one,) = fold(found, racks, job)
    assert one.message == "31 of 32 nodes of rack 7 (all but node-12), and no other, have this; on node-0: it is 0"
    assert one.where == {"group": "rack 7"} and one.noticed_by == "24-25"
    assert one.nodes == [f"node-{number}" for number in range(32) if number != 12]
    assert wheres(fold(on_nodes(*range(32)), racks, job)) == [{"group": "rack 7"}], (
        "all of it, not nearly all of the room"
    )
    few = on_nodes(*range(27))
    assert fold(few, racks[:2], job) == few, "5 of 32 are without it"


def test_a_group_is_not_named_where_most_others_have_it_too() -> None:
    groups = [group("rack 1", 0, 1), group("rack 2", 2, 3, 4), group("rack 3", 5, 6, 7)]
    for numbers in ((0, 1, 2, 3, 5), range(8), (2, 3, 4, 0, 1, 5, 6, 7)):
        found = on_nodes(*numbers)
        assert fold(found, groups, JOB) == found
    assert wheres(fold(on_nodes(0, 1, 2), groups, JOB)) == [{"group": "rack 1"}, {"node": "node-2"}]


def test_the_largest_group_is_named_and_of_equal_ones_the_first() -> None:
    groups = [group("rack 1", 0, 1), group("rack 2", 2, 3), group("switch s", 0, 1), group("room a", 0, 1, 2, 3)]
    groups.append(group("site x", *range(8)))
    assert wheres(fold(on_nodes(0, 1, 2, 3), groups, JOB)) == [{"group": "room a"}]
    assert wheres(fold(on_nodes(1, 0), groups, JOB)) == [{"group": "rack 1"}]


def test_other_codes_severities_and_waivers_are_kept_apart() -> None:
    found = [*on_nodes(0), *on_nodes(1, code="plugin.made.other"), *on_nodes(2, severity="warn")]
    assert fold(found, RACKS, JOB) == found
    both = [*on_nodes(0, 1, 2), *on_nodes(0, 1, 2, code="plugin.made.other")]
    assert [finding.code for finding in fold(both, RACKS, JOB)] == ["plugin.made.bad", "plugin.made.other"]


def test_a_report_has_the_group_and_its_nodes_are_bad() -> None:
    """The groups come from another check than the findings."""
    knows = made.result(check="plugin.knows", groups=tuple(RACKS))
    built = made.made_report(made.result(*on_nodes(0, 1, 2)), knows, on=JOB)
    (found,) = built.findings
    assert found.where == {"group": "rack 7"} and bad_nodes(built) == ["node-0", "node-1", "node-2"]
    assert good_nodes(built) == [f"node-{number}" for number in range(3, 8)]
    assert "rack 7 (3 nodes)" in "\n".join(console.ending(built, []))
