"""Makes the user's model in a separate process, to learn its names and shapes."""

from typing import TYPE_CHECKING, Any

from preflight.sdk.user_code import UserCode, UserError

if TYPE_CHECKING:
    from torch import nn


def describe(given: str) -> dict[str, Any]:
    """`given`: MODULE:FUNCTION, which returns the model or a tuple that begins with it, as for `preflight run --model`.
    It is made on the meta device, which takes no memory, unless the code cannot work there.

    Returns {"tensors": [[name, dtype, shape], ...], "tied": [[name, name], ...]}, or {"mistake": sentence}.
    """
    import torch

    code = UserCode.parse(given)
    try:
        try:
            with torch.device("meta"):
                model = _model(code)
        except UserError:
            model = _model(code)
    except UserError as error:
        return {"mistake": str(error)}
    tensors: dict[str, Any] = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
    }
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {
        "tensors": [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()],
        "tied": [group for group in names.values() if len(group) > 1],
    }


def _model(code: UserCode) -> "nn.Module":
    from torch import nn

    made = code.call()
    first = made[0] if isinstance(made, tuple | list) and made else made
    if not isinstance(first, nn.Module):
        raise UserError(f"{code} returns {type(made).__name__}, expected a model (or a tuple that begins with it)")
    return first
