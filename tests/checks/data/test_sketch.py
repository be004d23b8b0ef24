import json
import random
from collections import Counter

import pytest
import torch

from preflight.checks.data.sampler import sketch
from preflight.checks.data.sampler.sketch import Sketch, mixed, share, shown

EDGES = [0, 1, -1, 2**31, 2**40, 2**63 - 1, -(2**63), 123456789]


def tensor(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def decoded(of: Sketch) -> tuple[dict[int, int], list[int]]:
    found = of.decode()
    assert found.exact
    return found.again, found.missing


# Hashes


def test_it_is_splitmix64() -> None:
    """The first numbers of that generator from these seeds, as its authors' program prints them."""
    assert mixed(0) == 0xE220A8397B1DCDAF
    assert mixed(1234567) == 6457827717110365317


def test_torch_hashes_as_python_does() -> None:
    hashed = sketch._mixed(tensor(*EDGES)).tolist()
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
    told = [[one["id"] for one in shown(torch.tensor(ids), 1024)] for ids in own]
    common = min(mixed(ids[-1]) for ids in told)
    here, there = ({id_ for id_ in ids if mixed(id_) <= common} for ids in told)
    assert here & there == {id_ for id_ in here | there if 40_000 <= id_ < 60_000}
    assert len(here & there) > 30


# Sketches


def test_samples_less_the_range_are_what_comes_again_and_what_is_missing() -> None:
    ids = torch.cat([torch.randperm(1000), tensor(7, 7, 999, 5000)])
    ids = ids[(ids != 3) & (ids != 0)]
    assert decoded(Sketch.of(ids, 4).minus_range(0, 1000)) == ({7: 2, 999: 1, 5000: 1}, [0, 3])
    assert decoded(Sketch.of(torch.randperm(1000), 4).minus_range(0, 1000)) == ({}, [])


def test_a_long_range_is_taken_away_in_chunks() -> None:
    last = 2 * sketch.CHUNK + 5
    summed = Sketch.of(torch.arange(3, last), 4) + Sketch(4).minus_range(3, 9) + Sketch(4).minus_range(9, last)
    assert decoded(summed) == ({}, [])


def test_ids_that_are_missing_many_times_are_listed_so_often() -> None:
    assert decoded(Sketch.of(tensor(5), 4) - Sketch.of(tensor(5, 8, 8, 9, 8), 4)) == ({}, [8, 8, 8, 9])


@pytest.mark.parametrize("times", [1, 2, 3, 7, 1023])
def test_large_ids_come_many_times(times: int) -> None:
    """2^40 a thousand times over, on the way also beyond 64 bits."""
    low, high = 2**40, 2**52 + 12345
    many = Sketch.of(torch.full((times,), high).repeat(5), 1024) - Sketch.of(torch.full((4 * times,), high), 1024)
    assert decoded(many + Sketch.of(torch.full((times,), low), 1024)) == ({low: times, high: times}, [])


def test_negative_and_edge_ids_are_told_once() -> None:
    assert decoded(Sketch.of(tensor(*EDGES), 4))[0] == dict.fromkeys(sorted(EDGES), 1)


def test_an_id_times_its_count_beyond_63_bits_is_not_told() -> None:
    found = Sketch.of(tensor(2**62 + 1, 2**62 + 1, 5), 4).decode()
    assert (found.exact, found.again, found.missing) == (False, {}, [])


@pytest.mark.parametrize("world", [1, 4, 64, 1024])
def test_a_few_more_than_there_are_ranks_decode(world: int) -> None:
    for seed in range(40 // world + 2):
        ids = torch.tensor(random.Random(seed).sample(range(10**8), world + 100))
        again, missing = decoded(Sketch.of(ids[50:], world) - Sketch.of(ids[:50], world))
        assert (sorted(again), missing) == (sorted(ids[50:].tolist()), sorted(ids[:50].tolist()))


@pytest.mark.parametrize(("ids", "exact"), [(300, True), (600, False), (70_000, False)])
def test_too_many_are_not_told(ids: int, exact: bool) -> None:
    found = Sketch.of(torch.arange(ids) * 977, 8192).decode()
    assert (found.exact, len(found.again), found.missing) == (exact, ids if exact else 0, [])


def test_all_sketches_of_an_epoch_together_are_bounded() -> None:
    sizes = {world: len(Sketch(world).to_bytes()) for world in (1, 2, 64, 1024, 2048, 8192)}
    assert {world: size * world >> 20 for world, size in sizes.items()} == {
        1: 0,
        2: 0,
        64: 1,
        1024: 63,
        2048: 63,
        8192: 96,
    }
    assert max(sizes.values()) < 1 << 20


def test_bytes_make_the_same_sketch() -> None:
    made = Sketch.of(tensor(*EDGES), 4)
    assert decoded(Sketch.from_bytes(made.to_bytes(), 4)) == decoded(made)


@pytest.mark.parametrize("raw", [b"", b"x", bytes(8), Sketch(4).to_bytes()[:-1], Sketch(4).to_bytes() + b"x"])
def test_bytes_of_another_length_are_no_sketch(raw: bytes) -> None:
    with pytest.raises(ValueError, match=f"^{len(raw)} bytes are no sketch for 4 ranks, which has 18624$"):
        Sketch.from_bytes(raw, 4)


def test_sketches_of_unlike_worlds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="194 and 682 cells"):
        Sketch(4) + Sketch(1024)


def test_cells_that_are_no_sketch_are_not_told_and_come_to_an_end() -> None:
    raw = random.Random(1).randbytes(len(Sketch(4).to_bytes()))
    assert not Sketch.from_bytes(raw, 4).decode().exact
    torn = Sketch.of(tensor(5), 4)
    torn.cells[:, 1:] = 0
    assert not torn.decode().exact
