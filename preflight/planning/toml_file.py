"""Reads a TOML file that the user names, in another process, since its file system may hang."""

import contextlib
import os
import re

from preflight.errors import UsageError
from preflight.sdk import paths
from preflight.sdk.probe import NoReply, Probe

LARGEST = 1 << 20
"""Bytes."""
READ_S, PARSE_S = 10.0, 5.0
MOST_PARTS = 64
"""Of one key: with n parts tomllib takes n * n steps."""
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}""")


def table(path: str) -> dict[str, object]:
    """The contents of a TOML file. Raises UsageError."""
    import tomllib  # not in a run without such a file

    try:
        text = _text(path)
        if key := _LONG_KEY.search(text):
            line = text.count("\n", 0, key.start()) + 1
            raise UsageError(f"line {line}: a key of more than {MOST_PARTS} parts, expected a few")
        _refuse_slow(text)
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, a number too long, tables too deep
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}", everywhere=error.everywhere) from None


def _text(path: str) -> str:
    """Reads in another process, since the file system may hang. Raises UsageError, and UnicodeDecodeError."""
    with Probe({"reading": _read}) as probe:
        reply = probe.ask("reading", path, deadline_s=READ_S)
    if isinstance(reply, NoReply) or "error" in reply.value:
        why = reply.text if isinstance(reply, NoReply) else reply.value["error"]
        raise UsageError(f"cannot be read ({why})", everywhere=False)
    return str(reply.value["latin-1"]).encode("latin-1").decode()


def _refuse_slow(text: str) -> None:
    """Raises UsageError for a text that takes long to parse: not even a signal's handler ends that."""
    with Probe({"parsing": lambda: _parses(text)}) as probe:
        reply = probe.ask("parsing", deadline_s=PARSE_S)
    if isinstance(reply, NoReply):
        raise UsageError(f"cannot be parsed ({reply.text}), expected a few settings", everywhere=False)


def _parses(text: str) -> None:
    import tomllib

    with contextlib.suppress(ValueError, RecursionError):  # said by the caller, with the line
        tomllib.loads(text)


def _read(path: str) -> dict[str, str]:
    """The bytes in a form that JSON can hold, or the error."""
    try:
        with open(paths.opened(path), "rb") as file:
            text = file.read(LARGEST + 1)
            return {"latin-1": text.decode("latin-1")} if len(text) <= LARGEST else {"error": "more than 1 MiB"}
    except OSError as error:
        return {"error": os.strerror(error.errno) if error.errno else f"it {error.strerror}"}
