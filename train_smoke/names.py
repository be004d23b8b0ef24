"""The strategies and their variants by name, and in words. Imports no torch: `--list` and the checks' pages read it."""

from collections.abc import Mapping

STEPS = 8
"""Of each training."""
PLAIN = "plain"
"""The variant that runs at level standard; the others run at full."""

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "ddp": {
        PLAIN: "DistributedDataParallel as it comes",
        "no_sync": "two micro-batches a step, the first under no_sync()",
        "join": "half of the ranks have one batch less: Join",
        "bucket_view": "gradient_as_bucket_view",
        "clip": "the gradient clipped to half of its norm",
        "autocast": "forward under bfloat16 autocast",
    },
    "fsdp": {
        "full_shard": "parameters, gradients and optimizer state cut by rank",
        "shard_grad_op": "gradients and optimizer state cut by rank",
        "no_shard": "nothing cut",
        "hybrid_shard": "cut among some ranks, and repeated",
        "backward_pre": "the next parameters fetched before a gradient is made",
        "backward_post": "the next parameters fetched after a gradient is made",
        "forward_prefetch": "the next parameters fetched in forward",
        "offload": "parameters and gradients kept on the CPU",
        "mixed": "bfloat16 parameters, float32 reduction",
        "wrap_size": "wrapped by size",
        "wrap_transformer": "wrapped by the transformer's blocks",
        "wrap_custom": "wrapped by a function of one's own",
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
    },
}
