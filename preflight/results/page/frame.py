"""The document around every page: its security policy, style, script and data, all in one file."""

import base64
import functools
import gzip
import hashlib
import json
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

SCRIPT_LIMIT = 40_000
"""Bytes of script: what one person can review."""


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        autoescape=True, loader=jinja2.PackageLoader(__package__), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def render(template: str, **values: Any) -> Markup:
    """Renders a file of `templates/`; escapes everything that is not Markup."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 -- the template has escaped it


@functools.cache
def asset(name: str) -> str:
    """The text of style.css or script.js."""
    return resources.files(__package__).joinpath(name).read_text()


def document(title: str, body: Markup, data: Any) -> str:
    """The whole file. `body` is the content of <body>; `data` is JSON for the script, stored compressed.

    The policy allows only this script and this style, by their hashes, and nothing from elsewhere: text of a log that
    looks like a script stays text, and no request is sent."""
    style, script = asset("style.css"), asset("script.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    packed = gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), 6, mtime=0)
    island = base64.b64encode(packed).decode()
    ours = {name: Markup(text) for name, text in (("policy", policy), ("style", style), ("script", script))}  # noqa: S704
    return str(render("frame.html", title=title, body=body, island=island, **ours))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
