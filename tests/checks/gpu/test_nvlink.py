"""Judging on made-up facts; real runs stand in test_gpu_faults.py."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.gpu import nvlink
from preflight.checks.gpu.nvlink import catalog, fabric, imex
from tests import made
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_gpus import on_nodes
from tests.large import timed

Facts = dict[int, dict[str, Any]]
H100, NVL, UNKNOWN = "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA Z999"
CLUSTER = "ab" * 16
NO_IMEX = {"channels": 0, "usable": 0, "service": None, "switched_off": ""}
WORKING = {"channels": 1, "usable": 1, "service": True, "switched_off": ""}


def link(number: int, end: str | None, speed: int = 26562, kind: str = "switch", **errors: int) -> dict[str, Any]:
    """`end`: the bus id of the other end, None of a link that is down."""
    up = end is not None
    return {
        "link": number, "active": up, "version": 6 if up else None, "speed_mbps": speed if up else None,
        "remote": end, "remote_type": kind if up else None, "errors": errors,
    }  # fmt: skip


def switched() -> list[dict[str, Any]]:
    """18 links to four NVSwitches."""
    return [link(number, f"0000:{7 + number * 4 // 18:02x}:00.0") for number in range(18)]


def meshed(counts: Sequence[str], kind: str = "gpu", speed: int = 25781) -> list[list[dict[str, Any]]]:
    """A row a GPU, how many links go to each other GPU; a hyphen at the end is a link that is down."""
    buses = [handle["bus"] for handle in made_gpus.handles(0, len(counts)).values()]
    found = []
    for row in counts:
        ends = [buses[peer] for peer, count in enumerate(row.strip("-")) for _ in range(int(count))]
        found.append([link(at, end, speed, kind) for at, end in enumerate([*ends, *[None] * row.count("-")])])
    return found


def part(clique: int = 0, cluster: str = fabric.NO_CLUSTER, **more: Any) -> dict[str, Any]:
    return {
        "state": 3, "status": 0, "health_mask": 0, "health_summary": 0, "clique": clique, "cluster": cluster, **more,
    }  # fmt: skip


def node(links: Sequence[list[dict[str, Any]]], number: int = 0, **more: Any) -> dict[str, Any]:
    """What the one rank of a node measures: `links` of each of its GPUs, `fabric` of all."""
    joined = more.pop("fabric", None)
    gpus = {f"GPU-{number}-{gpu}": {"links": of, "fabric": joined and dict(joined)} for gpu, of in enumerate(links)}
    look = made_gpus.look(gpus)
    return {"look": look, "counters": [], "switches": [], "imex": WORKING, "disabled": False, **more}


def judged(
    nodes: Sequence[dict[str, Any]], name: str = H100, backend: str = "nccl", mig: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One rank a node, and as many GPUs as it has measured."""
    found = {rank: made_gpus.rank_of(rank, 0, len(facts["look"]["gpus"])) for rank, facts in enumerate(nodes)}
    for of_rank in found.values():
        for handle in of_rank["seen"]["gpus"].values():
            handle["name"] = name
        for uuid in set(mig) & set(of_rank["look"]["gpus"]):
            of_rank["look"]["gpus"][uuid]["mig"] = {"current": True, "pending": True, "devices": []}
    nodes_of = on_nodes(*[1] * len(nodes))
    return testing.judge(
        nvlink, dict(enumerate(nodes)), nodes=nodes_of, backend=backend, reads={"gpu.inventory": found}
    )


def short(findings: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """(severity, slug, node, gpu, link) of each."""
    return [
        (
            finding["severity"],
            finding["code"].rpartition(".")[2],
            *(finding["where"].get(key) for key in ("node", "gpu", "link")),
        )
        for finding in findings
    ]


def down(links: list[dict[str, Any]], *numbers: int) -> list[dict[str, Any]]:
    return [link(entry["link"], None) if entry["link"] in numbers else entry for entry in links]


MESH = ["01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120"]


@pytest.mark.parametrize(
    ("links", "name"),
    [
        ([switched()] * 8, H100),
        ([switched()], H100),
        ([down(switched(), *range(18))], H100),
        ([[]] * 4, UNKNOWN),
        ([[]], H100),
        ([down(switched(), 4, 5, 10, 11, 16, 17)] * 2, NVL),
        ([down(switched(), *range(18))], "NVIDIA GH200 480GB"),
        ([down(switched(), *range(12, 18))] * 8, UNKNOWN),
        (meshed(MESH), "Tesla V100-SXM2-32GB"),
        (meshed([row[:4] + "-" for row in MESH[:4]]), "Tesla V100-SXM2-16GB"),
        ([[link(at, "0000:00:00.0", 50000) for at in range(18)]] * 8, "NVIDIA B200"),
    ],
    ids=["h100", "one", "one_alone", "none", "vm", "nvl", "gh200", "unknown", "mesh", "part_of_a_mesh", "b200"],
)  # fmt: skip
def test_a_sound_node_gives_no_finding(links: list[list[dict[str, Any]]], name: str) -> None:
    assert judged([node(links)], name) == []


def test_the_catalog_knows_exact_names_only() -> None:
    product = catalog.known(NVL)
    assert product and (product.links, product.bridge, product.speed_mbps) == (12, True, 26562)
    assert catalog.known("NVIDIA GH200 480GB") != catalog.known("NVIDIA H200")
    assert catalog.known("NVIDIA H100") is None and catalog.known("NVIDIA H200-1-18C") is None
    assert all(card.source and (card.links is None) <= (not card.bridge) for card in catalog._table().values())


def test_unknown_cards_are_compared_with_their_siblings_and_never_fail() -> None:
    found = judged([node([*[switched()] * 7, down(switched(), 2)])], UNKNOWN)
    assert short(found) == [("warn", "inactive", "node-0", 7, 2)]
    assert "17 are up, expected 18 as on 7 of 8 GPUs of the node" in found[0]["message"]
    assert judged([node([switched()])], UNKNOWN) == []


def test_a_node_with_fewer_links_than_the_others_is_told_once() -> None:
    nodes = [node([switched()] * 4, number) for number in range(3)]
    nodes[1] = node([down(switched(), 0, 1)] * 4, 1)
    assert short(judged(nodes, UNKNOWN)) == [("warn", "inactive", "node-1", None, None)]


def test_a_part_of_a_mesh_is_compared_with_that_of_other_nodes() -> None:
    part_of = [row[:4] + "-" * (6 - sum(map(int, row[:4]))) for row in MESH[:4]]
    lost = ["0012---", "0021---", *part_of[2:]]
    nodes = [node(meshed(rows), at) for at, rows in enumerate((part_of, lost, part_of))]
    (found,) = judged(nodes, "Tesla V100-SXM2-16GB")
    where = {"node": "node-1", "gpu": 0, "uuid": "GPU-1-0", "serial": "1650000010", "peer_gpu": 1}
    assert (found["severity"], found["where"]) == ("warn", where)
    assert "3 of GPU 0 are up, expected 4 as on 2 of 3 nodes" in found["message"]


def test_without_a_majority_nobody_is_named() -> None:
    found = judged([node([switched(), down(switched(), 2)])], UNKNOWN)
    assert short(found) == [("warn", "inactive", None, None, None)]
    assert "18 on GPU 0, 17 on GPU 1 of node-0" in found[0]["message"]


def test_cards_without_a_bridge_are_worth_knowing() -> None:
    alone, bridged = down(switched(), *range(18)), down(switched(), 4, 5, 10, 11, 16, 17)
    assert short(judged([node([alone] * 4)], NVL)) == [("info", "no_bridge", "node-0", None, None)]
    assert short(judged([node([alone, alone, bridged, bridged])], NVL)) == [("info", "no_bridge", None, None, None)]
    found = judged([node([alone, *[bridged] * 7])], NVL)
    assert short(found) == [("warn", "inactive", "node-0", 0, None)]


def test_links_that_are_down_by_design_are_not_named() -> None:
    bridged = down(switched(), 4, 5, 10, 11, 16, 17)
    found = judged([node([*[bridged] * 3, down(bridged, 8)])], NVL)
    assert short(found) == [("warn", "inactive", "node-0", 3, 8)]
    assert judged([node([down(bridged, 8)] * 2)], NVL)[0]["where"].get("link") is None


def test_a_gpu_in_mig_mode_has_no_links() -> None:
    nodes = [node([down(switched(), *range(18)), *[switched()] * 7])]
    assert short(judged(nodes)) == [("fail", "inactive", "node-0", 0, None)]
    assert judged(nodes, mig=["GPU-0-0"]) == []


def with_pairs_down(*pairs: tuple[int, int]) -> list[str]:
    rows = [list(map(int, row)) for row in MESH]
    for one, other in pairs:
        rows[one][other] -= 1
        rows[other][one] -= 1
    return ["".join(map(str, row)) + "-" * (6 - sum(row)) for row in rows]


@pytest.mark.parametrize("pairs", [((0, 1),), ((0, 3),), ((0, 1), (5, 6)), ((0, 4), (2, 3)), ((0, 3), (0, 3))], ids=str)
def test_pairs_of_a_cube_mesh_are_found(pairs: tuple[tuple[int, int], ...]) -> None:
    found = judged([node(meshed(with_pairs_down(*pairs)))], "Tesla V100-SXM2-32GB")
    told = {(finding["where"]["gpu"], finding["where"]["peer_gpu"]) for finding in found}
    assert told == set(pairs) and {finding["severity"] for finding in found} == {"fail"}, found


def test_a_gpu_that_all_lost_links_lead_to_is_blamed() -> None:
    lost = with_pairs_down((3, 0), (3, 0), (3, 1), (3, 2), (3, 2), (3, 7))
    found = judged([node(meshed(lost))], "Tesla V100-SXM2-32GB")
    assert short(found) == [("fail", "inactive", "node-0", 3, None)]
    assert "6 NVLinks to GPUs 0-2,7 are down" in found[0]["message"]


def test_links_that_only_one_end_calls_dead_are_its_own() -> None:
    links = meshed(MESH)
    links[4] = down(links[4], 2)
    (found,) = judged([node(links)], "Tesla V100-SXM2-32GB")
    assert (found["where"]["gpu"], found["where"]["link"], found["where"]["peer_gpu"]) == (4, 2, 5)


def test_a_switch_is_blamed_for_the_links_of_most_gpus_only() -> None:
    three = [*[down(switched(), 0)] * 3, *[switched()] * 5]
    assert [finding[1] for finding in short(judged([node(three)]))] == ["inactive"] * 3
    scattered = [*[down(switched(), 0)] * 3, *[down(switched(), 17)] * 3, *[switched()] * 2]
    assert [finding[1] for finding in short(judged([node(scattered)]))] == ["inactive"] * 6
    five = [*[down(switched(), 0)] * 5, *[switched()] * 3]
    (found,) = judged([node(five)])
    assert (found["code"], found["where"]) == ("gpu.nvlink.switch", {"node": "node-0", "device": "0000:07:00.0"})


def test_a_switch_without_any_link_is_found_by_the_bus() -> None:
    lost = [down(switched(), *range(5))] * 8
    listed = [f"0000:0{number}:00.0" for number in (7, 8, 9)] + ["0000:0a:00.0"]
    (found,) = judged([node(lost, switches=listed)])
    assert found["code"] == "gpu.nvlink.switch" and found["where"]["device"] == "0000:07:00.0"
    assert short(judged([node(lost)])) == [("fail", "inactive", "node-0", None, None)]


def test_errors_are_held_against_the_other_links_of_the_node() -> None:
    worn = [link(at, "0000:07:00.0", crc_flit=5000) for at in range(18)]
    assert judged([node([worn] * 8)]) == []
    known = [link(at, "0000:07:00.0") for at in range(18)]
    known[4]["errors"] = {"crc_flit": 5000, "replay": 999}
    found = judged([node([known, *[switched()] * 7])])
    assert short(found) == [("warn", "errors", "node-0", 0, 4)]
    assert "replay" not in found[0]["message"]
    assert judged([node([[link(at, "x", recovery=9, ecc=10**6) for at in range(18)], *[switched()] * 7])]) == []


def test_dead_links_explain_what_the_fabric_says() -> None:
    nodes = [node([*[switched()] * 7, down(switched(), 2)], fabric=part(health_mask=0x1AA))]
    nodes[0]["look"]["gpus"]["GPU-0-7"]["fabric"] |= {"health_mask": 0x5A9, "health_summary": 2}
    assert short(judged(nodes)) == [("fail", "inactive", "node-0", 7, 2)]
    nodes[0]["look"]["gpus"]["GPU-0-7"]["fabric"] |= {"state": 2}
    assert short(judged(nodes)) == [("fail", "inactive", "node-0", 7, 2)]


@pytest.mark.parametrize(
    ("more", "told", "severity"),
    [
        ({"health_mask": 0x1A6}, "routes that are being recovered", "warn"),
        ({"health_mask": 0x16A}, "an access that timed out", "warn"),
        ({"health_mask": 0x4AA}, "a wrong configuration (no partition)", "fail"),
        ({"health_mask": 0x21AA}, "no partition assigned", "warn"),
        ({"health_mask": 0x81AA}, "no connection to the fabric manager", "warn"),
        ({"health_mask": None, "health_summary": 3}, "limited capacity", "warn"),
        ({"health_mask": 0x51AA, "health_summary": 1}, "", ""),
    ],
)  # fmt: skip
def test_the_health_mask_is_read_bit_by_bit(more: dict[str, Any], told: str, severity: str) -> None:
    found = judged([node([switched()], fabric=part(**more))])
    assert [(finding["severity"], finding["code"]) for finding in found] == [
        (severity, "gpu.nvlink.fabric_health")
    ] * bool(told)
    assert all(told in finding["message"] for finding in found)


def test_cliques_and_domains_are_compared_between_nodes() -> None:
    def racks(*cliques: tuple[int, str]) -> list[dict[str, Any]]:
        return [node([switched()] * 4, at, fabric=part(*clique)) for at, clique in enumerate(cliques)]

    assert judged(racks((1, CLUSTER), (1, CLUSTER), (1, CLUSTER))) == []
    odd = judged(racks((1, CLUSTER), (9, CLUSTER), (1, CLUSTER)))
    assert short(odd) == [("warn", "clique", "node-1", None, None)]
    assert "clique 9 of domain abababab..., expected clique 1 as on 2 of 3 nodes" in odd[0]["message"]
    assert short(judged(racks((1, CLUSTER), (1, CLUSTER), (1, "cd" * 16)))) == [("info", "domains", None, None, None)]
    outside = judged(racks((1, CLUSTER), (0, fabric.NO_CLUSTER), (1, CLUSTER)))
    assert short(outside) == [("warn", "clique", "node-1", None, None)]


def test_nodes_of_a_domain_and_of_a_clique_belong_together() -> None:
    card: Any = SimpleNamespace
    fabrics: list[Any] = [
        (card(node=f"node-{at}"), part(clique, cluster))
        for at, (clique, cluster) in enumerate([(1, CLUSTER), (1, CLUSTER), (2, CLUSTER), (0, fabric.NO_CLUSTER)])
        for _ in range(2)
    ]
    fabrics += [(card(node="node-4"), part(clique, CLUSTER)) for clique in (1, 2)]
    found = {group.name: group.nodes for group in fabric.groups(fabrics)}
    assert found == {
        "NVLink domain abababab...": ("node-0", "node-1", "node-2"),
        "clique 1 of domain abababab...": ("node-0", "node-1"),
        "clique 2 of domain abababab...": ("node-2",),
    }


@pytest.mark.parametrize(
    ("imex", "told", "backend", "severity"),
    [
        (NO_IMEX, "there is no channel", "nccl", "fail"),
        (NO_IMEX, "there is no channel", "gloo", "info"),
        ({**WORKING, "usable": 0}, "none of the channels in /dev/nvidia-caps-imex-channels (1) may", "nccl", "fail"),
        ({**WORKING, "service": False}, "nvidia-imex is not running", "nccl", "fail"),
        ({**WORKING, "service": None}, "", "nccl", ""),
        ({**NO_IMEX, "switched_off": "NCCL_MNNVL_ENABLE is 0"}, "but NCCL_MNNVL_ENABLE is 0", "nccl", "info"),
    ],
)  # fmt: skip
def test_imex_is_needed_where_a_domain_has_several_nodes(
    imex: dict[str, Any], told: str, backend: str, severity: str
) -> None:
    nodes = [node([switched()] * 4, at, fabric=part(1, CLUSTER)) for at in range(2)]
    nodes[1]["imex"] = imex
    found = judged(nodes, backend=backend)
    assert short(found) == [(severity, "imex", "node-1", None, None)] * bool(told)
    assert all(told in finding["message"] for finding in found)
    without = [node([switched()] * 4, imex=NO_IMEX, fabric=part())]
    assert judged(without) == []


def test_imex_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(imex, "CHANNELS", str(tmp_path))
    monkeypatch.setattr(imex, "SERVICE", "of-no-process")  # another test may have a stand-in of the service
    for name in ("channel0", "channel1", "other"):
        (tmp_path / name).touch()
    ctx: Any = SimpleNamespace(environ={"NCCL_CUMEM_ENABLE": "0"})
    found = imex.look(ctx, {CLUSTER}, confined=False)
    assert found == {"channels": 2, "usable": 2, "service": False, "switched_off": "NCCL_CUMEM_ENABLE is 0"}
    with open("/proc/self/comm") as own:
        monkeypatch.setattr(imex, "SERVICE", own.read().strip())
    assert imex.look(ctx, {CLUSTER}, confined=False)["service"] is True
    assert imex.look(ctx, {CLUSTER}, confined=True)["service"] is None
    assert imex.look(ctx, {fabric.NO_CLUSTER}, confined=False)["service"] is None


def test_512_nodes_with_one_dead_link_are_judged() -> None:
    nodes = [node([switched() for _ in range(8)], number, fabric=part()) for number in range(512)]
    nodes[300]["look"]["gpus"]["GPU-300-5"]["links"] = down(switched(), 9)
    with timed("gpu.nvlink, 512 nodes with one dead link"):
        assert short(judged(nodes)) == [("fail", "inactive", "node-300", 5, 9)]


@pytest.mark.parametrize(
    ("links", "summary"),
    [
        (lambda: [switched()] * 8, "8 GPUs, 18 links each at 26.6 GB/s, NVSwitch"),
        (lambda: [switched(), switched()[:1]], "1 GPU, 18 links each; 1 GPU, 1 link each at 26.6 GB/s, NVSwitch"),
        (lambda: meshed(MESH), "8 GPUs, 6 links each at 25.8 GB/s, GPU to GPU"),
        (lambda: [down(switched(), *range(18))], "no NVLink is up"),
        (lambda: [[]] * 2, "the GPUs have no NVLink"),
    ],
)  # fmt: skip
def test_the_summary_counts_links(links: Callable[[], list[list[dict[str, Any]]]], summary: str) -> None:
    facts: Any = {0: node(links())}
    inventory = {0: made_gpus.rank_of(0, 0, len(links()))}
    run = Run(made.job(1), (0,), {}, facts_of=lambda _: inventory)
    assert nvlink.summarize(facts, run) == summary


def test_nvlink_that_the_driver_has_turned_off_is_one_info() -> None:
    down = [{**link, "active": False, "remote": None, "errors": {}} for link in switched()]
    (found,) = judged([node([down] * 4, disabled=True)])
    assert (found["severity"], found["code"], found["where"]) == ("info", "gpu.nvlink.inactive", {"node": "node-0"})
    assert "NvLinkDisable" in found["fix"]


def test_on_one_node_imex_is_not_needed() -> None:
    (found,) = judged([node([switched()] * 4, imex=NO_IMEX, fabric=part(1, CLUSTER))])
    assert (found["severity"], found["code"]) == ("info", "gpu.nvlink.imex")


@pytest.mark.parametrize(("up_s", "looks"), [(100.0, 2), (1000.0, 1)])
def test_on_a_node_that_has_just_booted_links_may_still_come_up(
    monkeypatch: pytest.MonkeyPatch, up_s: float, looks: int
) -> None:
    down = {**switched()[0], "active": False}
    answers = [{"links": [down, *switched()[1:]], "fabric": None}, {"links": switched(), "fabric": None}]
    left = iter(answers)
    session = SimpleNamespace(look=lambda *_: made_gpus.look({"GPU-0-0": next(left)}))
    monkeypatch.setattr(nvlink.nvml_survey, "session", lambda: session)  # type: ignore[attr-defined]
    monkeypatch.setattr(nvlink.time, "clock_gettime", lambda _: up_s)  # type: ignore[attr-defined]
    monkeypatch.setattr(nvlink, "PAUSE_S", 0.0)
    context = type("Context", (), {"deadline_s": 60.0, "doing": lambda *_: None, "__getitem__": lambda *_: 30.0})()
    assert nvlink._settled(context)["gpus"]["GPU-0-0"] is answers[looks - 1]
