"""Linux's numbers of errors, which programs print with and without their words. (Another system's differ.)"""

import re

WORDS = {
    1: "Operation not permitted", 2: "No such file or directory", 5: "Input/output error",
    6: "No such device or address", 11: "Resource temporarily unavailable", 12: "Cannot allocate memory",
    13: "Permission denied", 14: "Bad address",
    16: "Device or resource busy", 17: "File exists", 19: "No such device", 22: "Invalid argument",
    23: "Too many open files in system", 24: "Too many open files", 27: "File too large", 28: "No space left on device",
    30: "Read-only file system", 32: "Broken pipe", 61: "No data available", 62: "Timer expired",
    71: "Protocol error", 95: "Operation not supported", 97: "Address family not supported by protocol",
    98: "Address already in use", 99: "Cannot assign requested address", 100: "Network is down",
    101: "Network is unreachable", 103: "Software caused connection abort", 104: "Connection reset by peer",
    105: "No buffer space available", 107: "Transport endpoint is not connected", 110: "Connection timed out",
    111: "Connection refused", 112: "Host is down", 113: "No route to host", 116: "Stale file handle",
    121: "Remote I/O error", 122: "Disk quota exceeded", 125: "Operation canceled",
}  # fmt: skip
_NEGATIVE = re.compile(r"\bUnknown error -(\d{1,3})\b")
_ALONE = re.compile(r"(?:\[Errno (?P<python>\d{1,3})\]|\berrno\s?[:=]\s?(?P<number>\d{1,3})\b)(?=$|[,;.)]| ?$)")
"""Without words behind it."""


def with_words(text: str) -> str:
    """`text` with the words of each number that stands alone: "[Errno 116]", "errno: 5", "Unknown error -12"."""
    if "rrno" in text:
        text = _ALONE.sub(_with_words, text)
    return _NEGATIVE.sub(lambda found: WORDS.get(int(found[1]), found[0]), text) if "Unknown error -" in text else text


def _with_words(found: re.Match[str]) -> str:
    words = WORDS.get(int(found["python"] or found["number"]))
    return found[0] if not words else f"{found[0]} {words}" if found["python"] else f"{found[0]} ({words})"
