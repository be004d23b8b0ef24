"""A training script that asks preflight first, in the middle and wrongly, and prints what it was told, as JSON."""

import json
import os
import sys
from typing import Any

import psutil

before = dict(os.environ)
import preflight  # noqa: E402
from preflight.errors import UsageError  # noqa: E402

if "torch" in sys.modules:
    raise AssertionError("importing preflight must not import torch")

first = preflight.run(only=["env", "comm.init"], settings={"comm.init.slow_s": 20}, deadline_s=40)
left = [process.name() for process in psutil.Process().children(recursive=True)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

told: dict[str, Any] = {
    "first": [first.verdict, first.exit_code, first.sentence],
    "checks": first.report and [check["check"] for check in first.report["checks"]],
    "same_environment": dict(os.environ) == before, "children": left, "group": dist.is_initialized(),
}  # fmt: skip

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
second = preflight.run(
    plugins=["alone"],
    only=["plugin"],
    settings={"plugin.alone.deed": "raise", "plugin.alone.by": 0},
    quiet=True,
    deadline_s=40,
)
dist.all_reduce(total)
dist.destroy_process_group()
try:
    preflight.run(only=["env.lunch"])
except UsageError as error:
    told["usage"] = str(error)
told |= {"total": total.item(), "second": [second.verdict, second.exit_code, second.sentence]}
with open(os.environ["TEST_TOLD"] + os.environ["RANK"], "w") as file:
    json.dump(told, file)
