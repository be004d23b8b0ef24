"""NCCL's parameters as the library itself sees them, including what an environment plugin has set (since 2.30:
docs/userguide/source/api/param.rst, src/param/c_api.cc). 2.30.7 registers nine of them, those of its log; the others it
still reads by getenv. Only the libnccl that this process has loaded is asked, in a separate process: the first call
loads the plugin, which may hang.
"""

import ctypes
import os
import re
from collections.abc import Mapping

from preflight.nccl.version import version_text
from preflight.sdk.files import read
from preflight.sdk.probe import NoReply, Probe

PATIENCE_S = 3.0
"""NCCL only reads files and variables; a plugin may ask a server."""
MOST, LONGEST = 1000, 200
"""The most parameters, and characters of a value (NCCL 2.30 has 240 variables)."""


def ask(environ: Mapping[str, str], within_s: float = PATIENCE_S) -> dict[str, str] | str | None:
    """The parameters by name; or a sentence if the library does not answer; None if it has no such call, or torch has
    not loaded it. `environ`: the job's environment, without what preflight has added."""
    library = loaded()
    if not library or not hasattr(_handle(library), "ncclParamGetAllParameterKeys"):
        return None
    with Probe({"NCCL's parameters": _all}) as probe:
        reply = probe.ask("NCCL's parameters", library, dict(environ), deadline_s=within_s)
    if isinstance(reply, NoReply):
        return reply.text
    values: dict[str, str] = reply.value
    return values


def loaded() -> str:
    """The path of the libnccl in this process's memory; "" if there is none: NCCL may be linked into torch."""
    found = re.search(r"/\S*/libnccl\.so\S*", read("/proc/self/maps"))
    return found[0] if found else ""


def version() -> str:
    """ "2.32.3": of the libnccl in this process's memory, which torch.cuda.nccl.version() does not tell: that is a
    constant of torch's build. "" if there is none."""
    found = ctypes.c_int()
    if not (library := loaded()) or _handle(library).ncclGetVersion(ctypes.byref(found)):
        return ""
    return version_text(found.value)


def _handle(library: str) -> ctypes.CDLL:
    return ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def _all(library: str, environ: dict[str, str]) -> dict[str, str]:
    """Runs in the probe. `ncclParamGetAllParameterKeys(const char*** table, int* len)`,
    `ncclParamGetParameter(const char* key, const char** value, int* len)`; they return NCCL's own memory."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    os.environ.update({name: value for name, value in environ.items() if name.startswith("NCCL_")})
    os.environ["NCCL_PARAM_DUMP_ALL"] = "true"
    nccl, table, count = _handle(library), ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    if nccl.ncclParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(count)):
        return {}
    values = {}
    for key in [bytes(table[place] or b"") for place in range(min(count.value, MOST))]:
        value, length = ctypes.c_char_p(), ctypes.c_int()
        if not nccl.ncclParamGetParameter(key, ctypes.byref(value), ctypes.byref(length)):
            values[key.decode(errors="replace")] = (value.value or b"").decode(errors="replace")[:LONGEST]
    return values
