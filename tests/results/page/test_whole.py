"""The page of a report, as HTML."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from preflight.results.page import frame, whole
from preflight.results.report import Report
from tests import made, made_cluster
from tests.pages import FROM_ELSEWHERE, Page

NASTY = """<script>alert("1")</script> & a|b 'c' {{ d }} {% raw %} ]]> --></script><img src=x onerror=alert(1)>"""


def nasty() -> Report:
    table = {"kind": "table", "title": NASTY, "heads": [NASTY], "rows": [[NASTY]], "note": NASTY}
    log = {"lines": [{"file": NASTY, "line": 1, "text": NASTY}], "also": []}
    return made.made_report(
        made.result(made.finding(message=NASTY, fix=NASTY, variable=NASTY, noticed_by="0-2"), summary=NASTY),
        made.result(made.finding("error", evidence={"lines": NASTY}), check="plugin.error", plots=[table]),
        made.result(made.finding("warn", evidence=log), check="plugin.warn"),
        made.result(check="plugin.skip", skipped=NASTY),
        options={"plugin.made.option": NASTY},
    )


def test_every_character_is_shown_and_none_is_run() -> None:
    page = Page(whole.html(nasty()))
    assert page.tags.count("script") == 2 and "img" not in page.tags
    assert page.text.count(NASTY) >= 10
    assert not [own for _, own, _ in page.attributes if own.startswith("on") or own == "style"]


def test_nothing_comes_from_elsewhere_and_only_our_own_script_runs() -> None:
    text = whole.html(made_cluster.report(2, [made.finding(node="gpu-0001")], sick=1))
    page = Page(text)
    assert not {name for _, name, _ in page.attributes} & FROM_ELSEWHERE
    assert all(value.startswith("#") for value in page.values("a", "href"))
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    policy = next(value for value in page.values("meta", "content") if "default-src" in value)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for own in (script, style):
        assert f"sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}" in policy
    assert "url(" not in style and "@import" not in style
    assert len(script.encode()) <= frame.SCRIPT_LIMIT


def island(text: str) -> dict[str, Any]:
    [packed] = re.findall(r'id="island">([^<]+)<', text)
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def test_the_verdict_says_who_and_what_to_do_and_what_is_not_known() -> None:
    found = made.finding("warn", node="node-0"), made.finding(node="node-1", rank=3)
    page = Page(whole.html(made.made_report(made.result(*found), made.result(check="plugin.b", skipped="no disk"))))
    told = " ".join(page.verdict.split())
    assert "FAIL Do not start this job. node-1, rank 3: it is 1, expected 2 Fix: mend it" in told
    assert "And 1 more warning, below." in told
    assert "Nodes that a failure names (1): node-1" in told
    assert "S Skipped plugin.b: no disk" in told


def test_a_report_of_nothing_is_a_page() -> None:
    told = Page(whole.html(made.made_report())).verdict
    assert "ERROR" in told and "Nothing was measured." in told


def test_a_report_without_plots_or_starts_is_a_page() -> None:
    """Of an older preflight."""
    page = Page(whole.html(made.made_report(made.result(outcomes=made.measured(0, 1, seconds=2.0)))))
    assert "Timeline of the run" in page.text and "figure" not in page.tags


def test_what_a_newer_preflight_draws_is_left_out() -> None:
    page = Page(whole.html(made.made_report(made.result(plots=[{"kind": "table", "title": "t", "heads": ["a"],
                                                                "rows": [["b"]], "new": 1}]))))  # fmt: skip
    assert page.tags.count("figure") == 1
    report = made.made_report(made.result())
    cube: dict[str, Any] = {"kind": "cube", "title": "of tomorrow"}
    report = replace(report, checks=[replace(report.checks[0], plots=[cube])])
    assert "figure" not in Page(whole.html(report)).tags


def test_every_picture_has_a_role_and_a_name_and_every_plot_a_table() -> None:
    page = Page(whole.html(made_cluster.report(4, sick=1)))
    roles = [name for tag, name, _ in page.attributes if tag == "svg"]
    images = page.values("svg", "role")
    assert images and set(images) == {"img"} and len(page.values("svg", "aria-label")) == len(images)
    assert len(images) + roles.count("aria-hidden") == page.tags.count("svg")
    assert page.tags.count("table") >= page.tags.count("figure")
    assert len(page.values("canvas", "aria-label")) == page.tags.count("canvas")


@pytest.mark.parametrize(
    ("nodes", "most"), [(64, 300_000), (1024, 2_000_000), pytest.param(8192, 5_000_000, marks=pytest.mark.more)]
)
def test_it_stays_small(nodes: int, most: int) -> None:
    findings = [made.finding("warn", f"it is {n}, expected 2", node=made_cluster.name(n % nodes)) for n in range(300)]
    text = whole.html(made_cluster.report(nodes, findings, sick=nodes // 3))
    assert len(text.encode()) <= most
    assert len(island(text)["nodes"]) == nodes
    joined = "Each row and column merges 8 neighbors" in text
    assert joined == (nodes == 8192)


SICK = (
    ("fail", "comm.pairs.slow_node", {"node": "gpu-0511"}),
    ("fail", "gpu.health.uncorrected", {"node": "gpu-0002", "gpu": 5}),
    ("warn", "gpu.compute.slow", {"node": "gpu-0900", "rank": 7203}),
    ("fail", "comm.all_reduce.timed_out", {"rank": 77}),
    ("warn", "env.variables.differs", {"node": "gpu-0020", "variable": "NCCL_IB_HCA"}),
    ("fail", "preflight.run.lost", {"rank": 8191}),
    ("warn", "comm.rails.slow_rail", {"local_rank": 6}),
    ("fail", "gpu.nvlink.inactive", {"node": "gpu-1023", "gpu": 3, "link": 7}),
    ("fail", "node.storage.dead", {"node": "gpu-0300"}),
    ("warn", "node.clock.off", {"node": "gpu-0404"}),
    ("fail", "train.ddp.out_of_sync", {"rank": 4095, "parameter": "layers.3.weight"}),
    ("fail", "net.mesh.dropped", {"node": "gpu-0001", "peer_node": "gpu-0002"}),
)


def test_the_first_screen_names_the_culprit_among_a_thousand_nodes() -> None:
    """Beside noise: infos and, for a failure, warnings about others. (The fault table has those of real runs.)"""
    for severity, code, where in SICK:
        noise = [made.finding("info", f"noise {n}", node=made_cluster.name(n)) for n in range(40)]
        if severity == "fail":
            noise += [made.finding("warn", f"noise {n}", node=made_cluster.name(n)) for n in range(40)]
        results = [made.result(*noise), made.result(made.finding(severity, code=code, **where), check="plugin.sick")]
        told = Page(whole.html(made.made_report(*results, on=made_cluster.job(1024)))).verdict
        assert all(str(value) in told for value in where.values()), (code, told)
