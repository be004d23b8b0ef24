"""The log of one failed job: NCCL's warnings, the watchdog's messages and tracebacks of 64 ranks, all in one file.

`of_torch` makes it from the forms of NCCL 2.21 and torch 2.5; `of_excerpt` from a real excerpt, which each rank writes
with its own number, process and times.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

RANKS = 64
BURST = 6
"""Lines of a rank, at most, before another one's."""
STACK = (
    "c10::Error::Error(c10::SourceLocation, std::string) + 0x98 ({} in libc10.so)",
    "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >) + 0x23d ({} in a.so)",
    "c10d::ProcessGroupNCCL::watchdogHandler() + 0xc80 ({} in libtorch_cuda.so)",
    "<unknown function> + 0x94ac3 ({} in libc.so.6)",
)  # fmt: skip
TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 412, in <module>
    main(args)
  File "/workspace/train.py", line 377, in main
    loss = step(model, batch, optimizer)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/workspace/engine/step.py", line 88, in step
    loss.backward()
  File "/opt/conda/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
  File "/opt/conda/lib/python3.11/site-packages/torch/autograd/graph.py", line 825, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited, NCCL version 2.21.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:""".splitlines()
Lines = Callable[[int, int], Sequence[str]]
"""From a rank and a turn, what the rank writes in it."""


def of_torch(rank: int, turn: int) -> list[str]:
    at, gpu = f"node-{rank // 8:02}:{41000 + 37 * rank}:{41600 + 37 * rank}", rank % 8
    closed = f"socketProgress: Connection closed by remote peer node-03.cluster<{random.randrange(30_000, 60_000)}>"
    caught = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1000 + turn}, OpType=ALLREDUCE, "
        f"NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for {random.randrange(600_000, 600_099)} "
        "milliseconds before timing out."
    )
    failed = (
        f"[Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels"
    )
    return [
        f"{at} [{gpu}] NCCL INFO Channel 00/0 : {rank}[{gpu}] -> {(rank + 1) % RANKS}[0] via NET/IB/{gpu}",
        f"{at} [{gpu}] misc/socket.cc:50 NCCL WARN {closed}",
        f"{at} [{gpu}] NCCL INFO misc/socket.cc:58 -> 6",
        f"{at} [{gpu}] NCCL INFO transport/net.cc:1139 -> 6",
        f"[rank{rank}]:[E{_clock(turn)} ProcessGroupNCCL.cpp:629] {caught}",
        f"[rank{rank}]:[E{_clock(turn)} ProcessGroupNCCL.cpp:681] {failed}",
        *(f"frame #{number}: {text.format(_pointer())}" for number, text in enumerate(STACK)),
        "",
        *(f"[rank{rank}]: {text}" for text in (*TRACEBACK, closed)),
    ]


def of_excerpt(lines: Sequence[str]) -> Lines:
    return lambda rank, turn: [_rewritten(line, rank, turn) for line in lines]


def log(of_rank: Lines, megabytes: float) -> str:
    """Ranks write their turns one after another, and between each other's lines."""
    turns = max(1, int(megabytes * 1e6 / (RANKS * len("\n".join(of_rank(0, 0)).encode()))))
    left = {rank: iter(_turns(of_rank, rank, turns)) for rank in range(RANKS)}
    lines = []
    while left:
        rank = random.choice([*left])
        for _ in range(random.randrange(1, BURST + 1)):
            if (line := next(left[rank], None)) is None:
                del left[rank]
                break
            lines.append(line)
    return "\n".join(lines) + "\n"


def _turns(of_rank: Lines, rank: int, turns: int) -> Iterator[str]:
    for turn in range(turns):
        yield from of_rank(rank, turn)


def _rewritten(line: str, rank: int, turn: int) -> str:
    line = re.sub(r"\brank\d+\]", f"rank{rank}]", line)
    line = re.sub(r":\d{3,7}:\d{3,7} \[\d+\]", f":{41000 + 37 * rank}:{41600 + 37 * rank} [{rank % 8}]", line)
    line = re.sub(r"0x[0-9a-f]{6,}", lambda _: _pointer(), line)
    return re.sub(r"\d\d:\d\d:\d\d(?=[.,])", _clock(turn).partition(" ")[2].partition(".")[0], line)


def _clock(turn: int) -> str:
    return f"1125 {10 + turn // 60 % 12}:{turn % 60:02}:{random.randrange(60):02}.{random.randrange(10**9):09}"


def _pointer() -> str:
    return f"0x7f{random.randrange(16**10):010x}"
