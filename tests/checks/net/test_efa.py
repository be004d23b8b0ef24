"""EFA in trees over /sys, with a stub of fi_info and of NCCL's plugin, on real nodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.net import efa
from tests.checks.net.made_hcas import NCCL, Card, is_told, needs_mounts, write
from tests.nodes import run_nodes
from tests.running import Finished

NEW, OLD = "2.4.0amzn5.0", "2.1.0amzn1.0"
SAYS = """#!/bin/sh
if [ "$1" = --version ]; then printf 'fi_info: {version}\\nlibfabric: {version}\\nlibfabric api: 2.4\\n'; exit; fi
[ "$1 $2" = "-p efa" ] || exit 1
{then}
"""
"""As fi_info does (libfabric, util/info.c)."""


def cards(number: int = 2) -> list[Card]:
    about: dict[str, Any] = {"vendor": "0x1d0f", "device": "0xefa2", "layer": "Unspecified", "firmware": "0.0.0.0"}
    return [Card(f"rdmap{place}s0", place, board="", rate="100 Gb/sec (4X EDR)", **about) for place in range(number)]


def shows(*devices: str) -> str:
    kinds = (("rdm", "FI_EP_RDM"), ("dgrm", "FI_EP_DGRAM"))
    form = "provider: efa\\n    fabric: efa\\n    domain: {}-{}\\n    version: 204.0\\n    type: {}\\n"
    return f"printf '{''.join(form.format(device, *kind) for device in devices for kind in kinds)}'"


BOTH = shows("rdmap0s0", "rdmap1s0")
FAILS = "echo 'fi_getinfo: -61' >&2; exit 61"


def installed(folder: Path, then: str = BOTH, version: str = NEW, plugin: str = "1.17.2") -> dict[str, str]:
    """The environment of a node on which fi_info does this."""
    folder.mkdir(parents=True)
    program = folder / "fi_info"
    program.write_text(SAYS.format(version=version, then=then))
    program.chmod(0o755)
    if plugin:
        (folder / "libnccl-net-ofi.so").write_bytes(
            b"\x7fELF\x00Initializing aws-ofi-nccl " + plugin.encode() + b"\x00"
        )
    return {"PATH": f"{folder}:/usr/bin:/bin", "NCCL_NET_PLUGIN": "ofi", "LD_LIBRARY_PATH": str(folder)}


def run(tmp_path: Path, *nodes: Mapping[str, str]) -> Finished:
    tree = write(tmp_path / "tree", cards())
    before = dict.fromkeys(range(len(nodes)), f"mount --bind {tree}/sys/class /sys/class")
    own = dict(enumerate(nodes))
    words = ["--only", "net.efa", "--all"]
    return run_nodes(tmp_path, len(nodes), *words, before=before, environ={"PYTHONPATH": NCCL}, own=own)


@needs_mounts
def test_what_libfabric_does_not_show_and_other_versions(tmp_path: Path) -> None:
    one = installed(tmp_path / "one", shows("rdmap0s0"))
    finished = run(tmp_path, installed(tmp_path / "zero"), one, installed(tmp_path / "two", BOTH, OLD))
    is_told("efa_unseen efa_versions", finished)


@needs_mounts
@pytest.mark.more
def test_one_that_hangs_and_a_node_without_the_plugin(tmp_path: Path) -> None:
    hangs = installed(tmp_path / "one", "exec sleep 1000")
    finished = run(tmp_path, installed(tmp_path / "zero", plugin=""), hangs)
    is_told("efa_silent efa_no_plugin", finished)


# In this process


def facts(**more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"devices": ["a", "b"], "seen": ["a", "b"], "silent": "", "error": "", "libfabric": NEW}
    return {**known, "plugin": "1.17.2", "path": "/opt/x.so", **more}


def judged(*nodes: Mapping[str, Any], backend: str = "nccl") -> list[tuple[str, str, str]]:
    names = {f"node-{rank}": [rank] for rank in range(len(nodes))}
    found = testing.judge(efa, dict(enumerate(nodes)), nodes=names, backend=backend)
    return [(f"{each['severity']} {each['code']}", each["where"].get("node", ""), each["message"]) for each in found]


def test_all_is_well() -> None:
    assert judged(facts(), facts()) == []
    none = facts(devices=[], seen=None, libfabric="", plugin="", path="")
    assert judged(facts(), none) == [], "net.rdma tells of missing devices"
    unknown = facts(seen=None, libfabric="", plugin="", path=None)
    assert judged(facts(), unknown) == [], "no fi_info, and no answer"
    assert judged(facts(plugin="", path=""), backend="gloo") == []


def test_what_fi_info_says_is_told() -> None:
    (found,) = judged(facts(), facts(seen=[], error="fi_getinfo: -61"), backend="gloo")
    text = "libfabric shows 0 of 2 EFA devices (fi_getinfo: -61), expected all; a and b are missing"
    assert found == ("warn net.efa.missing", "node-1", text)


def test_where_no_node_has_a_plugin_it_may_lie_elsewhere() -> None:
    ((code, node, _),) = judged(facts(plugin="", path=""), facts(plugin="", path=""))
    assert (code, node) == ("info net.efa.no_plugin", "")


def test_two_nodes_with_two_versions_name_neither() -> None:
    ((code, node, text),) = judged(facts(), facts(libfabric=OLD))
    assert (code, node) == ("warn net.efa.versions", "")
    assert text == f"libfabric is {NEW} on node-0 and {OLD} on node-1, expected one version"
    ((_, node, text),) = judged(facts(), facts(), facts(plugin="1.13.2-aws"))
    assert (node, text) == ("node-2", "aws-ofi-nccl is 1.13.2-aws, expected 1.17.2 as on 2 of 3 nodes")


@pytest.mark.process
@pytest.mark.parametrize(
    ("then", "says"),
    [(BOTH, (NEW, ["rdmap0s0", "rdmap1s0"], "", "")), (FAILS, (NEW, [], "fi_getinfo: -61", "")),
     ("kill -SEGV $$", (NEW, [], "exit status -11", "")), ("printf '\\377 domain'", (NEW, [], "", ""))],
)  # fmt: skip
def test_fi_info_is_read(tmp_path: Path, then: str, says: tuple[Any, ...]) -> None:
    assert efa._libfabric(installed(tmp_path / "bin", then)["PATH"]) == says


def test_without_fi_info_or_plugin_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert efa._libfabric(str(tmp_path)) is None
    monkeypatch.setattr(efa, "FOLDERS", ())
    (tmp_path / "libnccl-net.so").write_bytes(b"another plugin")
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}::/not/there", "NCCL_NET_PLUGIN": ""}
    assert efa._plugin(environ) == ("", "")
