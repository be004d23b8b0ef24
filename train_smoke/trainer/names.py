"""The strategies and their variants by name, and in words. Imports no torch: `--list` and the checks' pages read it."""

from collections.abc import Mapping

STEPS = 8
"""The number of steps of each training."""
FURTHER_STEPS = 4
"""The number for what a strategy's check trains after its first variant: what a variant does differently is in every
step, and in the first gradient already; from the second step on its optimizer's state counts. What comes late (a rank
that is sick at times, weights that drift apart) the first variant's steps show."""
FEW_STEPS = 3
"""The number if ranks share the model and see the same rows: the first gradient shows what is wrong with it, the second
step what clipping and the optimizer made of it, the third what was kept of the second (momentum, buckets that DDP forms
anew, a pipeline's buffers). A DTensor takes ten times as long as a tensor."""
MICRO_BATCHES = "micro-batches of a step"
"""A number of which a gradient may be a multiple by mistake."""
NEEDS_NUMPY = "need NumPy, which is not installed"
PLAIN = "plain"
"""The variant that runs at level standard; the others run at full."""

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "ddp": {
        PLAIN: "DistributedDataParallel with its defaults",
        "no_sync": "two micro-batches per step, the first under no_sync()",
        "join": "half of the ranks have one batch less: Join",
        "bucket_view": "gradient_as_bucket_view and static_graph; DDP replaces other weights at the start",
        "clip": "the gradient clipped to half of its norm",
        "autocast": "forward under bfloat16 autocast",
    },
    "fsdp": {
        "full_shard": "parameters, gradients and optimizer state cut by rank",
        "shard_grad_op": "gradients and optimizer state cut by rank",
        "no_shard": "nothing cut",
        "hybrid_shard": "cut among some ranks, and replicated",
        "no_sync": "two micro-batches per step, the first under no_sync()",
        "accumulate": "two micro-batches per step, each reduced",
        "backward_post": "the next parameters fetched after a gradient is made",
        "forward_prefetch": "the next parameters fetched in forward",
        "offload": "parameters and gradients kept on the CPU",
        "clip": "the gradient clipped to half of its norm, by the model's clip_grad_norm_",
        "mixed": "bfloat16 parameters, float32 reduction",
        "wrap_size": "wrapped by size",
        "wrap_transformer": "wrapped by the transformer's blocks",
        "wrap_custom": "wrapped by a custom function",
    },
    "fsdp2": {
        PLAIN: "fully_shard on each block and on the whole",
        "keep": "reshard_after_forward=False: parameters stay whole until backward",
        "reshard_to": "reshard_after_forward=an integer: cut among fewer ranks between forward and backward",
        "mixed": "bfloat16 parameters, float32 reduction",
        "offload": "parameters and gradients kept on the CPU",
        "clip": "the gradient clipped to half of its norm, over DTensors",
        "checkpoint": "activation checkpointing on each block",
        "adamw": "AdamW instead of SGD",
        "no_sync": "two micro-batches per step, the first with set_requires_gradient_sync(False)",
        "accumulate": "two micro-batches per step, each reduced, on the CPU; set_is_last_backward",
    },
    "compile": {
        "ddp": "torch.compile on DistributedDataParallel: a graph for each of its buckets",
        "fsdp2": "torch.compile on each block under fully_shard",
    },
    "expert": {
        "all_to_all": "experts cut among ranks, tokens sent to them and back; the rest under DDP",
        "autocast": "the same with tokens in bfloat16, and AdamW",
    },
}

MODEL_PARALLEL: Mapping[str, Mapping[str, str]] = {
    "tp": {
        "matrices": "ColwiseParallel and RowwiseParallel on embeddings, attention, MLP and output layer",
        "sequence": "SequenceParallel between them, and loss_parallel; bfloat16 autocast, AdamW",
        "tied": "embedding and output layer one parameter, the gradient clipped to half of its norm",
    },
    "pp": {
        "gpipe": "GPipe: all forwards, then all backwards",
        "1f1b": "1F1B: one forward, one backward; bfloat16 autocast",
        "accumulate": "1F1B, two accumulation steps; losses add up",
        "clip": "1F1B, the gradient clipped to half of its norm over all stages",
        "interleaved_1f1b": "Interleaved1F1B: two stages per rank, of 3 ranks a ring; AdamW",
        "looped_bfs": "LoopedBFS; losses add up",
        "zero_bubble": "InterleavedZeroBubble: the gradients of weights come later",
        "zbv": "ZBVZeroBubble: stages in the shape of a V",
        "dualpipe_v": "DualPipeV",
    },
    "hybrid": {
        "hsdp": "fully_shard on a mesh of two dimensions; two micro-batches, set_requires_all_reduce",
        "fsdp2_tp": "tensor parallel among neighbors, fully_shard across them; bfloat16, clipped to half of the norm",
        "ddp_tp": "tensor parallel among neighbors, DDP across them; AdamW",
    },
}
"""Strategies in which ranks share a model: they know the small transformer's layers by name, so they cannot train other
models."""
ON_REQUEST: Mapping[str, tuple[str, ...]] = {"pp": ("looped_bfs", "zero_bubble", "dualpipe_v")}
"""Variants that run only if they are named: others with the same stages, losses or late gradients run anyway."""
STRATEGIES: Mapping[str, Mapping[str, str]] = {**VARIANTS, **MODEL_PARALLEL}
TIMED: tuple[str, ...] = ("ddp/plain", "fsdp2/plain", "fsdp2/keep", "fsdp2/checkpoint")
"""What train.speed times side by side; it reports phases and stragglers of the first one."""
FITTED: tuple[str, ...] = ("ddp/plain", "fsdp2/plain", "fsdp2/checkpoint", "fsdp2/offload")
"""Variants whose memory train.speed measures."""

WAIT = "wait"
PHASES = ("data", "forward", "backward", WAIT, "optimizer")
"""The phases of a step, in order. `data` is the loader's time; `backward` lasts until the rank's last gradient is made,
and `wait` from there until all gradients are exchanged."""
