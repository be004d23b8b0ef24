"""Arguments of `preflight rendezvous`."""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from preflight.errors import UsageError

DESCRIPTION = """Start it on every node before torchrun: it says whether they meet at the endpoint, and if not, why.
Node 0 serves torch's own store there. Exit codes: 0 they meet, 1 they do not, 2 usage, 3 it could not finish."""
ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]{1,5})")
"""The characters that torch's own parser accepts: no link-local scope."""
ANY = ("0.0.0.0", "::")  # noqa: S104 -- refused
MOST_NODES = 10**5


@dataclass(frozen=True)
class RendezvousRequest:
    host: str
    port: int
    nnodes: int
    node_rank: int
    timeout_s: float
    backend: str
    """torchrun's --rdzv-backend: c10d, static, etcd-v2 or etcd."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """torchrun's --rdzv-conf."""
    run_id: str = ""
    """torchrun's --rdzv-id."""

    @property
    def says_who_serves(self) -> bool:
        """torchrun does not have to find out who serves."""
        return "is_host" in self.conf

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def add_to(command: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """`seconds`: reads a duration."""
    command.description = DESCRIPTION
    command.add_argument(
        "--endpoint", required=True, metavar="HOST:PORT", help="node 0 (or etcd), as torchrun will be given it"
    )
    command.add_argument("--nnodes", required=True, metavar="N", help="how many nodes")
    command.add_argument("--node-rank", required=True, metavar="R", help="which of them this is, from 0")
    command.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="seconds at most (60)")
    command.add_argument(
        "--rdzv-backend",
        choices=["c10d", "static", "etcd-v2", "etcd"],
        default="c10d",
        help="as torchrun will be given it (c10d); static is that of --master-addr",
    )
    command.add_argument("--rdzv-conf", default="", metavar="CONF", help="as torchrun will be given it (is_host=1)")
    command.add_argument("--rdzv-id", default="", metavar="ID", help="as torchrun will be given it; for etcd only")


def request(options: argparse.Namespace) -> RendezvousRequest:
    """Raises UsageError."""
    match = ENDPOINT.fullmatch(options.endpoint)
    if not match or not 0 < int(match["port"]) < 2**16:
        expected = "expected HOST:PORT, as in node-0:29500 or [fd00::1]:29500"
        raise UsageError(f"--endpoint {options.endpoint}: {expected}", everywhere=False)
    elastic = "; for an elastic job (1:4) give the number that you start"
    size = _number("--nnodes", options.nnodes, 1, MOST_NODES, elastic)
    rank = _number("--node-rank", options.node_rank, 0, size - 1, f" with --nnodes {size}")
    host = match["v6"] or match["host"]
    conf = dict(pair.split("=", 1) for pair in options.rdzv_conf.split(",") if "=" in pair)
    if host in ANY:
        raise UsageError(f"--endpoint {options.endpoint}: expected a host that all nodes can reach", everywhere=False)
    return RendezvousRequest(
        host, int(match["port"]), size, rank, options.timeout, options.rdzv_backend, conf, options.rdzv_id
    )


def _number(option: str, text: str, least: int, most: int, more: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        sentence = f"{option} {text}: expected a whole number from {least} to {most}{more}"
        raise UsageError(sentence, everywhere=False)
    return int(text)
