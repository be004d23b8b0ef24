"""Whether a message fits its schema.

This knows the part of JSON Schema (2020-12) that store_messages.py uses; tests compare it with the package jsonschema,
which no run needs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SHOWN = 40
"""Characters of a wrong value that a sentence quotes."""
Schema = Mapping[str, Any]
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


def flaw(value: object, of: Schema) -> str:
    """The first flaw: "outcome.kind is 7, expected one of measured, skipped"; "" if there is none."""
    return next(_flaws(value, of, ""), "")


def _flaws(value: Any, of: Schema, place: str) -> Iterator[str]:
    if expected := _expected(value, of):
        text = json.dumps(value)
        shown = f"{text[:SHOWN]}{'...' * (len(text) > SHOWN)}"
        yield f"{place or 'it'} is {shown}, expected {expected}"
    elif isinstance(value, dict):
        yield from _of_members(value, of, place)
    elif isinstance(value, list) and "items" in of:
        for number, item in enumerate(value):
            yield from _flaws(item, of["items"], f"{place}[{number}]")


def _of_members(value: Mapping[str, Any], of: Schema, place: str) -> Iterator[str]:
    within = f"{place}." if place else ""
    for name in of.get("required", ()):
        if name not in value:
            yield f"{within}{name} is not there"
    known = of.get("properties", {})
    for name, member in value.items():
        if name in known or "additionalProperties" in of:
            yield from _flaws(member, known.get(name, of.get("additionalProperties")), f"{within}{name}")


def _expected(value: Any, of: Schema) -> str:
    """What was expected of the value; "" if the value is as expected."""
    kinds = of.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return " or ".join(kinds)
    allowed = [of["const"]] if "const" in of else of.get("enum")
    if allowed and not any(value == each and type(value) is type(each) for each in allowed):
        return f"one of {', '.join(map(str, allowed))}" if len(allowed) > 1 else json.dumps(allowed[0])
    if isinstance(value, list) and not of.get("minItems", 0) <= len(value) <= of.get("maxItems", len(value)):
        return f"{of.get('minItems', 0)} to {of.get('maxItems', 'any number of')} items"
    if isinstance(value, str):
        if len(value) < of.get("minLength", 0):
            return "some text"
        return f"what {of['pattern']} matches" if "pattern" in of and not re.search(of["pattern"], value) else ""
    return f"{of['minimum']} or more" if "minimum" in of and value is not None and value < of["minimum"] else ""
