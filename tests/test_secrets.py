"""A sentinel is planted everywhere, and looked for in all that a run wrote."""

import gzip
from pathlib import Path

from tests import running

SENTINEL = "s3ntinel-7f1c-do-not-tell"


def test_no_secret_leaves_a_run(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3, TEST_API_KEY=SENTINEL, OTHER_URL=f"https://u:{SENTINEL}@h/")
    finished = running.run_ranks(
        tmp_path, ranks, *running.SMALL, "--plugin", "spills_secrets", "--set", f"plugin.spills_secrets.hint={SENTINEL}"
    )
    assert finished.check("plugin.spills_secrets")["status"] == "fail", finished.told()
    assert SENTINEL not in finished.output, finished.told()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.json", "facts.jsonl.gz", "report.html", "report.md", "junit.xml"} <= {path.name for path in files}
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert SENTINEL.encode() not in data, path
