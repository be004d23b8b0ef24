"""What the checks of the family `env` find."""

from typing import Any

from tests.faults.row import Fault, elsewhere, in_check


def _variable(name: str, value: str, story: str, *finds: str, **more: Any) -> Fault:
    """Of rank 1 of three."""
    culprit = {"rank": 1, "variable": name.partition("+")[0]}
    return in_check(
        f"variable_{name.lower()}_{len(value)}", story, f"`{name}={value}` on rank 1", *finds, only="env.variables",
        environ_of={1: {name: value}}, culprit=culprit, **more,
    )  # fmt: skip


_V = "env.variables"
VARIABLES = (
    _variable("NCCL_CROSS_NIC", "1", "An NCCL variable is set on one rank only.", f"fail {_V}.unlike"),
    _variable("OMP_NUM_THREADS", "2", "OMP_NUM_THREADS differs on one rank.", f"warn {_V}.unlike"),
    _variable("NCCL_SOCKET_IFNAM", "eth0", "A variable is misspelt.", f"warn {_V}.unknown", f"warn {_V}.unlike"),
    _variable("NCCL_IB_DISABLE", "true", "A number is written as a word.", f"fail {_V}.unlike",
              f"warn {_V}.wrong_value"),
    _variable("NCCL_TIMEOUT", "1800", "A variable that NCCL never had.", f"warn {_V}.no_effect"),
    _variable("NCCL_IB_CUDA_SUPPORT", "1", "A variable that NCCL has no more.", f"warn {_V}.no_effect"),
    _variable("NCCL_BLOCKING_WAIT", "1", "A variable under its old name, on one rank.", f"warn {_V}.unlike"),
    _variable("CUDA_LAUNCH_BLOCKING", "1", "A debugging variable is left over.", f"warn {_V}.leftover",
              f"warn {_V}.unlike"),
    _variable("GLOO_SOCKET_IFNAME", "^lo", "gloo's interface is given in NCCL's grammar.",
              f"fail {_V}.wrong_grammar", f"warn {_V}.unlike"),
    _variable("GLOO_SOCKET_IFNAME", "l", "gloo's interface is the beginning of a name.",
              f"fail {_V}.wrong_grammar", f"warn {_V}.unlike"),
)  # fmt: skip

ALL: tuple[Fault, ...] = VARIABLES
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/env/test_variables.py
    elsewhere("nccl_conf", "NCCL's configuration file sets a variable on one rank, another line names none.",
              "NCCL_CONF_FILE: a file of its own on rank 1, one that is not there on the others",
              "fail env.variables.unlike", "warn env.variables.conf_line", "warn env.variables.conf_missing",
              "warn env.variables.leftover", culprit={"rank": 1}),
)  # fmt: skip
