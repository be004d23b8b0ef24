"""Changes what slows this host's interfaces each time that a first look at the links has ended: its first gather, the
second one and so on have a list of `tc qdisc` commands each in PREFLIGHT_TEST_SLOW_ONCE, as JSON.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import json
import os
import subprocess
import sys
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.checks.comm.shared.transfers":
            from torch import distributed as dist

            right, turns = dist.all_gather_into_tensor, iter(json.loads(os.environ["PREFLIGHT_TEST_SLOW_ONCE"]))

            def after_a_look(*arguments: Any, **options: Any) -> Any:
                for words in next(turns):
                    subprocess.run(["tc", "qdisc", *words.split()], check=True, timeout=20)
                return right(*arguments, **options)

            dist.all_gather_into_tensor = after_a_look


sys.meta_path.insert(0, _AtWork())
