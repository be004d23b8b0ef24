"""GPUs that the job does not use, and siblings on mixed nodes."""

from typing import Any

import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.gpu import health, inventory
from preflight.checks.gpu.shared.cards import Card, compare_cards
from preflight.checks.gpu.shared.unused_gpus import used_gpus
from tests import made
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_gpus import on_nodes

Facts = dict[int, dict[str, Any]]


def using(facts: Facts, wanted: str, *uuids: str, **more: Any) -> Facts:
    return {rank: {**of_rank, "wanted": wanted, "visible": list(uuids), **more} for rank, of_rank in facts.items()}


def other_models(facts: Facts) -> Facts:
    for of_rank in facts.values():
        of_rank["seen"]["gpus"]["0"]["name"] = "NVIDIA T400 4GB"
    return facts


ONE = ("GPU-0-1",)


@pytest.mark.parametrize(
    ("facts", "used"),
    [
        (made_gpus.inventory(2, gpus=4), {}),
        (using(made_gpus.inventory(2, gpus=4), "1", *ONE), {"node-0": {"GPU-0-1"}}),
        (using(made_gpus.inventory(2, gpus=4), "", names_none=""), {"node-0": set()}),
        (using(made_gpus.inventory(2, gpus=4), "GPU-0-9,GPU-0-1", names_none="GPU-0-9"), {}),
        (using(made_gpus.inventory(2, gpus=4), "MIG-1", "MIG-1"), {}),
        (using(other_models(made_gpus.inventory(2, gpus=4)), "1", *ONE), {}),
        (using(other_models(made_gpus.inventory(2, gpus=4)), "1", *ONE, order="PCI_BUS_ID"), {"node-0": {"GPU-0-1"}}),
        (using(other_models(made_gpus.inventory(2, gpus=4)), "GPU-0-1", *ONE), {"node-0": {"GPU-0-1"}}),
    ],
    ids=["all", "by number", "none", "one of them is lost", "instances", "unlike", "unlike, in order", "by UUID"],
)
def test_it_is_known_which_gpus_a_job_uses_or_not(facts: Facts, used: dict[str, set[str]]) -> None:
    assert used_gpus(facts, Run(made.job(len(facts)), tuple(facts), {})) == used


@pytest.mark.parametrize(("wanted", "severity"), [("1", "fail"), ("0", "warn")])
def test_a_sick_gpu_that_the_job_does_not_use_is_milder(wanted: str, severity: str) -> None:
    facts = using(made_gpus.inventory(1, gpus=4), wanted, f"GPU-0-{wanted}")
    trouble = made_gpus.trouble(1, "gpu.health", "lost", uuid="GPU-0-1")
    own = {0: {"look": made_gpus.look({}, troubles=[trouble]), "holders": {}}}
    (found,) = testing.judge(health, own, reads={"gpu.inventory": facts})
    assert found["severity"] == severity
    assert ("(a GPU that this job does not use)" in found["message"]) is (severity == "warn")


def test_ranks_that_see_their_own_gpu_only_are_told_apart() -> None:
    """srun --gpus-per-task: each calls its GPU number 0."""
    facts = made_gpus.inventory(2)
    for finding in facts.values():
        finding["seen"]["gpus"], finding["visible"], finding["confined"] = {}, ["silent 0"], True
        trouble = made_gpus.trouble(0, "gpu.inventory", hidden=True)
        finding["look"] = made_gpus.look({}, troubles=[trouble])
    found = testing.judge(inventory, facts, nodes=on_nodes(2), backend="nccl")
    assert [(finding["code"], finding["where"]) for finding in found] == [
        ("gpu.inventory.no_answer", {"node": "node-0", "rank": 0, "gpu": 0}),
        ("gpu.inventory.no_answer", {"node": "node-0", "rank": 1, "gpu": 0}),
    ]


def card(node: int, gpu: int) -> Card:
    return Card(f"node-{node}", gpu, f"GPU-{node}-{gpu}", "X", None, "")


def test_most_of_one_node_do_not_outvote_all_others() -> None:
    """5 of 8 GPUs of node-1 are wrong; the three that are as everywhere are not odd."""
    values = [(card(node, gpu), "old" if node == 1 and gpu < 5 else "new") for node in range(3) for gpu in range(8)]
    found = compare_cards(values)
    assert [(odd.card.node, odd.card.gpu) for odd in found.odd] == [("node-1", gpu) for gpu in range(5)]
    assert not any(odd.whole_node for odd in found.odd) and found.ties == []


def test_a_whole_node_is_odd_as_one() -> None:
    found = compare_cards((card(node, gpu), "old" if node == 1 else "new") for node in range(3) for gpu in range(8))
    assert [(odd.card.node, odd.whole_node, odd.share) for odd in found.odd] == [("node-1", True, "2 of 3 nodes")]


def test_two_halves_of_one_node_are_a_tie() -> None:
    found = compare_cards((card(0, gpu), gpu % 2) for gpu in range(4))
    assert found.odd == [] and found.ties == ["0 on GPU 0, 1 on GPU 1, 0 on GPU 2, 1 on GPU 3 of node-0"]


def test_errors_that_most_gpus_answer_with_are_the_drivers_way() -> None:
    inventories = made_gpus.inventory(1, gpus=4)
    uuids = [f"GPU-0-{gpu}" for gpu in range(4)]
    from tests.checks.gpu.test_health import healthy

    def judged(*odd: str) -> list[dict[str, Any]]:
        look = made_gpus.look(
            {uuid: healthy() for uuid in uuids}, notes={uuid: ["nvmlX: Unknown Error"] for uuid in odd}
        )
        return testing.judge(health, {0: {"look": look, "holders": {}}}, reads={"gpu.inventory": inventories})

    assert judged(*uuids) == judged() == []
    (found,) = judged("GPU-0-2")
    assert (found["severity"], found["code"], found["where"]["gpu"]) == ("warn", "gpu.health.no_answer", 2)
    assert "GPU 2 answers with errors: nvmlX: Unknown Error; expected values" in found["message"]
