"""What a value looks like: a secret of a known form, something random, or something ordinary."""

import re
from itertools import pairwise

KNOWN_FORMS = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    + "|".join(
        (
            r"gh[oprsu]_[A-Za-z0-9]{30,255}", r"github_pat_\w{20,255}", r"glpat-[\w-]{16,255}",  # GitHub, GitLab
            r"hf_[A-Za-z0-9]{30,255}", r"nvapi-[\w-]{20,255}",  # Hugging Face, NVIDIA
            r"sk-(?:[a-z]{2,8}-)?(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{20,255}",  # OpenAI, Anthropic
            r"(?:sk|rk)_(?:live|test)_\w{16,255}", r"x(?:ox[abeoprs]|app)-[\w-]{10,255}",  # Stripe, Slack
            r"A(?:KI|SI)A[A-Z0-9]{16}(?![A-Za-z0-9])", r"AIza[\w-]{35}", r"ya29\.[\w-]{20,2000}",  # AWS, Google
            r"npm_[A-Za-z0-9]{36}", r"pypi-[\w-]{50,500}", r"dckr_pat_[\w-]{20,255}",
            r"SG\.[\w-]{16,64}\.[\w-]{16,64}", r"hv[bs]\.[\w-]{20,255}", r"AGE-SECRET-KEY-1[A-Z0-9]{50,70}",
            r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{20,255}",
            r"discord(?:app)?\.com/api/webhooks/[\w/-]{20,255}", r"bot[0-9]{8,12}:[\w-]{30,60}",  # Discord, Telegram
            r"eyJ[\w-]{8,2000}\.[\w-]{8,4000}(?:\.[\w-]{0,2000})?",  # a JSON web token
        )
    )
    + ")"
)  # fmt: skip
"""Keys whose issuers give them a form of their own, so that they can be found: under any name."""
UNSET = re.compile(
    r"True|False|[a-z_]\w{0,40}(?:\.\w{1,40}){0,5}[(\[].{0,200}"
    r"|(?:args|self|cfg|config|conf|opts|options|settings|environ|os|params)(?:\.[a-z_]\w{0,40}){1,5}"
    r"|(?:str|int|bytes|bool|float|dict|list|Any|Optional|SecretStr)(?:\b.{0,200})?"
    r"|/(?:[A-Za-z0-9_.-]{1,60}/){1,20}[A-Za-z0-9_-]{1,60}\.[a-z]{2,8}"
    r"|(?i:none|null|nil|undefined|\(?(?:un|not )set\)?|empty)|YES\)?|NO\)?|[*.•x]{3,64}|\$\{?[A-Z_][A-Z0-9_]{0,60}\}?"
    r"|[\[<](?:removed|redacted|hidden|masked|(?:your|my|the)?[a-z_ -]{1,40})[\]>]?\)?|"
)
"""What stands for a secret: nothing, stars, a variable, code or a file that has it, an instruction's <your_token>."""
_ORDINARY = re.compile(
    r"[A-Za-z]{0,30}(?:[_./: -][A-Za-z]{1,30}){0,20}[_.:]?"  # words: oauth, a file and its function
    r"|[-+]?[0-9][0-9.,:_/x-]{0,30}(?:\s?[A-Za-z%/]{1,12})?"  # numbers: 4096, 3/4, 312.5k, 12 ms
    r"|\(.{0,500}"
    r"|[\[{][-+]?[0-9.]{1,30}"  # the first of a list of numbers
    r"|[a-z0-9_.-]{1,60}(?:/[a-z0-9_.-]{0,60}){2,20}"  # paths below some folder
    r"|(?:\.{0,2}|~|[A-Za-z]:|[a-z]{1,9}:/)/[^:@]{0,1000}"  # paths and URLs
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_HEX = re.compile(r"[0-9a-f]{32,}")
PIN_DIGITS = re.compile(r"[0-9]{4,12}")


def is_ordinary(value: str) -> bool:
    """A number, words, a path or a URL without a user: no key of a machine's making."""
    return bool(_ORDINARY.fullmatch(value))


def is_word(value: str) -> bool:
    """One word or number, that stands in many texts."""
    return bool(re.fullmatch(r"[A-Z]?[a-z]{1,15}|[A-Z]{1,16}|[0-9]{1,9}", value))


def looks_random(value: str) -> bool:
    """Whether it has 20 characters that keep changing between lower case, upper case and digits, or 32 hexadecimal
    digits, and is not a path."""
    if _HEX.fullmatch(value):
        return True
    kinds = [(char.islower(), char.isupper()) for char in value if char.isalnum()]
    changes = sum(kind != after for kind, after in pairwise(kinds))
    is_path = value.startswith(("/", "./", "~")) or ":/" in value
    is_mixed = len(set(kinds)) == 3 and 3 * changes >= len(kinds)
    return len(value) >= 20 and is_mixed and not is_path and not _UUID.search(value)
