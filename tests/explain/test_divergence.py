"""A loss that is no number, from a step on to the end, is a failure without an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.explain.command import explain_paths

Form = Callable[[int, str], str]
FORMS: dict[str, Form] = {
    "plain": lambda n, loss: f"step {n} | loss {loss} | lr 1.5e-4",
    "plain, colon": lambda n, loss: f"step: {n}, loss: {loss}",
    "transformers": lambda n, loss: f"{{'loss': {loss}, 'grad_norm': {loss}, 'learning_rate': 2e-05, 'epoch': 0.{n}}}",
    "lightning": lambda n, loss: f"Epoch 3:  42%|####  | {n}/1000 [01:10<01:37,  5.97it/s, v_num=3, train_loss={loss}]",
    "megatron": lambda n, loss: (
        f" [2026-04-22 19:14:05] iteration     {n}/  500000 | elapsed time per iteration (ms): 5120.3 | lm loss: "
        f"{loss.upper()} | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "torchtitan": lambda n, loss: (
        f"[titan] 2026-04-22 19:14:05,120 - root - INFO - step: {n}  loss:  {loss}  memory: 41.20GiB  tps: 6,021"
    ),
    "nanoGPT": lambda n, loss: f"iter {n}: loss {loss}, time 312.41ms, mfu 41.02%",
    "imagenet": lambda n, loss: f"Epoch: [3][ {n}/5005]  Time  0.312 ( 0.330)  Loss {loss} ({loss})",
    "nemo": lambda n, loss: f"Training epoch 0, iteration {n}/999 | lr: 1e-05 | reduced_train_loss: {loss} | step: {n}",
    "fairseq": lambda n, loss: (
        f"2026-04-22 19:14:05 | INFO | train_inner | epoch 001:    {n} / 5005 loss={loss}, wps=41223"
    ),
    "with ranks": lambda n, loss: f"[rank3]: step {n} loss {loss}",
}


def found(folder: Path, text: str) -> list[Any]:
    (folder / "job.log").write_text(text)
    return explain_paths([str(folder / "job.log")]).findings


def run(form: Form, *losses: str) -> str:
    return "".join(f"{form(10 + at, loss)}\n" for at, loss in enumerate(losses))


@pytest.mark.parametrize("kind", FORMS)
def test_a_loss_that_stays_no_number_is_a_failure(kind: str, tmp_path: Path) -> None:
    first, *_ = found(tmp_path, run(FORMS[kind], *["2.31"] * 5, *["nan"] * 20))
    assert (first.severity, first.code, first.evidence["confidence"]) == ("fail", "explain.diverged", "medium")
    assert ("0.15" if kind == "transformers" else "step 15 on") in first.message and "to the end" in first.message
    assert first.where == {}
    assert [line["line"] for line in first.evidence["lines"]][:2] == [6, 5]


@pytest.mark.parametrize("kind", FORMS)
def test_a_step_that_was_skipped_is_none(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, run(FORMS[kind], "2.31", "nan", "nan", "2.30", "2.29", "2.28")) == []
    assert found(tmp_path, run(FORMS[kind], *["2.31"] * 9)) == []


def test_of_one_that_recovered_before_the_step_is_said_with_doubt(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, run(FORMS["plain"], "2.31", "nan", *["2.30"] * 6, *["nan"] * 9))
    assert "at the latest from step" in first.message


@pytest.mark.parametrize(
    "line",
    [
        "step {n} | loss 2.31 | val_loss nan",
        "step {n} val loss: nan loss 2.31",
        "step {n} loss 2.31 grad_norm 1.2, nan iterations: 0",
        "step {n} loss 2.31 level: info",
        "epoch {n} | eval loss: nan | accuracy 0.81",
        "loading the nan-safe softmax for step {n}: loss inference is off",
    ],
)
def test_other_values_that_are_no_numbers_are_none(line: str, tmp_path: Path) -> None:
    assert found(tmp_path, "".join(f"{line.format(n=n)}\n" for n in range(1, 9))) == []


def test_gradients_that_overflow_for_a_step_or_two_are_none(tmp_path: Path) -> None:
    lines = [f"step {n} loss 2.31 grad_norm: {'inf' if n > 7 else '1.2'}" for n in range(1, 10)]
    assert found(tmp_path, "\n".join(lines) + "\n") == []


def test_a_known_cause_goes_first(tmp_path: Path) -> None:
    oom = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert found(tmp_path, run(FORMS["plain"], "2.31", *["nan"] * 5) + oom)[0].code == "explain.gpu_oom"


def test_a_rank_is_accused_where_others_are_seen_to_be_sound(tmp_path: Path) -> None:
    def text(*wrong: int) -> str:
        steps = ((n, rank) for n in range(9) for rank in range(3))
        return "".join(f"[rank{r}]: step {n} loss {'nan' if r in wrong and n > 4 - r else '2.3'}\n" for n, r in steps)

    assert found(tmp_path, text(1))[0].where == {"rank": 1}
    first, *_ = found(tmp_path, text(0, 1, 2))
    assert first.where == {} and first.message.startswith("rank 2: loss is nan from step 3 on")
