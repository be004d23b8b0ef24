"""Which checkpoints are written, and into what each is loaded, by name and in words. Imports no torch: the check's page
reads it."""

from collections.abc import Mapping

HALF, ALONE = "fsdp2_half", "alone"
INTO: Mapping[str, str] = {
    "ddp": "DDP",
    "fsdp": "FSDP",
    "fsdp2": "FSDP2",
    "hsdp": "HSDP",
    "fsdp2_tp": "FSDP2 x TP",
    HALF: "FSDP2 on half of the ranks",
    ALONE: "one process",
}
"""Strategies, and how many of the ranks take part. The other ranks wait."""
CHECKPOINTS: Mapping[str, tuple[str, ...]] = {
    "fsdp2/dcp": ("fsdp2", HALF, ALONE, "hsdp", "fsdp2_tp"),
    "ddp/full": ("ddp", ALONE, HALF),
    "fsdp/full": ("fsdp", HALF, ALONE),
    "fsdp2/async": ("fsdp2", "hsdp"),
    "ddp/prefixed": ("ddp", ALONE),
    "fsdp/local": ("fsdp",),
    "fsdp/sharded": ("fsdp", HALF, ALONE),
    "fsdp2/full": ("fsdp2", HALF, "hsdp"),
    "hsdp/dcp": ("hsdp", "fsdp2", ALONE),
    "hsdp/full": ("hsdp", HALF),
    "fsdp2_tp/dcp": ("fsdp2_tp", "fsdp2", ALONE),
    "fsdp2_tp/full": ("fsdp2_tp", ALONE),
    "ddp/dcp": ("ddp", "fsdp2", ALONE),
}
"""The targets into which each is loaded, by strategy and form, in the order in which they run."""
FORMS: Mapping[str, str] = {
    "full": "whole tensors in one file, which rank 0 writes and reads",
    "prefixed": "the same with the names of torch.compile and DDP (_orig_mod.module.)",
    "local": "each rank's own pieces in its own file",
    "sharded": "FSDP1's sharded state, by torch.distributed.checkpoint",
    "dcp": "torch.distributed.checkpoint",
    "async": "torch.distributed.checkpoint.async_save, while training continues",
}
DEFAULT: Mapping[str, tuple[str, ...]] = {
    "fsdp2/dcp": ("fsdp2", HALF, ALONE),
    "ddp/full": ("ddp", HALF),
    "fsdp/full": ("fsdp",),
    "fsdp2/async": ("hsdp",),
}
"""What runs by default: each code path of torch once."""
