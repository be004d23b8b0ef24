import enum
import json
import math
from typing import Any

import pytest

from preflight.core import facts
from preflight.core.facts import BadFacts, FactsStore


class Color(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, 2.5, "x", None, True, {"b": []}]},
        {"ä": "日本 \ud800", "quote": '"\\\n'},
        {"large": 2**70, "small": -1e-300},
    ],
)
def test_json_is_kept_as_it_is(value: dict[str, Any]) -> None:
    assert json.loads(facts.to_text(value)) == value


def test_tuples_become_lists_and_enums_numbers() -> None:
    assert facts.to_text({"pair": (1, 2), "color": Color.RED}) == '{"color":3,"pair":[1,2]}'


def test_the_order_of_keys_does_not_tell_facts_apart() -> None:
    assert facts.to_text({"a": 1, "b": 2}) == facts.to_text({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": math.nan}, "facts['a'] is nan: JSON has no such number"),
        ({"a": [1.0, {"b": math.inf}]}, "facts['a'][1]['b'] is inf: JSON has no such number"),
        ({"a": (0, -math.inf)}, "facts['a'][1] is -inf: JSON has no such number"),
        ({"a": {3: 1}}, "facts['a'] has the key 3: keys are strings"),
        ({None: 1}, "facts has the key None: keys are strings"),
        ({"a": [object()]}, "facts['a'][0] is an object of type object: facts are made of JSON's types"),
        ({"a": {1, 2}}, "facts['a'] is an object of type set: facts are made of JSON's types"),
        ({"a": b"x"}, "facts['a'] is an object of type bytes: facts are made of JSON's types"),
        ([1], "measure() returned an object of type list, not a dict"),
        (None, "measure() returned None, not a dict"),
    ],
)
def test_bad_facts_say_what_is_bad_and_where(value: object, says: str) -> None:
    with pytest.raises(BadFacts) as error:
        facts.to_text(value)
    assert str(error.value) == says


def test_facts_may_fill_their_limit_and_no_more() -> None:
    most = facts.LIMIT - len('{"a":""}')
    assert len(facts.to_text({"a": "x" * most})) == facts.LIMIT
    with pytest.raises(BadFacts, match=r"the facts are 1,048,577 bytes; the limit per rank and check is 1,048,576"):
        facts.to_text({"a": "x" * (most + 1)})


def test_facts_are_measured_in_bytes() -> None:
    with pytest.raises(BadFacts, match="the limit per rank"):
        facts.to_text({"a": "ä" * (facts.LIMIT // 4)})


def filled(by_rank: dict[int, dict[str, Any]], check: str = "plugin.made") -> FactsStore:
    book = FactsStore()
    for rank, value in by_rank.items():
        text = facts.to_text(value)
        name = facts.content_hash(text)
        if name not in book:
            book.add_text(name, text)
        book.note(check, rank, name)
    return book


def test_equal_facts_are_kept_once() -> None:
    book = filled({0: {"a": 1}, 1: {"a": 1}, 2: {"a": 2}})
    found = book.of("plugin.made")
    assert found == {0: {"a": 1}, 1: {"a": 1}, 2: {"a": 2}}
    assert found[0] is found[1]
    assert found[0] is not found[2]


def test_groups_are_ranks_with_equal_facts() -> None:
    book = filled({3: {"a": 1}, 0: {"a": 1}, 1: {"a": 2}})
    assert list(book.groups("plugin.made")) == [([0, 3], '{"a":1}'), ([1], '{"a":2}')]


def test_facts_come_back_by_rank_in_order() -> None:
    by_rank = {5: {"a": 1}, 2: {"a": 2}, 7: {"a": 2}, 0: {"a": 1}}
    book = filled(by_rank)
    assert book.of("plugin.made") == by_rank
    assert list(book.of("plugin.made")) == book.ranks("plugin.made") == [0, 2, 5, 7]


def test_an_unknown_check_has_no_facts() -> None:
    book = filled({0: {"a": 1}})
    assert book.checks() == ["plugin.made"]
    assert book.of("plugin.other") == {} and book.ranks("plugin.other") == [] and not list(book.groups("plugin.other"))


def test_a_name_is_known_when_its_text_is() -> None:
    text = facts.to_text({"a": 1})
    book = FactsStore()
    assert facts.content_hash(text) not in book
    book.add_text(facts.content_hash(text), text)
    assert facts.content_hash(text) in book


def test_equal_facts_take_room_once() -> None:
    single = filled({0: {"a": "x" * 1000}})
    assert 0 < single.size == filled({rank: {"a": "x" * 1000} for rank in range(8)}).size
    assert filled({0: {"a": "x" * 1000}, 1: {"a": "y" * 1000}}).size > single.size


def test_unequal_facts_have_unequal_names() -> None:
    names = {facts.content_hash(facts.to_text({"a": number})) for number in range(100)}
    assert len(names) == 100


def test_a_number_too_long_for_json_is_bad_facts() -> None:
    with pytest.raises(facts.BadFacts, match="not JSON"):
        facts.to_text({"a": 10**5000})
