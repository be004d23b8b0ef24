"""Exceptions of the user's code, as facts."""

from typing import TYPE_CHECKING

from preflight.check import UserCode, UserError
from preflight.checks.train.shared import refusals

if TYPE_CHECKING:
    from preflight.train_smoke.user.validation import MistakeFacts, ModelMistake


def of_backward(error: Exception) -> Exception:
    """Attributes what torch raises in the backward pass, without a line of the user's, to the loss."""
    from preflight.train_smoke.trainer.memory import is_out_of_memory
    from preflight.train_smoke.user.validation import ModelMistake

    if type(error) is not RuntimeError or is_out_of_memory(error) or not refusals.is_refusal(error):
        return error
    hint = ": a tensor of one forward is kept for the next; detach it" if "second time" in str(error) else ""
    text = f"the backward pass of the loss raises RuntimeError{hint} ({first_line(error).partition('. ')[0]})"
    return ModelMistake("wrong_loss", text)


def skip_reason(error: Exception) -> str:
    """Why nothing can be compared, though nothing is wrong; "" if it is another exception."""
    from preflight.train_smoke.trainer.memory import is_out_of_memory
    from preflight.train_smoke.user.traits import Incomparable
    from preflight.train_smoke.user.validation import TooBig

    if is_out_of_memory(error):
        is_estimate = isinstance(error, TooBig) or isinstance(error.__cause__, TooBig)
        return str(error) if is_estimate else f"memory has run out: {first_line(error)}"
    if isinstance(error, Incomparable) or isinstance(error.__cause__, Incomparable):
        return f"{str(error).replace('Incomparable: ', '')}, and strategies cannot be compared"
    return ""


def facts_of(error: "UserError | ModelMistake", code: UserCode) -> "MistakeFacts":
    """The mistake as facts, at the function's first line if no other is known."""
    from preflight.train_smoke.user.validation import MistakeFacts

    if isinstance(error, UserError):
        evidence = {"stack": error.stack} if error.stack else {}
        return MistakeFacts(kind="user_error", text=error.text, file=error.file, line=error.line, evidence=evidence)
    mistake, place = error.to_json(), code.place()
    if place is None:
        mistake["text"] = f"{code}: {mistake['text']}"
    else:
        mistake["file"], mistake["line"] = place
        mistake["text"] = f"{place[0]}:{place[1]} in {code.function}(): {mistake['text']}"
    return mistake


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0][:300]
