from preflight.checks.net.mesh.messages import nodes_behind
from preflight.sdk.slurm import read_switches


def test_switches_are_read_as_slurm_writes_them() -> None:
    assert read_switches("spine.leaf-1.node-7", "switch.switch.node") == "spine.leaf-1"
    assert read_switches("s[0-1].leaf-1.node-7.example.org", "switch.switch.node") == "s[0-1].leaf-1"
    for addr, pattern in (("node-7", "node"), ("", ""), ("b1.node-7", "block.node"), ("leaf", "switch.node")):
        assert read_switches(addr, pattern) == ""
    behind = nodes_behind({0: "spine.leaf-0", 1: "spine.leaf-0", 2: "spine.leaf-1", 3: ""})
    assert behind == {frozenset({0, 1}): "leaf-0", frozenset({2}): "leaf-1", frozenset({0, 1, 2}): "spine"}
