import json
import time
from pathlib import Path
from typing import Any

import pytest

from preflight.core.secrets import HIDDEN, Scrubber

SENTINEL = "swordfish-4711"


NAMES = [line.split("\t") for line in (Path(__file__).parent / "secret_names.tsv").read_text().splitlines()]
"""secret or plain, a name, a value that it has."""
FORMS = ("{0}={1}", "and {0}: {1}", '{{"{0}": "{1}"}}', "'{0}': '{1}'", "run --{0} {1} -v", "<{0}>{1}</{0}>")


def test_the_list_has_a_hundred_of_each() -> None:
    assert [sum(kind == wanted for kind, *_ in NAMES) for wanted in ("secret", "plain")] == [100, 100]
    assert len({name for _, name, _ in NAMES}) == 200


@pytest.mark.parametrize(("kind", "name", "value"), NAMES, ids=[name for _, name, _ in NAMES])
def test_a_name_says_whether_its_value_is_a_secret(kind: str, name: str, value: str) -> None:
    texts = [form.format(name, value) for form in FORMS]
    scrub = Scrubber({})
    if kind == "plain":
        assert [scrub.text(text) for text in texts] == texts
        assert scrub.value({name: value, "list": [f"--{name}", value]}) == {name: value, "list": [f"--{name}", value]}
        assert Scrubber({name: value}).text(f"a {value} b") == f"a {value} b"
    else:
        assert [text for text in texts if value in scrub.text(text)] == []
        cleaned = scrub.value({name: value, "list": [f"--{name}", value], "env": {"name": name, "value": value}})
        assert cleaned == {name: HIDDEN, "list": [f"--{name}", HIDDEN], "env": {"name": name, "value": HIDDEN}}
        assert Scrubber({name: f"{value}-of-17"}).text(f"a {value}-of-17 b") == f"a {HIDDEN} b"


def test_a_secret_variables_value_is_removed_wherever_it_stands() -> None:
    scrub = Scrubber({"API_TOKEN": SENTINEL, "HOME": "/home/me"})
    assert scrub.text(f"GET /x?t={SENTINEL} from /home/me") == f"GET /x?t={HIDDEN} from /home/me"


def test_of_two_secrets_the_longer_goes_first() -> None:
    scrub = Scrubber({"A_KEY": SENTINEL, "B_KEY": f"{SENTINEL}-and-more"})
    assert scrub.text(f"{SENTINEL}-and-more") == HIDDEN


def test_a_secrets_special_characters_are_taken_as_they_are() -> None:
    assert Scrubber({"A_KEY": "a.c+(d"}).text("abc+(d a.c+(d") == f"abc+(d {HIDDEN}"


def test_a_short_value_would_stand_everywhere() -> None:
    assert Scrubber({"USE_AUTH": "1", "A_KEY": "1a3b5"}).text("1a3b5 of 1") == "1a3b5 of 1"
    assert Scrubber({"A_KEY": "1a3b5c"}).text("1a3b5c of 1") == f"{HIDDEN} of 1"


@pytest.mark.parametrize("word", ["true", "password", "training", "Training", "DISABLED", "1000000"])
def test_an_ordinary_word_is_hidden_beside_its_name_only(word: str) -> None:
    scrub = Scrubber({"DB_PASSWORD": word})
    assert scrub.text(f"a {word}; DB_PASSWORD={word}") == f"a {word}; DB_PASSWORD={HIDDEN}"
    assert scrub.value({"db_password": word, "mode": word}) == {"db_password": HIDDEN, "mode": word}


RANDOM = "q8Zr2LwX0pTn5VbK7hYs"
ENVIRON = {
    "PATH": "/usr/local/bin:/usr/bin", "HOME": "/home/me", "LABEL": RANDOM, "MODEL": "meta/Llama-3.1-8B-Instruct",
    "GPU": "GPU-3f2a1b4c-0d1e-2f3a-4b5c-6d7e8f901234", "RUN_ID": "4711",
}  # fmt: skip


def test_what_looks_random_is_hidden_in_a_whole_environment() -> None:
    hidden = {**ENVIRON, "LABEL": HIDDEN}
    for printed in (
        lambda environ: "\n".join(f"{name}={value}" for name, value in environ.items()),
        lambda environ: f"environ({environ})",
        json.dumps,
    ):
        assert Scrubber({}).text(printed(ENVIRON)) == printed(hidden)
    assert Scrubber({}).value(ENVIRON) == hidden


def test_elsewhere_it_stays() -> None:
    text = f"PATH=/usr/bin HOME=/home/me LABEL={RANDOM}"
    assert Scrubber({}).text(text) == text
    assert Scrubber({}).value({"LABEL": RANDOM}) == {"LABEL": RANDOM}


def test_the_path_of_a_credentials_file_is_no_secret(tmp_path: Path) -> None:
    there, gone = tmp_path / "credentials", tmp_path / "no-such-file"
    there.write_text("")
    scrub = Scrubber({"A_CREDENTIALS": str(there), "B_KEY": str(gone)})
    assert scrub.text(f"{there} {gone}") == f"{there} {HIDDEN}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"https://me:{SENTINEL}@host/path", f"https://{HIDDEN}@host/path"),
        (f"git clone http://{SENTINEL}@host", f"git clone http://{HIDDEN}@host"),
        (f"HF_TOKEN={SENTINEL} python", f"HF_TOKEN={HIDDEN} python"),
        (f"password: {SENTINEL}, user: me", f"password: {HIDDEN}, user: me"),
        (f"db.password = '{SENTINEL} two words'", f"db.password = {HIDDEN}"),
        (f'api_key="{SENTINEL}"', f"api_key={HIDDEN}"),
        (f"a_token={SENTINEL};b=2", f"a_token={HIDDEN};b=2"),
        (f"GET https://host/o?part=1&token={SENTINEL}", f"GET https://host/o?part=1&token={HIDDEN}"),
        (
            f"https://host/o?X-Amz-Date=1&X-Amz-Signature={SENTINEL}",
            f"https://host/o?X-Amz-Date=1&X-Amz-Signature={HIDDEN}",
        ),
        (f"https://host/o?sv=1&sig={SENTINEL}", f"https://host/o?sv=1&sig={HIDDEN}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----", HIDDEN),
    ],
)
def test_secrets_that_no_variable_holds_are_found_by_their_name(text: str, expected: str) -> None:
    assert Scrubber({}).text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "all_reduce 64 MiB #12",
        "MASTER_ADDR=10.0.0.1 RANK=3",
        "see https://host/path?x=1, mail me@host",
        "the key of facts['a'] is 3",
    ],
)
def test_all_else_stays_as_it_is(text: str) -> None:
    assert Scrubber({"MASTER_ADDR": "10.0.0.1", "API_TOKEN": SENTINEL}).text(text) == text


def test_every_string_of_a_structure_is_cleaned() -> None:
    scrub = Scrubber({"API_TOKEN": SENTINEL})
    value: dict[str, Any] = {
        "list": [1, f"x {SENTINEL}", {"deep": (SENTINEL, None)}],
        f"of {SENTINEL}": 1,
        "password": "unknown to the environment",
        "number": 2.5,
        "flag": True,
    }
    assert scrub.value(value) == {
        "list": [1, f"x {HIDDEN}", {"deep": [HIDDEN, None]}],
        f"of {HIDDEN}": 1,
        "password": HIDDEN,
        "number": 2.5,
        "flag": True,
    }


def test_what_is_cleaned_is_a_copy() -> None:
    value = {"a": [SENTINEL]}
    Scrubber({"API_TOKEN": SENTINEL}).value(value)
    assert value == {"a": [SENTINEL]}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"api_key": "s3"}', '{"api_key": [removed]}'),
        ("{'password': 's3'}", "{'password': [removed]}"),
        ("run --token s3 --steps 3", "run --token [removed] --steps 3"),
        ("Authorization: Bearer s3 x", "Authorization: [removed] x"),
        ("http://u:a@b@host/x", "http://[removed]@host/x"),
        ("http://u:a/b@host/x", "http://[removed]@host/x"),
    ],
)
def test_secrets_in_other_clothes(text: str, clean: str) -> None:
    assert Scrubber({}).text(text) == clean


def test_lists_under_a_secret_name_are_hidden_and_counts_are_not() -> None:
    assert Scrubber({}).value({"tokens": ["s3-4711"], "max_tokens": 4096}) == {"tokens": [HIDDEN], "max_tokens": 4096}


@pytest.mark.parametrize(
    "unit",
    [
        "x",
        "://",
        "a=",
        "--a ",
        "'",
        "key: Bearer ",
        "a" * 81 + ".",
        "key=",
        "A=aB3",
        "-----BEGIN PRIVATE KEY-----",
        "?sig=",
    ],
)
def test_no_text_takes_long(unit: str) -> None:
    """It runs in the supervisor: a pattern that goes back again and again would hang it."""
    text = (unit * 65536)[:65536]
    start = time.process_time()
    Scrubber({"A_TOKEN": "abcdefgh"}).text(text)
    assert time.process_time() - start < 5.0  # hours, if it does


def test_a_secret_variable_may_be_any_bytes() -> None:
    value = b"caf\xe9-0123456789".decode(errors="surrogateescape")
    assert Scrubber({"DB_PASSWORD": value}).text(f"is {value}") == f"is {HIDDEN}"
