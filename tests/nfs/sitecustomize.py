"""Gives this process NFS mounts where others are, in /proc/self/mountinfo, as TEST_NFS says: {mount point: options}.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import json
import os
import sys
from typing import Any

NFS: dict[str, str] = json.loads(os.environ["TEST_NFS"])


def _changed(line: str) -> str:
    left, _, right = line.partition(" - ")
    options = NFS.get(left.split()[4])
    return line if options is None else f"{left} - nfs4 server:/export {right.split()[2]},{options}"


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.checks.node.storage.mounts":
            from preflight import check

            right = check.read

            def read(path: str) -> str:
                text = right(path)
                return "\n".join(map(_changed, text.splitlines())) if path == "/proc/self/mountinfo" else text

            check.read = read


sys.meta_path.insert(0, _AtWork())
