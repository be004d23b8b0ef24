"""What preflight knows of logs, row by row: each signature fits its own example, and not its near miss."""

import itertools
import re
import string
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from preflight.checks.comm.init import failed_init
from preflight.errors import UsageError
from preflight.explain import pages
from preflight.explain.inputs import Input
from preflight.explain.read.reader import Reader
from preflight.failure_book import book as failure_book
from preflight.failure_book.book import Book, Match, Signature, book
from preflight.failure_book.line import Line
from tests.sizes import ROOT

KNOWN = book()
DIAGNOSED = ("cause", "failure", "fallout")


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Match]]:
    """All examples and near misses, by name and text, as `preflight explain` reads a log each."""
    folder = tmp_path_factory.mktemp("logs")
    texts = {
        f"{signature.name}.{number}": text
        for signature in KNOWN.signatures
        for number, text in enumerate((signature.example, signature.near_miss))
    }
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")
    found: dict[str, list[Match]] = {name: [] for name in texts}
    for line in Reader(
        [Input(str(folder / name), name, "log") for name in texts],
        {word for signature in KNOWN.signatures for word in signature.words},
    ):
        found[line.file] += KNOWN.matches(line)
    return found


def names(matches: list[Match]) -> set[str]:
    return {match.signature.name for match in matches}


def test_each_signature_fits_its_example_and_not_its_near_miss(read: dict[str, list[Match]]) -> None:
    wrong = [f"{known.name}: {what}" for known in KNOWN.signatures for what in _wrong_with(known, read)]
    assert not wrong, "\n".join(wrong)


def _wrong_with(known: Signature, read: dict[str, list[Match]]) -> Iterator[str]:
    as_example, as_near_miss = read[f"{known.name}.0"], read[f"{known.name}.1"]
    fits = [match for match in as_example if match.signature is known]
    groups = {word for _, word, _, _ in string.Formatter().parse(known.says + known.fix) if word}
    if not fits:
        yield f"{known.example!r} is not known as it; it is {names(as_example)}"
    elif not groups <= fits[0].groups.keys():
        yield f"says {groups - fits[0].groups.keys()}, which its pattern does not hold"
    if known.near_miss == known.example or known.name in names(as_near_miss):
        yield f"its near miss {known.near_miss!r} is known as it"
    if not (known.versions and known.source and 0 <= known.weight <= 100):
        yield f"versions {known.versions!r}, source {known.source!r}, weight {known.weight}"
    if known.says.endswith("."):
        yield "a finding's sentence ends without a full stop"


def test_no_line_fits_two_causes_without_a_rule_which_goes_first(read: dict[str, list[Match]]) -> None:
    """On one line the role decides, then the weight (candidates.best_first), unless one row excludes the other."""
    ways: set[tuple[str, str]] = set()
    for row in KNOWN.signatures:
        fits = [match.signature for match in read[f"{row.name}.0"] if match.signature.role in DIAGNOSED]
        ways |= {(a.name, b.name) for a, b in itertools.combinations(fits, 2) if a.slug != b.slug}
    equal = [(a, b) for a, b in ways if _rank(a) == _rank(b) and not _excludes(a, b)]
    assert len(ways) > 50 and equal == []


def _rank(name: str) -> tuple[str, int]:
    return KNOWN.by_name[name].role, KNOWN.by_name[name].weight


def _excludes(name: str, other: str) -> bool:
    return name in KNOWN.by_name[other].unless or other in KNOWN.by_name[name].unless


def test_every_cause_has_a_signature() -> None:
    told = {signature.slug for signature in KNOWN.signatures if signature.role in (*DIAGNOSED, "slower")}
    assert set(KNOWN.causes) - told == set()


DULL = """
2026-04-22 19:14:05,120 train INFO iteration 4711 | loss 2.3170e+00 | grad norm 0.812 | lr 3.000e-04 | tokens/s 41223
 iteration     4711/  500000 | consumed samples:      4824064 | elapsed time per step (ms): 5120.3 | lm loss: 2.31E+00
{'loss': 1.2345, 'grad_norm': 0.51, 'learning_rate': 2e-05, 'epoch': 0.42}
Epoch: [3][ 120/5005]  Time  0.312 ( 0.330)  Data  0.001 ( 0.004)  Loss 4.2120e+00  Acc@1  21.09 ( 18.33)
Epoch 3:  42%|####      | 420/1000 [01:10<01:37,  5.97it/s, v_num=3, train_loss=0.231]
[2026-04-22 19:14:05,120] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]
INFO 04-22 19:14:05 metrics.py:341] Avg prompt throughput: 812.3 tokens/s, Running: 4 reqs, GPU KV cache usage: 3.1%.
[titan] 2026-04-22 19:14:05,120 - root - INFO - step: 10  loss:  7.1234  memory: 41.20GiB(52.02%)  tps: 6,021
2026-04-22 19:14:05 INFO Saved checkpoint step 2000 to /data/run/step_2000 in 12.1 s
node-a:4101:4177 [1] NCCL INFO Trees [0] 2/-1/-1->1->0 [1] 2/-1/-1->1->0
node-a:4101:4177 [1] NCCL INFO Channel 03/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA
node-a:4101:4177 [1] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels
node-a:4101:4177 [1] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
Downloading shards: 100%|##########| 4/4 [00:10<00:00,  2.61s/it]
"""
"""What a healthy job prints thousands of times."""


def test_what_a_healthy_job_prints_all_day_is_not_looked_at() -> None:
    """A word that stands in such lines costs every reader of a large log minutes."""
    found = {(word, line) for line in DULL.splitlines() for word in KNOWN.words - KNOWN.rarely if word in line}
    assert not found


def test_no_pattern_is_slow_on_garbage() -> None:
    """A line of eight times the length may cost eight times the time, not sixty-four: of all patterns together."""
    seconds = {}
    for size in (1000, 8000):
        lines = [
            unit * (size // len(unit)) for unit in ("a", " ", "1", "1.", "a ", "[", "x:1 ", "rank 1 ", "/a", "::1")
        ]
        begin = time.process_time()
        for signature in KNOWN.signatures:
            for line in lines:
                signature.pattern.search(f"{signature.word} {line}")
                signature.pattern.search(f"{line} {signature.word}")
        seconds[size] = time.process_time() - begin
    assert seconds[8000] < 30 * seconds[1000], seconds


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"role": "culprit"}, "role culprit is none of"),
        ({"slug": "nothing"}, "there is no cause nothing"),
        ({"slug": ""}, "a slug is for what is found"),
        ({"says": ""}, "needs a sentence"),
        ({"severity": "info"}, "neither fail nor warn"),
        ({"word": "rank 1"}, "has a digit"),
        ({"needs": ["no.such"]}, "there is no signature no.such"),
        ({"pattern": "("}, "missing \\)"),
        ({"patern": "x"}, "has patern, which is unknown"),
        ({"live": {"cod": "comm.init.rdma"}}, "unexpected keyword argument 'cod'"),
    ],
)
def test_a_malformed_row_is_told(change: dict[str, Any], says: str) -> None:
    row = {
        "name": "made.up", "slug": "app_crash", "role": "cause", "word": "made up", "pattern": "made up", "says": "it",
        "versions": "1", "source": "here", "example": "made up", "near_miss": "made down",
    }  # fmt: skip
    with pytest.raises(ValueError, match=says) as caught:
        failure_book.check(KNOWN.causes, [failure_book.signature({**row, **change}, "mine.toml")])
    assert "made.up" in str(caught.value)


def test_a_row_is_there_once() -> None:
    with pytest.raises(ValueError, match="its name is there twice"):
        failure_book.check(KNOWN.causes, [KNOWN.signatures[0]] * 2)


def test_a_harmless_line_has_no_other_meaning(read: dict[str, list[Match]]) -> None:
    harmless = next(signature for signature in KNOWN.signatures if signature.role == "harmless")
    again = Book(KNOWN.causes, [*KNOWN.signatures, replace(harmless, name="other", role="clue")])
    line = next(match.line for match in read[f"{harmless.name}.0"] if match.signature is harmless)
    assert names(again.matches(line)) == {harmless.name}


def test_each_cause_has_a_page() -> None:
    for slug in KNOWN.causes:
        assert KNOWN.causes[slug].fix in pages.page(f"explain.{slug}")
    assert "explain.shm_exhausted: " in pages.page("explain")
    with pytest.raises(UsageError, match=r"did you mean explain.shm_exhausted"):
        pages.page("explain.shm_exhuasted")


def test_rows_for_comm_init_stand_alone_and_name_its_codes() -> None:
    """It reads single lines of a few ranks' logs, and a finding says what was expected."""
    live = [row for row in KNOWN.signatures if row.live]
    assert {row.name for row in live} == {row.name for row in failure_book.live_book().signatures}
    assert {row.live.code for row in live if row.live} == set(failed_init.CODES)
    assert [row.name for row in live if row.needs or row.unless or row.place or "expected" not in row.says] == []


def test_what_is_harmless_or_from_a_survivor_is_no_cause_to_comm_init() -> None:
    rows = [row for row in KNOWN.signatures if row.role in ("harmless", "fallout", "slower")]
    found = {
        row.name: names(matches)
        for row in rows
        if (matches := failure_book.live_book().matches(Line(text=row.example, level="WARN")))
    }
    assert len(rows) > 50 and found == {}


def test_comm_init_compiles_only_its_own_rows() -> None:
    """The whole book takes a second, which a judge of sound ranks must not cost."""
    code = (
        "from preflight.checks.comm.init import failed_init\n"
        "from preflight.failure_book import book\n"
        "assert not book.live_book.cache_info().currsize\n"
        "assert len(book.live_book().signatures) < 80\n"
        "assert not book.book.cache_info().currsize\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_guide_shows_a_row_that_fits() -> None:
    """docs/writing-a-signature.md: its row is sound, and its log has the row's example."""
    guide = (ROOT / "docs" / "writing-a-signature.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (row,) = tomllib.loads(text)["signature"]
    known = failure_book.signature(row, "docs")
    rows = [known, *(row for row in KNOWN.signatures if row.name != known.name)]  # who tries the guide has it here, too
    failure_book.check(KNOWN.causes, rows)
    again = Book(KNOWN.causes, rows)
    assert names(again.matches(Line(text=known.example))) >= {known.name}
    assert known.name not in names(again.matches(Line(text=known.near_miss)))
    assert guide.count(known.example) == 3, "the log, the row, and what explain prints"
    assert all(f"`{field}`" in guide for field in Signature.__annotations__), "each field is explained"
