"""The prefixes of a message: time stamps, labels of launchers, and NCCL's and torch's own prefixes.

Each form is a regular expression with a first character that tells it from most others; they are taken off one after
another, in whatever order they stand. All are of bounded width: no line takes longer than its length.
"""

import json
import re
import string
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

from preflight.failure_book import errors
from preflight.failure_book.line import Line

DEEPEST = 12
"""Most prefixes per line."""
NEAR = 300
"""Characters before NCCL's level that may be its prefix, which can hold paths of a build."""
_EPOCH = date(1970, 1, 1).toordinal()
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_PID_MAX = 1 << 22
"""On 64-bit Linux; some torch versions print a thread id of 15 digits in the same place."""


@dataclass(frozen=True)
class Habit:
    """How a file's lines begin, if one line alone does not show it."""

    tasks: bool = False
    """With a task's number: "12: "."""
    hosts: Collection[str] = frozenset()
    """With one of these: "node-a: "."""


_DAY = r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d{1,9})?)"
_ZONE = r"(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d))?"
_HOST = r"[A-Za-z0-9][\w.-]{0,120}"
_PLACE = r"(?P<place>[^\s:]{1,250}:\d+)"
_NCCL = rf"(?:\d{{1,20}}\.\d+ )?(?:{_PLACE} )?(?:\(\w{{1,80}}\) )?"
_NCCL_LEVEL = r"(?P<level>INFO|WARN|TRACE|CALL|ABORT|ERROR)\b ?"

_FORMS: dict[str, tuple[str, ...]] = {
    # Python's logging, NCCL since 2.26, DeepSpeed, SGLang ("[... TP14]"); containers' and Kubernetes' own;
    # dmesg -T, Open MPI 4's --timestamp-output, vLLM, syslog, dmesg.
    "stamp": (
        rf"\[{_DAY}[T _]{_CLOCK}{_ZONE}(?: [A-Z]{{1,3}}\d{{1,5}})*\]:?",
        rf"{_DAY}T{_CLOCK}{_ZONE} (?P<node>{_HOST}) (?=kernel: )",
        rf"{_DAY}[T _]{_CLOCK}{_ZONE}(?:: |:$| std(?:out|err) [FP] | - | |$)",
        r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) "
        r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?P<year>\d{4})\]",
        r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) "
        r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?P<year>\d{4})(?=\[\d{1,10},\d{1,7}\]<std)",
        rf"{_LEVEL} (?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
        r"\[?(?P<place>[\w./-]{1,200}:\d+)\]",
        rf"(?P<mon>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
        rf"(?P<node>{_HOST}) [\w@/.-]{{1,80}}(?:\[\d{{1,10}}\])?: ",
        r"\[ {0,6}(?P<elapsed>\d{1,9}\.\d{6})\]",
    ),
    # c10 and absl ("[E513 13:25:57.714781669 ProcessGroupNCCL.cpp:616]"), torch's Python loggers, c10 before 2.2.
    "glog": (
        r"\[?(?P<level>[IWEFC])(?P<date>\d{8}|\d{3,4}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d\.\d{1,9}) {1,4}"
        r"(?:(?P<pid>\d{1,20}) )?(?P<place>[^\s\]]{1,250}:\d+)\]",
        r"\[(?P<level>[IWEF]) (?P<place>[^\s\]:]{1,250}\.[a-z]{1,3}:\d+)\]",
    ),
    # torch's excepthook, Lightning; torchrun's tee; mpirun --tag-output, and SageMaker's; Ray, vLLM; kubectl --prefix;
    # compose; UCX and Open MPI's own messages.
    "label": (
        r"\[rank ?:? ?(?P<rank>\d{1,7})\]:?",
        r"\[(?:default|trainer)(?P<local_rank>\d{1,5})\]:",
        rf"\[(?:[\w.@-]{{1,120}}@)?\d{{1,10}},(?:mpirank:)?(?P<task>\d{{1,7}})(?:,(?P<node>{_HOST}))?\]"
        r"<std\w{1,6}>: ?",
        r"\([\w./:-]{1,120}(?: rank=(?P<rank>\d{1,7}))? pid=(?P<pid>\d{1,10})"
        r"(?:, ip=(?P<node>[^\s,)]{1,80}))?[^()]{0,80}\)",
        r"\[pod/(?P<node>[^\s/\]]{1,120})/[^\s\]]{1,120}\]",
        r"(?P<node>[A-Za-z][\w.-]{0,120}[-_]\d{1,6}) {1,40}\|(?: |$)",
        rf"\[(?P<node>{_HOST}):(?P<pid>\d{{1,10}}) {{0,8}}:\d{{1,10}}(?::\d{{1,10}})?\]",
        r"\[(?!\w{1,80}\.(?:py|cpp|cc|cu|h):)(?P<node>[A-Za-z][\w.-]{0,120}):(?P<pid>\d{2,10})\](?= )",
        r"\[(?!\w{1,80}\.(?:py|cpp|cc|cu|h):)(?P<node>[A-Za-z][\w.-]{0,120}):(?P<local_rank>\d{1,2})\](?=[A-Za-z]|  )",
        r"(?!epoch|step|iter|batch)(?P<node>[A-Za-z][\w.]{0,60}-\d{1,6})\|(?=\S|  )",
    ),
    "nccl": (
        rf"(?P<node>[^\s:\[\]()'\"]{{1,120}}):(?P<pid>\w{{1,20}})(?::\w{{1,20}})? \[(?P<gpu>-?\d{{1,4}})\] {_NCCL}"
        rf"(?:NCCL )?{_NCCL_LEVEL}",
        rf"(?P<node>[^\s:\[\]()'\"]{{1,120}}):(?P<pid>\d{{1,10}}):\d{{1,10}} (?:{_PLACE} )?NCCL {_NCCL_LEVEL}",
        rf"\[(?P<gpu>-?\d{{1,4}})\] {_NCCL}NCCL {_NCCL_LEVEL}",
        rf"{_NCCL}NCCL {_NCCL_LEVEL}",
        rf"(?P<place>[\w./-]{{1,250}}\.(?:cu|cc|cpp|h|c):\d+) {_NCCL_LEVEL}",
    ),
    # Prefixes of Python's loggers, which are not needed.
    "logger": (
        rf"{_LEVEL}:[\w.]{{1,200}}:",
        rf"{_LEVEL}:? (?=\d{{4}}-\d\d-\d\d )",
        rf"\[{_LEVEL}\|[\w./-]{{1,200}}:\d+\]",
        rf"\[{_LEVEL}\](?: \[[\w./-]{{1,200}}:\d+(?::\w{{1,80}})?\])?",
        rf"torch\.distributed[\w.]{{0,200}}: \[{_LEVEL}\]",
    ),
}
_LETTERS = string.ascii_letters + string.digits
_FIRST = {"stamp": "0123456789DIWECFJMASONT", "glog": "[IWEFC", "label": _LETTERS, "logger": "DIWECFt"}
"""Characters with which a form of this kind begins, where it is no bracket."""


def _begins(kind: str, form: str) -> str:
    return form[1] if form.startswith(("\\[", "\\(")) and form[2] != "?" else _FIRST.get(kind, _PRINTED)


_PRINTED = "".join(map(chr, range(33, 127)))
_ALL = [(kind, _begins(kind, form), re.compile(form)) for kind, forms in _FORMS.items() for form in forms]
_BY_FIRST = {first: [(kind, form) for kind, begins, form in _ALL if first in begins] for first in _PRINTED}
_ANY = [(kind, form) for kind, begins, form in _ALL if begins == _PRINTED]
_NEVER = re.compile(r"(?!)")
_ANY_DIGIT = bytes.maketrans(b"123456789", b"0" * 9)
STARTS = 4096
"""Cached starts of lines, with 0 for each digit: no form tells one digit from another."""
_prefixes: dict[bytes, tuple[str, re.Pattern[str]]] = {}
_TASK = re.compile(r"(?P<task>\d{1,6}): ?")
_NAME = re.compile(rf"(?P<node>{_HOST}): ?")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}\Z")
_PASTED = re.compile(r"[\s>`]+")
_COLOURS = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
_CONTROL = dict.fromkeys([*range(9), *range(10, 32), 127, 0xFEFF])
_BAR = re.compile(
    r"(?:[^|]{0,120}?\d{1,3}%\|[^|]{0,200}\| *[\d.?]{1,20}\w?/[\d.?]{1,20}\w? \[[^\]]{0,200}\]){1,40} *(?=[\w\[(])"
)
"""Progress bars before a message."""
_INSIDE = re.compile(r"\[rank\d{1,7}\]:|\[[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} [^\s\]]{1,250}:\d+\]")
_BEFORE_NCCL = [
    re.compile(
        r"[^\s:\[\]()'\"]{1,120}:\d{1,10}:\d{1,10} (?:\[-?\d{1,4}\] )?(?:[^\s:]{1,250}:\d+ )?(?:\(\w{1,80}\) )?\Z"
    ),
    re.compile(r"(?:[\w./-]{1,250}\.[a-z]{1,3}:\d+ )(?:\(\w{1,80}\) )?\Z"),
]
_GROUP = re.compile(
    r"\[(?:PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?(?: ?\((?P<name>[^)]*)\))? )?Rank (?P<rank>\d{1,7})\]"
)
_TESTED = re.compile(rf"(?:\.\. )?(?P<node>{_HOST})(?:: Test (?:CUDA|NCCL) failure| pid (?P<pid>\d+): Test failure)")
_LAUNCHERS = re.compile(r"(?:slurmstepd|srun|salloc|mpirun|mpiexec|prterun): ")
"""Launchers, which write their own messages after any other line."""
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def plain(raw: str) -> str:
    """The text without colors and control characters other than tabs."""
    if raw.isprintable():  # nearly always, and a translation takes longer than all else
        return raw
    return (_COLOURS.sub("", raw) if "\x1b" in raw else raw).translate(_CONTROL)


def strip(raw: str, habit: Habit | None = None) -> Line:
    """Takes the prefixes off a line, and reads them. What it cannot read stays in the text."""
    line = Line()
    text = _unwrapped(plain(raw), line)
    if "%|" in text and (bars := _BAR.match(text)):
        return _divided(line, bars[0], text[bars.end() :])
    text = _peeled(text, line, habit or Habit())
    if len(line.level) != 1 and (at := _inside(text, whole=bool(line.level))) >= (not line.level):
        return _divided(line, text[:at], text[at:])
    return _read_text(line, text)


def _divided(front: Line, before: str, after: str) -> Line:
    """Two writers' text on one line: the front's source is used if the rest names none."""
    line = Line(task=front.task, node=front.node, time=front.time, clock=front.clock)
    line = _read_text(line, _peeled(after, line, Habit()))
    if front.node and line.node.endswith(front.node):  # the other's words end where the name begins
        line.node = front.node
    if line.rank is None:
        line.rank, line.local_rank = front.rank, line.local_rank if line.local_rank is not None else front.local_rank
    line.front = _read_text(front, before)
    return line


def _unwrapped(text: str, line: Line) -> str:
    """The message of a line of JSON: Docker's {"log", "stream", "time"}, loggers' {"message"} or {"msg"}."""
    if not text.startswith("{") or not text.rstrip().endswith("}"):
        return text
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text
    message = next((read[key] for key in ("log", "message", "msg") if isinstance(read.get(key), str)), None)
    if message is None:
        return text
    if isinstance(stamp := read.get("time", read.get("timestamp")), str):
        _peeled(stamp, line, Habit())
    pod = read.get("kubernetes")
    node = pod.get("pod_name") if isinstance(pod, dict) else read.get("hostname", "")
    line.node = node[:120] if isinstance(node, str) else ""
    return plain(message)


def _peeled(text: str, line: Line, habit: Habit) -> str:
    for _ in range(DEEPEST):
        pasted = _PASTED.match(text)
        after = text[pasted.end() :] if pasted else text
        end = (_known(after, line) or _by_habit(after, line, habit)) if after else 0
        if not end:
            break
        text = after[end:]
        if len(line.level) > 1:  # NCCL's own words come next
            break
    return text


def _known(text: str, line: Line) -> int:
    """Where the prefix at the start ends; 0 if there is none."""
    start = text[:NEAR].encode("utf-8", "replace").translate(_ANY_DIGIT)
    if (known := _prefixes.get(start)) is None:
        forms = _BY_FIRST.get(text[0], _ANY)
        known = next(((kind, form) for kind, form in forms if form.match(text)), ("", _NEVER))
        if len(_prefixes) >= STARTS:
            _prefixes.clear()
        _prefixes[start] = known
    kind, form = known
    fits = form.match(text) if kind else None
    if not fits:
        return 0
    groups = fits.groupdict()
    if kind == "stamp" or (kind == "glog" and groups.get("hour")):
        _read_time(groups, kind, line)
    _read(groups, line)
    line.bare = line.bare and kind in ("stamp", "logger")
    return fits.end()


def _read(groups: dict[str, str | None], line: Line) -> None:
    """The first prefix that names something counts: it is nearest to the writer of the line's start."""
    for name in ("rank", "local_rank", "gpu", "task", "pid"):
        value = groups.get(name)
        if value and getattr(line, name) is None and value.lstrip("-").isdecimal():
            number = int(value)
            if number >= 0 and (name != "pid" or number <= _PID_MAX):
                setattr(line, name, number)
    line.node = line.node or groups.get("node") or ""
    line.level = line.level or groups.get("level") or ""
    if place := groups.get("place"):
        line.place = line.place or place.rpartition("/")[2]


def _by_habit(text: str, line: Line, habit: Habit) -> int:
    """Labels that count only if the file's other lines have them, or a sure prefix follows."""
    if fits := _TASK.match(text):
        sure = habit.tasks or (fits.end() < len(text) and _leads(text[fits.end() :]))
        if sure and line.task is None:
            line.task, line.bare = int(fits["task"]), False
        return fits.end() if sure else 0
    fits = _NAME.match(text)
    if not fits or fits["node"].endswith(("Error", "Exception")):
        return 0
    name = fits["node"]
    looks = any(char.isdigit() or char == "-" for char in name) and _leads(text[fits.end() :])
    if not (name in habit.hosts or _IPV4.match(name) or looks):
        return 0
    line.node, line.bare = line.node or name, False
    return fits.end()


def _leads(text: str) -> bool:
    """Whether it starts with a label of a rank, or with NCCL's prefix."""
    return any(kind in ("label", "nccl", "glog") and form.match(text) for kind, form in _BY_FIRST.get(text[:1], ()))


def _inside(text: str, whole: bool) -> int:
    """Where a prefix starts in the middle of a line; -1 if none does. After NCCL's own prefix only a `whole` one, with
    host and process, is another writer's."""
    inside = None if whole else _INSIDE.search(text)
    places = [inside.start()] if inside else []
    for words in ("NCCL WARN ", "NCCL INFO "):
        at = text.find(words)
        if at > 0:
            start = max(0, at - NEAR)
            fits = (form.search(text, start, at) for form in _BEFORE_NCCL[: 1 if whole else None])
            places += [inside.start() for inside in fits if inside][:1] or ([] if whole else [at])
    return min(places, default=-1)


def _read_text(line: Line, text: str) -> Line:
    """Reads ranks from a text. A rank in the default group (number 0, or by its name) is the global one."""
    line.text = errors.with_words(text.strip())
    line.bare = line.bare and not _LAUNCHERS.match(line.text)
    group = _GROUP.match(line.text)
    if group and group["id"] is None:
        line.group_rank = int(group["rank"])
    elif group and (group["name"] == "default_pg" or (group["id"] == "0" and not group["name"])) and line.rank is None:
        line.rank, line.bare = int(group["rank"]), False
    if tested := _TESTED.match(line.text):
        line.node = line.node or tested["node"]
        _read({"pid": tested["pid"]}, line)
    return line


def _read_time(groups: dict[str, str | None], kind: str, line: Line) -> None:
    """From the outermost stamp: all lines of a file have it, including tracebacks."""
    if line.time is not None:
        return
    if elapsed := groups.get("elapsed"):
        line.time, line.clock = float(elapsed), "elapsed"
        return
    year, zone, second = groups.get("year"), groups.get("zone"), (groups.get("second") or "").replace(",", ".")
    month, day = groups.get("month") or groups.get("mon") or "0", groups.get("day") or "0"
    if written := groups.get("date"):  # c10 writes month * 100 + day, absl the year before it
        year, month, day = written[:-4] or None, written[-4:-2], written[-2:]
    try:
        number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
        days = date(int(year or 2000), number, int(day)).toordinal() - _EPOCH  # 2000: it has a 29 February
        line.time = days * 86400 + int(groups["hour"] or 0) * 3600 + int(groups["minute"] or 0) * 60 + float(second)
    except ValueError:
        return
    if zone:
        line.time -= _offset(zone)
    line.clock = "iso" if zone else kind if kind == "glog" else "local" if "." in second else "nccl" if year else "day"


def _offset(zone: str) -> int:
    digits = zone[1:].replace(":", "")
    east = int(digits[:2]) * 3600 + int(digits[2:]) * 60 if digits.isdecimal() else 0
    return -east if zone[0] == "-" else east
