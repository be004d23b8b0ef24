import json

from preflight.core.job import Job, Node
from tests import made


def test_every_rank_has_its_node() -> None:
    job = made.job(2, 3)
    assert [job.node_of(rank).node for rank in range(5)] == ["node-0", "node-0", "node-1", "node-1", "node-1"]


def test_the_culprit_has_node_and_rank() -> None:
    assert made.job(2, 2).where(3) == {"node": "node-1", "rank": 3}


def test_a_rank_that_never_came_has_no_node() -> None:
    job = made.job(2, world_size=4)
    assert job.missing == (2, 3)
    assert job.where(3) == {"rank": 3}


def test_nobody_is_missing_from_a_complete_job() -> None:
    assert made.job(2, 2).missing == ()


def test_the_lowest_member_works_for_its_node() -> None:
    job = made.job(4, 4, 4)
    assert job.one_per_node(range(12)) == [0, 4, 8]
    assert job.one_per_node([7, 5, 3, 1]) == [1, 5]


def test_scattered_ranks_are_told_by_node() -> None:
    job = Job("mpi", 4, "gloo", (Node("a", 0, (0, 2)), Node("b", 1, (1, 3))))
    assert job.one_per_node([3, 2, 1]) == [1, 2]
    assert job.to_json()["nodes"][1]["ranks"] == "1,3"


def test_a_job_comes_back_from_json() -> None:
    for job in (made.job(2, 2), made.job(1), made.job(8, 8, backend="nccl", world_size=24)):
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_the_report_says_who_is_missing() -> None:
    assert made.job(2, world_size=5).to_json()["missing_ranks"] == "2-4"
