"""The worker: runs `measure` of one check after the other, until it hangs or crashes and is replaced."""

import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from preflight import facts, registry
from preflight.channel import Channel
from preflight.check import Context, Job, NotApplicable, Skip
from preflight.child import stack_dump_after, stack_dump_cancel
from preflight.judging import place_of
from preflight.page import SharedPage
from preflight.process_group import STACK_DUMP, GroupMaker
from preflight.registry import Check, Source
from preflight.scrub import Scrubber


@dataclass(frozen=True)
class Orders:
    """What a worker knows for its whole life: handed over by the fork, never sent."""

    job: Job
    rank: int
    local_rank: int
    environ: Mapping[str, str]
    settings: Mapping[str, str]
    """`--set` texts by name."""
    group: GroupMaker
    scrub: Scrubber
    run_folder: str
    """A private folder of this run, for NCCL's log; "" without NCCL."""


def serve(orders: Orders) -> Callable[[Channel, SharedPage], None]:
    """What the worker's process runs."""

    def run(channel: Channel, page: SharedPage) -> None:
        loaded: dict[str, Check] = {}
        if orders.run_folder:
            _prepare_environment(orders)
        try:
            while True:
                order = channel.wait()
                channel.send_all(_measure(order, orders, loaded, page))
        finally:
            orders.group.close()

    return run


def _prepare_environment(orders: Orders) -> None:
    """NCCL says what it does, into a file: an image with NCCL_DEBUG=WARN would leave us blind."""
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,ENV,GRAPH"
    os.environ["NCCL_DEBUG_FILE"] = os.path.join(orders.run_folder, f"nccl-{orders.rank}.%p.log")
    os.environ["NCCL_IGNORE_NET_MISMATCH"] = "0"


def _measure(order: dict[str, Any], orders: Orders, loaded: dict[str, Check], page: SharedPage) -> dict[str, Any]:
    """One check, to its outcome as JSON; any exception becomes one."""
    start = time.monotonic()
    page.clear()
    stack_dump_after(order["deadline_s"] * STACK_DUMP)
    try:
        answer = _call_measure(order, orders, loaded, page)
    except (facts.BadFacts, RecursionError) as error:
        answer = {"kind": "raised", "slug": "bad_facts", "reason": str(error)}
    except BaseException as error:
        answer = {
            "kind": "raised",
            "reason": f"{type(error).__name__}: {_first_words(error)}{place_of(error)}",
            "stack": traceback.format_exc(),
            "in_collective": page.inside_collective(),
        }
    finally:
        stack_dump_cancel()
    return {**answer, "step": order["step"], "seconds": time.monotonic() - start}


def _first_words(error: BaseException) -> str:
    """torch puts a source path before its messages and a C++ backtrace behind; these stay in the stack."""
    try:
        text = str(error).strip()
    except Exception:
        text = "(its text cannot be made)"
    words = re.sub(r"^\[(enforce fail at )?\S+:\d+\] ", "", text)
    return (words.splitlines() or ["(no message)"])[0][:500]


def _call_measure(order: dict[str, Any], orders: Orders, loaded: dict[str, Check], page: SharedPage) -> dict[str, Any]:
    source = Source(**order["source"])
    check = loaded.get(source.id)
    if check is None:
        page.doing("importing the check", {})
        check = loaded[source.id] = registry.load(source)
    page.doing("measure", {})
    context = _context(check, order, orders, page)
    try:
        return {"kind": "measured", **_as_answer(check.module.measure(context), orders)}
    except Skip as skip:
        slug = "not_applicable" if isinstance(skip, NotApplicable) else ""
        answer = {"kind": "skipped", "slug": slug, "reason": orders.scrub.text(str(skip)) or "no reason given"}
        return answer if skip.facts is None else {**answer, **_as_answer(skip.facts, orders)}


def _as_answer(measured: object, orders: Orders) -> dict[str, str]:
    text = facts.to_text(orders.scrub.value(measured))
    return {"facts": facts.content_hash(text), "text": text}


def _context(check: Check, order: dict[str, Any], orders: Orders, page: SharedPage) -> Context:
    members = tuple(order["members"])

    def make_group() -> Any:
        if orders.group.made:
            return orders.group.again(order["deadline_s"])
        with context.collective("process group", f"{len(members)} ranks"):
            return orders.group.make(members, orders.rank, context.device, order["deadline_s"])

    context = Context(
        check=check.id,
        job=orders.job,
        rank=orders.rank,
        local_rank=orders.local_rank,
        members=members,
        environ=orders.environ,
        deadline_s=order["deadline_s"],
        page=page,
        make_group=make_group,
        make_store=lambda: orders.group.store(f"step-{order['step']}", order["deadline_s"]),
        endpoint=orders.group.endpoint,
        options=check.values(orders.settings),
    )
    return context
