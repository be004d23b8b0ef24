"""The strategies under which a user's model is trained, by name and in words. Imports no torch."""

from collections.abc import Mapping

from preflight.train_smoke.names import VARIANTS as OF_ALL

PLAN, PIPELINE = "plan", "gpipe"
OWN: Mapping[str, Mapping[str, str]] = {
    "tp": {PLAN: "tensor parallel, by the model's own plan or the one that was given"},
    "pp": {PIPELINE: "GPipe over what torch.distributed.pipelining.pipeline() makes of it"},
}
"""What is the model's own: other models have another plan, and other stages."""
VARIANTS: Mapping[str, Mapping[str, str]] = {**{name: OF_ALL[name] for name in ("ddp", "fsdp", "fsdp2")}, **OWN}
