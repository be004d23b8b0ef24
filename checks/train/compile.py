"""torch.compile: a compiled model under DDP and FSDP2 trains like one process without a compiler.

Every rank trains the small transformer of train.ddp alone, not compiled, and with the others under DDP and FSDP2,
compiled. Under DDP the whole model is compiled, and torch splits its graph where a bucket of gradients ends; under
FSDP2 each block is compiled separately. Losses, gradients, weights and optimizer state are compared as in train.ddp:
the first value that differs tells what went wrong.

Uses inductor on GPUs if Triton and a C compiler are available, else aot_eager, which traces forward and backward
without generating code. Inductor's output goes into a private folder and is removed. docs/parity.md says what this can
and cannot prove.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight.check import Code, Context, Finding, Level, Run, Skip, option, ranges
from preflight.checks.train.shared import parity, plotted

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training

    class Facts(training.Facts):
        backend: str
        graphs: dict[str, int]
        """How many graphs were compiled on this rank, by variant."""
        off: list[str]
        """Variables, with their values, that turn torch.compile off."""


PARTS = (parity,)
PLAN = parity.plan(Level.FULL, deadline_s=300.0, estimate_s=8.0)
VARIANTS = parity.variants_of("compile")
BACKENDS = ("aot_eager", "inductor")
TURN_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")

NOT_COMPILED = Code(
    "torch.compile runs without an error, but compiles nothing.",
    fix="Unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE; see TORCH_LOGS=graph_breaks,recompiles.",
)

OR_THE_COMPILER = (
    "If train.ddp and train.fsdp2 pass, suspect the compiler first: run the check again with "
    "--set train.compile.backend=aot_eager, and with TORCH_LOGS=recompiles."
)
"""Precedes the fix of codes shared with the strategies."""


def _backend(text: str) -> str:
    if text not in BACKENDS:
        raise ValueError(f"{text!r} is not a known backend; known are {', '.join(BACKENDS)}")
    return text


BACKEND = option(_backend, None, "aot_eager or inductor; unset: inductor where it can generate code for a GPU")


def measure(ctx: Context) -> "Facts":
    ctx.doing("importing torch._dynamo")
    from preflight.train_smoke.strategies import compile as compiled
    from preflight.train_smoke.trainer import task

    task.import_dynamo()
    _agree(ctx, compiled.why_not())
    backend = ctx[BACKEND] or compiled.usual_backend(ctx.device)
    with compiled.at_work(backend, ctx.run_folder) as compiler:
        facts = parity.measure(ctx, "compile", VARIANTS)
    off = [f"{name}={ctx.environ[name]}" for name in TURN_OFF if ctx.environ.get(name, "0") not in ("", "0")]
    return {**facts, "backend": backend, "graphs": compiler.graphs, "off": off}


def _agree(ctx: Context, why_not: str) -> None:
    """All ranks skip if one must, since they would wait for it. Raises Skip."""
    import platform

    import torch

    cannot: Any = torch.tensor([int(bool(why_not))], device=ctx.device)
    group = ctx.process_group()
    with ctx.collective("all_reduce", "which ranks can compile"):
        torch.distributed.all_reduce(cannot, group=group)
    here = f"torch {torch.__version__} on Python {platform.python_version()}"
    if why_not:
        raise Skip(f"torch.compile cannot run: {why_not} ({here})")
    if cannot.item():
        raise Skip(f"torch.compile can run here ({here}), but not on {ranges.count(int(cannot.item()), 'other rank')}")


def judge(facts: Mapping[int, "Facts"], run: Run) -> Iterator[Finding]:
    yield from _not_compiled(facts, run)
    backends = sorted({own["backend"] for own in facts.values()})
    for found in parity.judge(facts, run, "compile"):
        yield replace(found, evidence={**found.evidence, "backends": backends}, fix=f"{OR_THE_COMPILER} {found.fix}")


def _without_graph(own: "Facts") -> list[str]:
    """Variants that were trained, but without a compiled graph."""
    trained = (name for name, compared in own["variants"].items() if compared["curve"] is not None)
    return [name for name in trained if not own["graphs"].get(name)]


def _not_compiled(facts: Mapping[int, "Facts"], run: Run) -> Iterator[Finding]:
    """One finding if it is so on all ranks, else one per rank."""
    lacks = {rank: names for rank, own in facts.items() if (names := _without_graph(own))}
    on_all = len(lacks) == len(facts)
    for rank, names in list(lacks.items())[: 1 if on_all else None]:
        own = facts[rank]
        why = f": {' and '.join(own['off'])} is set" if own["off"] else ""
        what = f"torch.compile compiled no graph of {' and '.join(names)}, expected at least one{why}"
        others = [own["graphs"] for rank, own in facts.items() if rank not in lacks]
        evidence = {"backend": own["backend"], "graphs": own["graphs"], "elsewhere": others[0] if others else None}
        where = {} if on_all else run.job.where(rank)
        told = f"{what} (on all {ranges.count(len(facts), 'rank')})" if on_all else what
        yield NOT_COMPILED.warn(told, evidence=evidence, **where)


def summarize(facts: Mapping[int, "Facts"], run: Run) -> str:
    """ "ddp, fsdp2 on 2 ranks: loss 4.16 to 0.697, exactly as alone; 5 graphs by aot_eager"."""
    counts = {sum(own["graphs"].values()) for own in facts.values()}
    many = ranges.count(min(counts), "graph") if len(counts) == 1 else f"{min(counts)} to {max(counts)} graphs"
    backends = " or ".join(sorted({own["backend"] for own in facts.values()}))
    return f"{parity.summarize(facts, run)}; {many} by {backends}"


plot = plotted.plot
