"""The strategies under which a user's model is trained, by name and in words. Imports no torch."""

from collections.abc import Mapping

from preflight.train_smoke.trainer.names import VARIANTS as OF_ALL

PLAN, PIPELINE = "plan", "gpipe"
OWN: Mapping[str, Mapping[str, str]] = {
    "tp": {PLAN: "tensor parallel, by the model's own plan or the one that was given"},
    "pp": {PIPELINE: "GPipe over the stages that torch.distributed.pipelining.pipeline() makes"},
}
"""Strategies whose variants depend on the model: other models have a different plan and different stages."""
VARIANTS: Mapping[str, Mapping[str, str]] = {**{name: OF_ALL[name] for name in ("ddp", "fsdp", "fsdp2")}, **OWN}
