"""The checks of the strategies: what they run, and that sound worlds pass. The faults are in tests/faults/train.py."""

from pathlib import Path

import pytest

from preflight import errors
from preflight.checks.train import ddp, fsdp, fsdp2
from preflight.checks.train.shared import parity
from preflight.planning import registry
from preflight.train_smoke.trainer.names import VARIANTS
from tests import running

CHECKS = {"ddp": ddp, "fsdp": fsdp, "fsdp2": fsdp2}


@pytest.mark.parametrize("strategy", CHECKS)
def test_variants_are_given_by_their_names(strategy: str) -> None:
    parse, known = CHECKS[strategy].VARIANTS.type, tuple(VARIANTS[strategy])
    assert parse("all") == known
    assert parse(f"{known[2]}, {known[0]},{known[2]}") == (known[2], known[0])
    for wrong in ("", "no_such", f"{known[0]},"):
        with pytest.raises(ValueError, match=f"is not a variant of {strategy}; known are {known[0]}, .*, or all"):
            parse(wrong)


def test_an_unknown_variant_is_a_usage_error() -> None:
    with pytest.raises(errors.UsageError, match="'nosync' is not a variant of ddp"):
        registry.parse_option("train.ddp.variants", ddp.VARIANTS, "nosync")


@pytest.mark.parametrize("strategy", CHECKS)
def test_every_check_has_all_codes(strategy: str) -> None:
    """test_parity.py tests each of them."""
    wanted = {
        "not_finite", "wrong_start", "wrong_data", "wrong_step", "not_averaged", "not_exchanged", "wrong_exchange",
        "wrong_clip", "out_of_sync", "drift", "unsteady", "model_changed",
    }  # fmt: skip
    assert set(parity.CODES) == wanted
    assert set(registry.load(registry.sources()[f"train.{strategy}"]).codes) == wanted | (
        {"not_run"} if strategy == "fsdp" else set()
    )


# Real ranks


@pytest.mark.parametrize(("world", "level"), [(1, "standard"), pytest.param(2, "full", marks=pytest.mark.more)])
def test_real_ranks_are_sound_with_as_many_threads_as_they_like(world: int, level: str, tmp_path: Path) -> None:
    ranks = running.plain_ranks(world)
    for env in ranks:
        del env["OMP_NUM_THREADS"]
    words = ("--level", level, "--only", "train.ddp,train.fsdp2,plugin", "--plugin", "after")
    finished = running.run_ranks(tmp_path, ranks, *words)
    told = finished.told()
    assert finished.report["verdict"] == "pass", told
    assert finished.findings() == [] and finished.left_over == [], told
    what = {"train.ddp": "plain, no_sync, join, bucket_view, clip, autocast", "train.fsdp2": "10 variants"}
    for check, names in what.items():
        on = f"{names if level == 'full' else 'plain'} on {world} rank"
        assert finished.check(check)["status"] == "pass", told
        assert finished.check(check)["summary"].startswith(on), told
    assert finished.check("plugin.after")["summary"] == f"{world} members, sum {world}", told


@pytest.mark.more
def test_real_ranks_that_cut_the_model_are_sound_and_show_their_mesh(tmp_path: Path) -> None:
    ranks = running.plain_ranks(2)
    finished = running.run_ranks(tmp_path, ranks, "--all", "--only", "train.tp,train.pp,train.hybrid", deadline_s=180)
    told = finished.told()
    assert finished.report["verdict"] == "pass" and finished.findings() == [], told
    assert finished.left_over == [], told
    meshes = {
        "train.tp": "matrices, sequence, tied on 2 ranks, mesh 1 x 2 (replicas x tp), tp inside a node: loss ",
        "train.pp": "gpipe, 1f1b, accumulate, clip, interleaved_1f1b, zbv on 2 ranks, mesh 1 x 2 (replicas x pp): ",
        "train.hybrid": "hsdp, fsdp2_tp, ddp_tp on 2 ranks, mesh 2 x 1 (replicate x shard) or 1 x 2 (dp x tp), tp ",
    }
    for check, words in meshes.items():
        assert finished.check(check)["summary"].startswith(words), told


def test_without_numpy_a_pipeline_is_a_skip_with_that_reason(tmp_path: Path) -> None:
    ranks = [running.without_numpy(env) for env in running.plain_ranks(1)]
    finished = running.run_ranks(tmp_path, ranks, "--all", "--only", "train.pp", "--set", "train.pp.variants=1f1b")
    told = finished.told()
    assert finished.check("train.pp")["status"] == "skip", told
    assert finished.check("train.pp")["skipped"] == "1f1b (torch's pipelines need NumPy, which is not installed)", told
