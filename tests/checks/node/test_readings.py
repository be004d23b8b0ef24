"""What a process reads of its own limits, in processes with others than ours."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from preflight.checks.node.limits import process
from tests import running

CODE = """
import json, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
resource.setrlimit(resource.RLIMIT_NPROC, (3000, 3000))
from preflight.checks.node.limits import process
print(json.dumps([process.memlock(), process.tasks()]))
"""
LIMITS = 'ulimit -l 64; ulimit -u 3000; exec "$@"'
USER_NAMESPACE = ("unshare", "--user", "--map-root-user")


def read(*before: str) -> Any:
    """[bytes that may be locked, [limit of tasks, left]], in a process with few of both."""
    words = [*before, sys.executable, "-c", CODE]
    return json.loads(subprocess.check_output(words, env=running.environment(), text=True))


def can(words: Sequence[str]) -> bool:
    return bool(shutil.which(words[0])) and subprocess.run([*words, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="root is excepted from these limits")
def test_root_is_not_limited() -> None:
    assert read() == [None, None]


@pytest.mark.skipif(not can(USER_NAMESPACE), reason="needs user namespaces")
def test_who_is_root_in_a_namespace_of_users_alone_is_limited() -> None:
    locked, (limit, left) = read(*USER_NAMESPACE)
    assert (locked, limit) == (64 * 1024, 3000) and 0 <= left < 3000


def test_a_process_that_has_ended_has_no_threads() -> None:
    assert process._threads("0") == 0 and process._threads(str(os.getpid())) >= 1
