"""A sentinel is planted everywhere, and looked for in all that a run wrote."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from preflight.core.secrets import Scrubber
from tests import running

SENTINEL = "s3ntinel-7f1c-do-not-tell"
OF_A_PLUGIN = "0f-the-plugin-alone"
BY_NAME: dict[str, Any] = {
    "PGPASSWORD": "pg-4711-secret", "DOCKER_AUTH_CONFIG": '{"auths":{"r":"ZG9ja2VyOnA"}}',
    "GITHUB_PAT": "pat-4711-of-me", "SENTRY_DSN": "https-4711-sentry", "SERVICE_PRIVATE_KEY": "pem-4711-of-me",
}  # fmt: skip
RANDOM = "q8Zr2LwX0pTn5VbK7hYs"
"""Under a name that says nothing."""
CAMEL, SIGNED = "camel-4711-of-json", "signed-4711-of-url"
ORDINARY = "training"


def test_no_secret_leaves_a_run(tmp_path: Path) -> None:
    ranks = running.plain_ranks(
        3, TEST_API_KEY=SENTINEL, OTHER_URL=f"https://u:{SENTINEL}@h/", BUILD_LABEL=RANDOM, CAMEL=CAMEL,
        LINK=f"https://h/o?X-Amz-Date=1&X-Amz-Signature={SIGNED}", DB_PASSWORD=ORDINARY, **BY_NAME,
    )  # fmt: skip
    texts = (f"plugin.spills_secrets.hint={SENTINEL}", f"plugin.spills_secrets.token={OF_A_PLUGIN}")
    more = [word for text in texts for word in ("--set", text)]
    finished = running.run_ranks(tmp_path, ranks, *running.SMALL, "--plugin", "spills_secrets", *more)
    assert finished.check("plugin.spills_secrets")["status"] == "fail", finished.told()
    assert SENTINEL not in finished.output, finished.told()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.json", "facts.jsonl.gz", "report.html", "report.md", "junit.xml"} <= {path.name for path in files}
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for secret in (SENTINEL, OF_A_PLUGIN, *BY_NAME.values(), RANDOM, SIGNED, f"DB_PASSWORD={ORDINARY}"):
            assert secret.encode() not in data, (path, secret)
        assert f"'apiKey': '{CAMEL}'".encode() not in data, path
    (log,) = tmp_path.rglob("logs/plugin.spills_secrets.rank-1.log")
    assert f"the {ORDINARY} goes on" in log.read_text()


def test_none_is_shown_with_a_check_that_passes(tmp_path: Path) -> None:
    ranks = running.plain_ranks(1, TEST_API_KEY=SENTINEL, CAMEL=CAMEL, LINK="")
    token = ("--plugin", "spills_secrets", "--set", f"plugin.spills_secrets.token={OF_A_PLUGIN}")
    finished = running.run_ranks(tmp_path, ranks, "--only", "plugin.spills_secrets", *token)
    assert "used [removed] and [removed]" in finished.output, finished.told()
    assert SENTINEL not in finished.output and OF_A_PLUGIN not in finished.output, finished.told()


@pytest.mark.parametrize("advice", ["call wandb.login(key=[your_api_key])", "set HF_TOKEN=<your_token>"])
def test_advice_is_no_secret(advice: str) -> None:
    assert Scrubber({}).text(advice) == advice
    assert "your_own_9f3" not in Scrubber({}).text("wandb.login(key=your_own_9f3)")
