"""The worker: runs `measure` of one check after another, until it hangs or crashes and is replaced."""

import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from preflight.check import Context, Job, Level, NotApplicable, Skip
from preflight.core import facts
from preflight.core.exceptions import in_one_line, out_of_a_collective, place_of
from preflight.core.outcome import LOG_TAIL
from preflight.core.secrets import Scrubber
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel
from preflight.engine.child import limit_hit
from preflight.engine.order import StepOrder
from preflight.engine.process_group import GroupMaker
from preflight.errors import BrokenCheck
from preflight.hangs.collective_recorder import DumpFile, Recorder, prepare_environment
from preflight.nccl.ras import DEFAULT, Watch
from preflight.planning import registry
from preflight.planning.registry import Check, Source


@dataclass(frozen=True)
class Orders:
    """What a worker knows for its whole life: inherited by the fork, never sent."""

    job: Job
    rank: int
    local_rank: int
    environ: Mapping[str, str]
    settings: Mapping[str, str]
    """`--set` texts by name."""
    sources: Mapping[str, Source]
    """All checks that this rank's own command line knows, by id: an order names an id, never a file."""
    group: GroupMaker
    scrub: Scrubber
    run_folder: str
    """A private folder of this run, for NCCL's log; "" without NCCL."""
    dump_file: DumpFile


def serve(orders: Orders) -> Callable[[Channel, Breadcrumb], None]:
    """What the worker's process runs."""

    def run(channel: Channel, page: Breadcrumb) -> None:
        loaded: dict[str, Check] = {}
        if orders.run_folder:
            _prepare_environment(orders)
        prepare_environment(os.environ, orders.run_folder)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product: makes them repeatable
        recorder = Recorder(orders.dump_file, lambda: page.entered, _watch(orders))
        try:
            while True:
                message = channel.wait()
                order = StepOrder.from_json(message["step"], message["order"])
                channel.send_all(_measure(order, orders, loaded, page, recorder))
        finally:
            orders.group.close()

    return run


def _watch(orders: Orders) -> Callable[[], Watch] | None:
    """Whether this rank asks NCCL's RAS: one rank per node does, for all."""
    asks = orders.run_folder and orders.rank == min(orders.job.node_of(orders.rank).ranks)
    return (lambda: Watch(orders.environ.get("NCCL_RAS_ADDR") or DEFAULT)) if asks else None


HALF_LOG = 512 * 1024
"""How many bytes of NCCL's log a check gets from its beginning, and from its end."""


def _log_path(run_folder: str, rank: int, pid: str) -> str:
    """`pid`: a process id, or "%p", which NCCL replaces with its own."""
    return os.path.join(run_folder, f"nccl-{rank}.{pid}.log")


def nccl_log(run_folder: str, rank: int, pid: int, *, head: int = 0, tail: int = LOG_TAIL) -> str:
    """What NCCL has written in the worker with this pid: `head` bytes from the beginning, where it says what it found,
    and `tail` bytes from the end. "" if there is no log."""
    path = _log_path(run_folder, rank, str(pid))
    if not run_folder or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        start = file.read(head)
        file.seek(max(file.tell(), os.path.getsize(path) - tail))
        return (start + file.read(tail)).decode(errors="replace")


def _prepare_environment(orders: Orders) -> None:
    """Makes NCCL log to a file at level INFO: with an image's NCCL_DEBUG=WARN too little would be known."""
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,BOOTSTRAP,NET,ENV"
    os.environ["NCCL_DEBUG_FILE"] = _log_path(orders.run_folder, orders.rank, "%p")
    os.environ["NCCL_IGNORE_NET_MISMATCH"] = "0"


def _measure(
    order: StepOrder, orders: Orders, loaded: dict[str, Check], page: Breadcrumb, recorder: Recorder
) -> dict[str, object]:
    """Measures one check and returns its outcome as JSON; any exception becomes an outcome."""
    start = time.monotonic()
    page.clear()
    recorder.begin(order.deadline_s)
    try:
        answer = _call_measure(order, orders, loaded, page, recorder)
    except (facts.BadFacts, RecursionError) as error:
        answer = {"kind": "raised", "slug": "bad_facts", "reason": str(error)}
    except BaseException as error:
        cause, where = out_of_a_collective(error), place_of(error, _own_path(order, orders))
        in_collective = page.inside_collective() or cause is not None
        answer = {
            "kind": "raised",
            "reason": f"{in_one_line(error)}{where}",
            "stack": traceback.format_exc(),
            "in_collective": in_collective,
        }
        if limit := limit_hit(error):
            answer |= {"slug": "no_process", "reason": limit, "in_collective": False}
        recorder.after_an_exception((cause or error) if in_collective else None)
    finally:
        recorder.end()
    return {**answer, "step": order.step, "seconds": time.monotonic() - start}


def _call_measure(
    order: StepOrder, orders: Orders, loaded: dict[str, Check], page: Breadcrumb, recorder: Recorder
) -> dict[str, Any]:
    source = orders.sources.get(order.check)
    if source is None:
        raise BrokenCheck(f"this rank's command line has no check {order.check}: give all ranks the same --plugin")
    check = loaded.get(source.id)
    if check is None:
        page.doing("importing the check", {})
        check = loaded[source.id] = registry.load(source)
    page.doing("measure", {})
    context = _context(check, order, orders, page, recorder)
    try:
        return {"kind": "measured", **_as_answer(check.module.measure(context), orders)}
    except Skip as skip:
        slug = "not_applicable" if isinstance(skip, NotApplicable) else ""
        answer = {"kind": "skipped", "slug": slug, "reason": orders.scrub.text(str(skip)) or "no reason given"}
        return answer if skip.facts is None else {**answer, **_as_answer(skip.facts, orders)}


def _own_path(order: StepOrder, orders: Orders) -> str:
    source = orders.sources.get(order.check)
    return registry.own_path(source) if source else ""


def _as_answer(measured: object, orders: Orders) -> dict[str, str]:
    text = facts.to_text(measured)  # refuses what is too large before seconds of searching it for secrets
    if (cleaned := orders.scrub.value(measured)) != measured:
        text = facts.to_text(cleaned)
    return {"facts_hash": facts.content_hash(text), "facts": text}


def _context(check: Check, order: StepOrder, orders: Orders, page: Breadcrumb, recorder: Recorder) -> Context:
    members = order.members

    def make_group() -> Any:
        if orders.group.exists:
            return orders.group.again(order.deadline_s)
        with context.collective("process group", f"{len(members)} ranks"):
            group = orders.group.make(members, orders.rank, context.device, order.deadline_s)
        recorder.listen(members)
        return group

    def make_part(ranks: tuple[int, ...]) -> Any:
        with context.collective("process group", f"parts of {len(members)} ranks"):
            return orders.group.part(tuple(members.index(rank) for rank in ranks), order.deadline_s)

    context = Context(
        check=check.id,
        job=orders.job,
        rank=orders.rank,
        local_rank=orders.local_rank,
        members=members,
        environ=orders.environ,
        deadline_s=order.deadline_s,
        page=page,
        make_group=make_group,
        make_store=lambda: orders.group.store(f"step-{order.step}", order.deadline_s),
        make_part=make_part,
        read_nccl_log=lambda: nccl_log(orders.run_folder, orders.rank, os.getpid(), head=HALF_LOG, tail=HALF_LOG),
        endpoint=orders.group.endpoint,
        options=check.values(orders.settings),
        level=Level(order.level),
        run_folder=orders.run_folder,
    )
    return context
