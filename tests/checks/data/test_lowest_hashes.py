import json
from collections import Counter

import pytest
import torch

from preflight.checks.data.sampler import epoch
from preflight.checks.data.sampler.epoch import mixed, share, shown

EDGES = [0, 1, -1, 2**31, 2**40, 2**63 - 1, -(2**63), 123456789]


def tensor(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


# Hashes


def test_it_is_splitmix64() -> None:
    """The first numbers of that generator from these seeds, as its authors' program prints them."""
    assert mixed(0) == 0xE220A8397B1DCDAF
    assert mixed(1234567) == 6457827717110365317


def test_torch_hashes_as_python_does() -> None:
    hashed = epoch._mixed(tensor(*EDGES)).tolist()
    assert [word % 2**64 for word in hashed] == [mixed(id_) for id_ in EDGES]


def test_no_two_ids_have_the_same_hash() -> None:
    """Each step can be undone."""

    def undone(word: int) -> int:
        for shift, factor in [(31, 1), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)]:
            word = word * pow(factor, -1, 2**64) % 2**64
            word ^= word >> shift ^ word >> 2 * shift
        return (word - 0x9E3779B97F4A7C15) % 2**64

    assert [undone(mixed(id_)) for id_ in EDGES] == [id_ % 2**64 for id_ in EDGES]


# What is shown


@pytest.mark.parametrize(("world", "ids"), [(1, 4096), (64, 4096), (1024, 256), (8192, 64)])
def test_large_worlds_show_fewer_samples_a_rank(world: int, ids: int) -> None:
    assert share(world) == ids


@pytest.mark.parametrize("loaders", [1, 2, 3, 10, 100])
def test_what_many_loaders_show_fits_into_the_facts_of_a_rank(loaders: int) -> None:
    """1 MiB for both epochs, of which a part is for all else."""
    ids = torch.arange(5000) * 1_844_674_407_370_955
    told = shown(ids, 4, loaders)
    assert 64 <= len(told) <= 4096
    assert 2 * loaders * len(json.dumps(told)) < 0.85 * 2**20


@pytest.mark.parametrize(
    ("ids", "kinds"),
    [(0, 1), (1, 1), (63, 10**9), (64, 10**9), (5000, 10**9), (5000, 300), (5000, 20), (70_000, 70), (70_000, 10**9)],
)
def test_those_with_the_lowest_hashes_are_shown(ids: int, kinds: int) -> None:
    """Also where they come many times, and over many chunks."""
    chosen = torch.randint(0, kinds, (ids,), generator=torch.Generator().manual_seed(ids + kinds))
    listed = chosen.tolist()
    times, first = Counter(listed), {id_: place for place, id_ in reversed(list(enumerate(listed)))}
    lowest = sorted(times, key=mixed)[: share(8192)]
    wanted = [{"id": id_, "place": first[id_], "times": times[id_]} for id_ in lowest]
    assert shown(chosen, 8192) == wanted


def test_what_two_ranks_share_is_shown_by_both() -> None:
    own = [range(60_000), range(40_000, 100_000)]
    told = [[index["id"] for index in shown(torch.tensor(ids), 1024)] for ids in own]
    common = min(mixed(ids[-1]) for ids in told)
    here, there = ({id_ for id_ in ids if mixed(id_) <= common} for ids in told)
    assert here & there == {id_ for id_ in here | there if 40_000 <= id_ < 60_000}
    assert len(here & there) > 30
