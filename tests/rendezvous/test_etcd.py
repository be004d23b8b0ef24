"""`preflight rendezvous --rdzv-backend etcd-v2` against a real etcd, as Debian's etcd-server has it."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import running
from tests.faults import ELSEWHERE

needs_etcd = pytest.mark.skipif(not shutil.which("etcd"), reason="needs Debian's etcd-server")
CLIENT = running.ROOT / ".venv" / "wrappers"
"""Where the real python-etcd is."""
Done = subprocess.CompletedProcess[str]


@contextlib.contextmanager
def etcd(folder: Path, *options: str, scheme: str = "http") -> Iterator[int]:
    """Its port."""
    port, peer = running.free_port(), running.free_port()
    words = ["--data-dir", str(folder / "etcd"), "--listen-peer-urls", f"http://127.0.0.1:{peer}"]
    urls = f"{scheme}://127.0.0.1:{port}"
    words += ["--listen-client-urls", urls, "--advertise-client-urls", urls, *options]
    with subprocess.Popen(["etcd", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await(port)
            yield port
        finally:
            server.kill()


def _await(port: int) -> None:
    end = time.monotonic() + running.DEADLINE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < end, "it does not listen"
        time.sleep(0.05)


def meet(port: int, *more: str, client: bool = True) -> Done:
    paths = [str(running.ROOT), *([str(CLIENT)] if client else [])]
    words = ["--endpoint", f"127.0.0.1:{port}", "--nnodes", "2", "--node-rank", "1", "--timeout", "30"]
    env = running.environment(PYTHONPATH=os.pathsep.join(paths))
    return running.run_to_end(running.preflight("rendezvous", "--rdzv-backend", "etcd-v2", *words, *more), env=env)


def is_told(name: str, done: Done) -> None:
    row = ELSEWHERE[f"meet_{name}"]
    found = re.findall(r"^(FAIL|WARN) .*\[([\w.]+)\]$", done.stdout, re.MULTILINE)
    assert [f"{word.lower()} {code}" for word, code in found] == list(row.finds), done.stdout + done.stderr
    assert row.says in re.sub(r"\n {6}", " ", done.stdout) and done.returncode == row.exit_code, done.stdout


@needs_etcd
def test_an_etcd_that_serves_version_2_is_found_good_but_for_what_is_there(tmp_path: Path) -> None:
    with etcd(tmp_path, "--enable-v2") as port:
        done = meet(port, "--rdzv-id", "job")
        assert done.returncode == 0 and "verdict: PASS (this node can use etcd at" in done.stdout, done.stdout
        is_told("etcd_client", meet(port, client=False))
        url = f"http://127.0.0.1:{port}/v2/keys/torch/elastic/rendezvous/job"
        urllib.request.urlopen(urllib.request.Request(url, b"value=x&ttl=7200", method="PUT"), timeout=10)
        is_told("etcd_stale", meet(port, "--rdzv-id", "job"))
        assert "PASS" in meet(port, "--rdzv-id", "another").stdout


@needs_etcd
def test_an_etcd_without_version_2_is_told_with_its_cure(tmp_path: Path) -> None:
    with etcd(tmp_path) as port:
        done = meet(port)
        is_told("etcd_v2", done)
        assert "--enable-v2 (ETCD_ENABLE_V2=true)" in re.sub(r"\n {6}", " ", done.stdout)


@needs_etcd
def test_an_etcd_that_wants_tls_is_told(tmp_path: Path) -> None:
    with etcd(tmp_path, "--auto-tls", "--enable-v2", scheme="https") as port:
        is_told("etcd_secure", meet(port))
        untrusted = meet(port, "--rdzv-conf", "protocol=https")
        assert "[preflight.rendezvous.etcd_secure]" in untrusted.stdout and "certificate" in untrusted.stdout


def test_what_is_no_etcd_is_told(tmp_path: Path) -> None:
    port = running.free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        try:
            _await(port)
            is_told("not_etcd", meet(port))
        finally:
            server.kill()  # Popen's own end would wait for it for ever
    done = meet(port)
    assert "[preflight.rendezvous.refused]" in done.stdout and done.returncode == 1, done.stdout


@needs_etcd
@pytest.mark.more
@pytest.mark.parametrize("backend", ["etcd-v2", "etcd"])
def test_torchrun_over_etcd_runs_the_plan(backend: str, tmp_path: Path) -> None:
    with etcd(tmp_path, "--enable-v2") as port:
        options = ["--nnodes", "1", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "7"]
        words = running.torchrun(2, "--level", "quick", "--only", "env.launch", options=options)
        env = running.environment(PYTHONPATH=os.pathsep.join((str(running.ROOT), str(CLIENT))))
        done = running.run_to_end(words, env=env, cwd=tmp_path)
        assert done.returncode == 0 and "2 ranks on 1 node (torchrun" in done.stdout, done.stdout + done.stderr
        left = meet(port, "--rdzv-backend", backend, "--rdzv-id", "7")
    assert "[preflight.rendezvous.etcd_stale]" in left.stdout, "what torch itself keeps there is what is looked for"
