"""What somebody without the job's secret cannot write."""

import pytest

from preflight.engine import store_seal
from preflight.engine.store_keys import SERVED_BY
from preflight.engine.store_seal import BROKEN, SECRET, Seal
from preflight.errors import UsageError

OURS, OTHER = Seal("0123456789abcdef"), Seal("fedcba9876543210")
TEXT = '{"beat": 7, "doing": null}'


def test_what_a_rank_has_signed_is_read_by_the_others() -> None:
    assert OURS.open("run/beat/1", OURS.close("run/beat/1", TEXT).encode()) == TEXT
    assert Seal().open("run/beat/1", Seal().close("run/beat/1", TEXT).encode()) == TEXT
    assert OURS.open("key", OURS.close("key", "").encode()) == ""


SIGNED = OURS.close("run/beat/1", TEXT)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (TEXT.encode(), "not signed"),
        (b"", "not signed"),
        (f"{BROKEN}anything".encode(), "not signed"),
        (OTHER.close("run/beat/1", TEXT).encode(), "another secret"),
        (OURS.close("run/beat/2", TEXT).encode(), "moved"),
        (OURS.close("run/beat", f"1\0{TEXT}").encode(), "moved"),
        (SIGNED.replace("7", "8").encode(), "changed"),
        (SIGNED.replace("hmac-sha256:", "hmac-sha256:é").encode(), "changed"),
        (SIGNED[: len("hmac-sha256:") + 10].encode(), "changed"),
        (SIGNED.replace("\n", " ").encode(), "changed"),
        (f"{SIGNED}\n".encode(), "changed"),
        (SIGNED.encode() + b"\xff", "UTF-8"),
    ],
)
def test_what_nobody_of_the_run_has_signed_is_not_believed(value: bytes, says: str) -> None:
    opened = OURS.open("run/beat/1", value)
    assert opened.startswith(BROKEN) and says in opened


def test_a_rank_without_the_secret_says_so() -> None:
    assert f"{SECRET} is not set" in Seal().open("key", OURS.close("key", TEXT).encode())


def test_another_job_reads_whose_store_it_is() -> None:
    for reader in (OURS, OTHER, Seal()):
        assert reader.open(SERVED_BY, OURS.close(SERVED_BY, TEXT).encode()) == TEXT


@pytest.mark.parametrize("reader", [OTHER, Seal()], ids=["another secret", "none"])
def test_what_another_job_has_signed_can_be_read_but_is_not_believed(reader: Seal) -> None:
    opened = reader.open("run/beat/1", SIGNED.encode())
    assert store_seal.claimed(opened) == TEXT and opened.startswith(BROKEN)
    assert "\n" not in store_seal.why_broken(opened) and TEXT not in store_seal.why_broken(opened)
    assert store_seal.claimed(OURS.open("run/beat/1", TEXT.encode())) == TEXT
    assert store_seal.claimed(TEXT) == store_seal.claimed(OURS.open("key", b"\xff")) == ""


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    assert not store_seal.of({}) and not store_seal.of({SECRET: "  "})
    assert store_seal.of({SECRET: store_seal.new_secret()})
    with pytest.raises(UsageError, match="has 4 characters, expected 16 or more"):
        store_seal.of({SECRET: "1234"})


def test_a_secret_may_be_any_bytes() -> None:
    secret = b"\xe9 is no UTF-8, and long".decode(errors="surrogateescape")
    assert Seal(secret).open("key", Seal(secret).close("key", "text").encode()) == "text"
