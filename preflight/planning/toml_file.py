"""Reads a TOML file that the user names, in another process, since its file system may hang."""

import os
from typing import Any

from preflight.errors import UsageError
from preflight.sdk.probe import NoReply, Probe

LARGEST = 1 << 20
"""Bytes."""
READ_S = 10.0


def table(path: str) -> dict[str, Any]:
    """The contents of a TOML file. Raises UsageError."""
    import tomllib  # not in a run without such a file

    try:
        return tomllib.loads(_text(path))
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


def _read(path: str) -> dict[str, str]:
    """The bytes in a form that JSON can hold, or the error."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1)
            return {"latin-1": text.decode("latin-1")} if len(text) <= LARGEST else {"error": "more than 1 MiB"}
    except OSError as error:
        return {"error": os.strerror(error.errno or 0)}
