"""Knowledge that takes more than a line: signatures/tables.toml, whose heads say what each table is for."""

import functools
from collections.abc import Mapping
from importlib import resources

FILE = "tables.toml"


@functools.cache
def table(name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of a table, in their order: the first one that fits counts."""
    import tomllib  # comm.init imports this room in every command

    text = (resources.files(__package__) / "signatures" / FILE).read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)[name])
