"""`preflight rendezvous`: do the nodes find each other, before torchrun?"""

import time
from typing import NoReturn

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.engine import shutdown
from preflight.engine.event_loop import Interrupted
from preflight.engine.store_client import StoreLost
from preflight.rendezvous import codes
from preflight.rendezvous.arguments import RendezvousRequest
from preflight.rendezvous.client import ClientNode
from preflight.rendezvous.etcd import KEYS, EtcdNode
from preflight.rendezvous.node import Stopped
from preflight.rendezvous.server import ServerNode, reported
from preflight.results import console
from preflight.results.destinations import Output
from preflight.sdk import prctl


def run(asked: RendezvousRequest) -> NoReturn:
    started, output = time.monotonic(), Output()

    def say(text: str) -> None:
        """Names of hosts come from other nodes."""
        output.say(console.plain(text))

    prctl.adopt_orphans()
    kind = EtcdNode if asked.backend in KEYS else ClientNode if asked.node_rank else ServerNode
    node = kind(asked, say)
    code = 3
    try:
        findings = _found(node)
        code = 1 if any(finding.severity == "fail" for finding in findings) else 0
        shown = findings if asked.node_rank == 0 or asked.backend in KEYS else _of(node.name, findings)
        lines = [*console.found_lines(shown, output.width or console.WIDTH), ""]
        say("\n".join([*lines, _verdict(asked, findings, len(shown), code, time.monotonic() - started)]) + "\n")
    except Interrupted as why:
        say(f"preflight rendezvous: this process {why}, and ends without a verdict\n")
    except Exception:
        output.report_fault()
    finally:
        node.end()
        shutdown.leave(code)


def _found(node: ClientNode | ServerNode | EtcdNode) -> list[Reported]:
    try:
        return node.run()
    except Stopped as stopped:
        return [reported(stopped.finding)]
    except StoreLost as why:
        text = f"{why}, which this node had served; expected it to last until all had joined"
        return [reported(codes.STORE_LOST.fail(text, node=node.name))]


def _of(name: str, findings: list[Reported]) -> list[Reported]:
    """The findings that name this node, or none."""
    return [finding for finding in findings if finding.where.get("node", name) == name]


def _verdict(asked: RendezvousRequest, findings: list[Reported], shown: int, code: int, seconds: float) -> str:
    words = [finding.severity for finding in findings]
    others = f"; {rank_ranges.count(len(findings) - shown, 'finding')} on other nodes, see node 0's output" * (
        shown < len(findings)
    )
    word = "FAIL" if code else "WARN" if "warn" in words else "PASS"
    who = f"all {asked.nnodes:,} nodes meet" if asked.nnodes > 1 else "the one node reaches itself"
    who = "this node can use etcd" if asked.backend in KEYS else who
    meaning = f"{who} at {asked.endpoint}"
    if code:
        meaning = "torchrun would not get through"
    return f"verdict: {word} ({meaning}{others}), exit code {code}, {seconds:.1f} s"
