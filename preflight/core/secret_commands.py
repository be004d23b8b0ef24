"""Command lines in which a secret follows an option of one letter, or no option at all."""

import re
from collections.abc import Iterator

from preflight.core.secret_values import UNSET

_VALUE = r"(?:\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'|[^\s\"'|;&,\])}]{1,500})"
_GAP = r"(?:[\"']?,?\s{1,4}[\"']?|=)"
"""Between an option and its value, on a command line or in a printed list of words."""
LONGEST = 1000
"""Characters of a command that are looked at."""


def _after(options: str, gap: str = f"{_GAP}?") -> str:
    return rf"(?<![^\s\"',\[])(?:{options}){gap}(?P<secret>{_VALUE})"


def _with_user(options: str, between: str = ":") -> str:
    """The value is USER:SECRET."""
    user = rf"[\"']?[^\s\"'{between}]{{0,100}}{between}"
    return rf"(?<![^\s\"',\[])(?:{options}){_GAP}?{user}(?P<secret>[^\s\"',\]]{{1,500}})"


_ROWS = (
    (r"mysql[a-z]{0,10}|mariadb[a-z-]{0,12}|7za?", _after("-p", "")),
    (r"sshpass|mongo[a-z]{0,7}", _after("-p")),
    (r"(?:docker|podman|buildah|skopeo|nerdctl|helm|oc|az|apptainer|singularity)(?:\s+\w+)?\s+login", _after("-p")),
    (r"redis-cli", _after("-a|--pass")),
    (r"ldap(?:search|add|modify|delete|whoami|passwd)", _after("-w")),
    (r"sqlcmd|bcp|ipmitool|zip|unzip|plink", _after("-P|-pw")),
    (r"snmp(?:get|walk|set|bulkwalk|status|table)", _after("-A|-X|-c")),
    (r"smbclient|rpcclient|net", _with_user("-U", "%")),
    (r"curl", _with_user("-u|--user|-U|--proxy-user")),
    (r"https?|xh", _with_user("-a|--auth")),
    (r"lftp|ncftp[a-z]{0,3}", _with_user("-u", ",")),
    (r"openssl", r"(?:-pass(?:in|out)?\s{1,4}[\"']?pass:|\s-k\s{1,4})(?P<secret>[^\s\"']{1,500})"),
    (r"etcdctl", _with_user("--user")),
    (r"ssh-keygen", _after("-N|-P")),
    (r"sqlplus|rman|expdp|impdp", r"\s[^\s/@]{1,60}/(?P<secret>[^\s@/\"']{1,200})"),
    (
        r"(?i:(?:create|alter)\s+(?:user|role)\s+\S{1,100}\s+identified\s+by)",
        rf"(?<=[yY])\s{{1,4}}(?P<secret>{_VALUE})",
    ),
    (r"(?i:identified\s+by)", r"(?<=[yY])\s{1,4}(?P<secret>\"[^\"\n]{0,500}\"|'[^'\n]{0,500}')"),
    (r"requirepass|masterauth", rf"(?<=pass|auth)\s{{1,4}}(?P<secret>{_VALUE})"),
    (
        r"aws\s+configure\s+set|gh\s+secret\s+set",
        r"\w{0,40}(?:secret|token|key)\w{0,40}\s{1,4}(?P<secret>[^\s\"']{1,500})",
    ),
    (r"mc\s+alias\s+set", r"://\S{1,200}\s{1,4}\S{1,200}\s{1,4}(?P<secret>[^\s\"']{1,500})"),
    (r"ssh|scp|rsync", r"(?P<secret>(?!))"),  # its -p is a port, also after sshpass
    (r"(?:wandb|vault|neptune)\s+login", r"(?<=\s)(?P<secret>[A-Za-z0-9._-]{16,500})"),
)
"""Programs, and where the secret stands in their arguments."""
_PROGRAM = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(f'(?P<row{at}>{name})' for at, (name, _) in enumerate(_ROWS))})(?=[\s\"'])"
)
_OPTIONS = tuple(re.compile(pattern) for _, pattern in _ROWS)
_PIPED = re.compile(
    rf"\b(?:echo|printf)\s{{1,4}}(?:-\w{{1,3}}\s{{1,4}})?(?P<secret>{_VALUE})\s{{0,4}}\|\s{{0,4}}"
    r"(?:sudo\s{1,4}-S\b|[^\n|]{0,200}\s--(?:password-stdin|with-token)\b)"
)
"""What a command reads as its password."""
_HERE = re.compile(rf"<<<\s{{0,4}}(?P<secret>{_VALUE})")
"""A here-string: what a command reads, whichever it is."""
_END = re.compile(r"\n|\s[|;&]|;\s")


def secrets_in(text: str) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each secret in the command lines in the text."""
    spans = {found.span("secret") for found in _secrets_in(text) if not UNSET.fullmatch(found["secret"])}
    yield from sorted(spans)


def _secrets_in(text: str) -> Iterator[re.Match[str]]:
    yield from _PIPED.finditer(text) if "|" in text else ()
    yield from _HERE.finditer(text) if "<<<" in text else ()
    programs = [*_PROGRAM.finditer(text)]
    starts = [*(program.start() for program in programs[1:]), len(text)]
    for program, following in zip(programs, starts, strict=False):
        limit = min(following, program.end() + LONGEST)
        end = _END.search(text, program.end(), limit)
        row = int((program.lastgroup or "row0").removeprefix("row"))
        for found in _OPTIONS[row].finditer(text, program.end(), end.start() if end else limit):
            if not found["secret"].startswith("[removed"):
                yield found
