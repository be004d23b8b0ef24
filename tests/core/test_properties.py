"""What holds for every text, number and set: hypothesis looks for one for which it does not."""

import json
import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.core import facts, node_names, rank_ranges, words
from preflight.core.secrets import HIDDEN, Scrubber
from preflight.core.vote import vote
from preflight.engine import store_messages
from preflight.engine.store_messages import ForeignWriter

settings.register_profile("here", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("here")
TEXTS = st.text(max_size=200)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)


@given(st.sets(st.integers(0, 10**6)))
def test_ranks_as_text_are_the_same_ranks(ranks: set[int]) -> None:
    assert rank_ranges.from_text(rank_ranges.to_text(ranks)) == tuple(sorted(ranks))


@given(st.text(alphabet="0123456789,-", max_size=40))
def test_a_text_of_ranks_is_read_or_refused_and_stays_small(text: str) -> None:
    try:
        assert len(rank_ranges.from_text(text)) <= rank_ranges.MOST
    except ValueError:
        pass


@given(st.floats(0, 1e15))
@pytest.mark.parametrize(
    ("write", "units", "most"),
    [
        (words.rate, {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}, 1000),
        (words.size, {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}, 1024),
        (words.duration, {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}, 1000),
    ],
)
def test_a_number_in_words_is_near_it_and_in_the_right_unit(
    write: Any, units: dict[str, float], most: int, value: float
) -> None:
    number, unit = write(value).rsplit(" ", 1)
    shown = float(number.replace(",", ""))
    assert abs(shown * units[unit] - value) <= max(
        0.26 * value if units[unit] > 1 else 0.006 * value, 0.006 * units[unit]
    )
    assert shown < most or unit == list(units)[-1] or unit in ("min", "h", "s"), write(value)


@given(st.lists(st.text(alphabet=string.ascii_letters, min_size=1, max_size=5), min_size=1), st.integers(1, 6))
def test_a_list_in_words_names_or_counts_all(names: list[str], most: int) -> None:
    text = words.some(names, most)
    counted = re.search(r"and ([0-9,]+) more$", text)
    shown = re.split(r", | and ", text[: counted.start()].rstrip(", ") if counted else text)
    assert len(shown) + (int(counted[1].replace(",", "")) if counted else 0) == len(names)


@given(TEXTS)
def test_a_nodes_name_is_one_word_and_stays_what_it_is(name: str) -> None:
    safe = node_names.safe(name)
    assert safe and node_names.safe(safe) == safe and not re.search(r"[^A-Za-z0-9_.:#-]", safe)


@given(st.sets(st.from_regex(r"\A[a-z]{1,4}-?[0-9]{1,5}\Z"), min_size=1))
def test_folded_names_lose_no_node(names: set[str]) -> None:
    folded = node_names.folded(sorted(names))
    count = 0
    for _, inner in re.findall(r"(?:^|,)([^,\[]*)(?:\[([^\]]*)\])?", folded):
        parts = inner.split(",") if inner else ["0"]
        count += sum(int(part.split("-")[-1]) - int(part.split("-")[0]) + 1 for part in parts)
    assert count == len(names)


@given(TEXTS, st.text(alphabet=string.ascii_letters + string.digits, min_size=8, max_size=40))
def test_a_secret_variables_value_is_in_no_text(text: str, secret: str) -> None:
    value = f"Q7z{secret}9Kx"
    cleaned = Scrubber({"DB_PASSWORD": value}).text(f"{text}{value}{text}")
    assert value not in cleaned and HIDDEN in cleaned


@given(TEXTS)
def test_what_was_cleaned_stays_as_it_is(text: str) -> None:
    once = Scrubber({}).text(f"password={text}")
    assert Scrubber({}).text(once) == once


@given(VALUES)
def test_facts_are_json_or_refused(value: Any) -> None:
    try:
        text = facts.to_text({"value": value})
    except facts.BadFacts:
        return
    assert facts.to_text(json.loads(text)) == text


@given(st.dictionaries(st.integers(0, 30), st.sampled_from("abc"), min_size=1))
def test_who_is_odd_is_in_the_minority(values: dict[int, str]) -> None:
    votes = vote(values.items())
    odd = dict(votes.odd())
    assert len(odd) < len(values) / 2 and all(values[rank] != votes.usual for rank in odd)
    assert not votes.decided or len(odd) + sum(value == votes.usual for value in values.values()) == len(values)


@given(VALUES | st.fixed_dictionaries({"event": st.sampled_from(["step", "verdict", "abort"]), "step": VALUES}))
def test_any_json_in_the_store_is_a_message_or_foreign(value: Any) -> None:
    text = json.dumps(value)
    for kind in store_messages.MESSAGES:
        try:
            store_messages.read(kind, text, "key")
        except ForeignWriter as why:
            assert str(why).isprintable()
    with pytest.raises(ForeignWriter):
        store_messages.event(text, "key")
