"""On a machine with a GPU, by `make test-gpu`: NCCL itself, with one rank, and with several on one GPU. Each of these
has an NCCL_HOSTID of its own, so NCCL takes them for nodes and goes over sockets.

With PREFLIGHT_TEST_KEEP=FOLDER the reports and the facts are left there.
"""

import gzip
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.nodes import run_nodes
from tests.running import Finished

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="there is no nvidia-smi here"),
]
WORLD = 3


def of_comm(finished: Finished) -> list[dict[str, Any]]:
    """gpu.inventory tells that ranks share a GPU."""
    return [finding for finding in finished.findings() if finding["code"].startswith("comm.")]


def facts(finished: Finished, check: str) -> list[dict[str, Any]]:
    with gzip.open(finished.folder / "facts.jsonl.gz", "rt") as lines:
        return [line["facts"] for line in map(json.loads, lines) if line["check"] == check]


def kept(finished: Finished, name: str) -> Finished:
    if keep := os.environ.get("PREFLIGHT_TEST_KEEP"):
        shutil.copytree(finished.folder, Path(keep) / name, dirs_exist_ok=True)
        (Path(keep) / name / "screen.txt").write_text(finished.told())
    return finished


def as_nodes(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, host_ids: bool = True, shm_of: int = -1
) -> Finished:
    """Ranks on one GPU, a node each. `shm_of`: the rank that has 1 MiB of /dev/shm."""
    wrap = {rank: ["env", f"NCCL_HOSTID=host-{rank}"] for rank in range(WORLD if host_ids else 0)}
    small = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh"]
    wrap |= {shm_of: [*small, *wrap[shm_of]]} if shm_of >= 0 else {}
    own = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **(environ or {})}
    return run_nodes(folder, WORLD, *arguments, environ=own, wrap=wrap)


def test_one_rank(tmp_path: Path) -> None:
    finished = kept(running.run_torchrun(tmp_path, 1, "--all", "--only", "comm", deadline_s=240), "one_rank")
    assert finished.report["job"]["backend"] == "nccl", finished.told()
    assert of_comm(finished) == [], finished.told()
    (of_rank,) = facts(finished, "comm.transports")
    assert of_rank["version"] and of_rank["network"] and of_rank["channels"], of_rank
    assert finished.check("comm.transports")["summary"].startswith(f"NCCL {of_rank['version']}"), finished.told()


def test_several_ranks_on_one_gpu(tmp_path: Path) -> None:
    finished = kept(as_nodes(tmp_path, "--all", "--only", "comm"), "several_ranks")
    assert [finding for finding in of_comm(finished) if finding["severity"] == "fail"] == [], finished.told()
    for finding in facts(finished, "comm.transports"):
        assert set(finding["ways"]["net"]) == {"NET/Socket"} and finding["ways"]["node"] == {}, finding
        assert (finding["network"], finding["nodes"], finding["local_ranks"]) == ("Socket", WORLD, 1)
        assert finding["settings"]["NCCL_HOSTID"].startswith("host-") and finding["sockets"] and finding["cuda_driver"]
    assert "Socket between nodes" in finished.check("comm.transports")["summary"], finished.told()


def test_the_whole_plan_of_several_ranks(tmp_path: Path) -> None:
    """Training, too: what is found is only that they share a GPU. Over sockets, 1 GiB takes them 4 s."""
    finished = kept(as_nodes(tmp_path, "--all", *running.SMALL, "--skip", "train.compile"), "several_all")
    found = {finding["code"] for finding in finished.findings() if not finding["code"].startswith("gpu.")}
    assert found == set(), finished.told()


def test_ranks_of_one_node_that_nccl_takes_for_several(tmp_path: Path) -> None:
    """The same, but to preflight they are one node."""
    run = running.Run(tmp_path)
    words = running.preflight("--only", "comm.transports", "--report", str(tmp_path), "--deadline", "60")
    for rank, place in enumerate(running.plain_ranks(2)):
        run.start(words, {**place, "NCCL_HOSTID": f"host-{rank}", "CUDA_VISIBLE_DEVICES": "0"})
    finished = kept(run.finish(), "split_node")
    found = [finding for finding in of_comm(finished) if finding["code"] == "comm.transports.split_node"]
    assert [finding["where"].get("variable") for finding in found] == ["NCCL_HOSTID"], finished.told()


def test_each_way_is_timed_in_processes_of_its_own(tmp_path: Path) -> None:
    """They all go over sockets here, and are as quick."""
    finished = kept(as_nodes(tmp_path, "--only", "comm.paths"), "paths")
    assert of_comm(finished) == [], finished.told()
    (of_ranks,) = {tuple(timing["variant"] for timing in of["timings"]) for of in facts(finished, "comm.paths")}
    assert len(of_ranks) == 8, of_ranks
    assert not [timing for of in facts(finished, "comm.paths") for timing in of["timings"] if timing["failed"]]


def test_a_wrong_interface(tmp_path: Path) -> None:
    finished = kept(as_nodes(tmp_path, "--only", "comm.init", environ={"NCCL_SOCKET_IFNAME": "none9"}), "interface")
    codes = {finding["code"]: finding["where"].get("variable") for finding in of_comm(finished)}
    assert codes == {"comm.init.no_interface": "NCCL_SOCKET_IFNAME"}, finished.told()


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    """Without an NCCL_HOSTID."""
    finished = kept(as_nodes(tmp_path, "--only", "comm.init", host_ids=False), "duplicate_gpu")
    assert "comm.init.duplicate_gpu" in {finding["code"] for finding in of_comm(finished)}, finished.told()


def test_a_network_that_is_not_there(tmp_path: Path) -> None:
    finished = kept(as_nodes(tmp_path, "--only", "comm.init", environ={"NCCL_NET": "Nothing"}), "no_network")
    found = [finding for finding in of_comm(finished) if finding["code"] == "comm.init.plugin"]
    assert {finding["where"].get("variable") for finding in found} == {"NCCL_NET"}, finished.told()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a small /dev/shm needs root and unshare")
def test_a_full_shm(tmp_path: Path) -> None:
    finished = kept(as_nodes(tmp_path, "--only", "comm.init", shm_of=1), "shared_memory")
    (finding,) = [finding for finding in of_comm(finished) if finding["code"] == "comm.init.shared_memory"]
    assert (finding["where"]["rank"], finding["noticed_by"]) == (1, "0,2"), finished.told()
