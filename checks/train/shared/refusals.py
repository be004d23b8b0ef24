"""Which of torch's exceptions are about the model rather than the machine or other ranks."""

REFUSALS = (ValueError, TypeError, NotImplementedError, AttributeError, AssertionError, LookupError)
"""What torch raises for a model that a strategy cannot handle."""
STRATEGIES = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.nn.parallel")
"""Modules of torch that raise these, even below the user's line that called the model."""
OF_OTHERS = ("gloo", "nccl", "cuda", "hip error", "connect", "socket", "timed out", "timeout", "process group")
"""Words in RuntimeErrors from a collective or a device."""


def is_refusal(error: BaseException) -> bool:
    """Whether it is one of these, or a plain RuntimeError that is neither a collective's nor a device's."""
    if isinstance(error, REFUSALS):
        return True
    return type(error) is RuntimeError and not any(word in str(error).lower() for word in OF_OTHERS)


def is_strategys(error: BaseException | None) -> bool:
    """Whether a strategy's own code raised it."""
    place = error.__traceback__ if error is not None else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and str(place.tb_frame.f_globals.get("__name__", "")).startswith(STRATEGIES)
