"""Training on GPU ranks: two, on one card, over NCCL's sockets."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.real_gpu.items import PATIENCE, ROOT, UnexpectedError, Work, codes, item
from tests.real_gpu.items.launch import JOBS, PLAIN_LAUNCH, command, plain_ranks

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
        "max_position_embeddings": 128,
    },
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 128,
        "intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 4,
        "num_experts_per_tok": 2, "decoder_sparse_step": 1,
        "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
        "max_position_embeddings": 128, "norm_topk_prob": True,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8, "num_channels": 3,
    },
}  # fmt: skip
LIGHTNING = ROOT / "tests" / "models" / "lightning_modules.py"


def sound(
    work: Work, check: str, *words: str, limit_s: float, name: str = "log", env: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Two ranks run this check: whether it passes (findings of the launch, such as split_node, do not count), and what
    it says."""
    report = f"report-{name}"
    said = (
        "run",
        "--level",
        "full",
        "--only",
        check,
        "--deadline",
        str(int(limit_s * PATIENCE) - 3),
        "--report",
        report,
        *words,
    )
    ended = work.preflight(
        *said, limit_s=limit_s, name=name, env={**plain_ranks(2), **(env or {})}, before=PLAIN_LAUNCH
    )
    path = work.folder / report / "report.json"
    if not path.exists():
        return False, f"exit {ended.code} after {ended.seconds:.0f} s, no report: {ended.last_line}"
    rows = [row for row in json.loads(path.read_text())["checks"] if row["check"].startswith(check)]
    right = bool(rows) and all(row["status"] == "pass" for row in rows)
    return right, f"{ended.seconds:.0f} s: " + "; ".join(_row(row) for row in rows)


def _row(row: Mapping[str, Any]) -> str:
    found = [found for found in row["findings"] if found["severity"] != "info"]
    told = f", {codes(found)}: {found[0]['message'][:200]}" if found else ""
    seconds = (row["seconds"] or {}).get("max")
    return f"{row['check']} {row['status']} ({seconds} s) {row['skipped'] or row['summary']}{told}"


def one(work: Work, check: str, *words: str, limit_s: float, **more: Any) -> str:
    right, seen = sound(work, check, *words, limit_s=limit_s, **more)
    return work.expect(right, seen)


def job(work: Work, name: str, limit_s: float) -> str:
    """Two ranks of train_jobs.py."""
    words: Sequence[str] = [*PLAIN_LAUNCH, *work.on_card(), *command(name, script="train_jobs.py")]
    ended = work.run(words, limit_s=limit_s, env={**work.card_environ(), **plain_ranks(2)})
    said = [
        line for line in ended.output.splitlines() if ": " in line or "then the sum" in line or "compiled in" in line
    ]
    return work.expect(ended.code == 0, f"exit {ended.code} after {ended.seconds:.0f} s; {' | '.join(said[-3:])}")


def missing(work: Work, *modules: str) -> str:
    """Why a dry run cannot do this; "" where it can. On the real machine all are there."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent and not work.dry:
        raise UnexpectedError(f"not installed: {', '.join(absent)}")
    return f"not rehearsed: {', '.join(absent)} is not installed here" if absent else ""


@item("F1", "train.fsdp2 passes, plain and with bfloat16", 75)
def fsdp2_mixed(work: Work) -> str:
    return one(work, "train.fsdp2", "--set", "train.fsdp2.variants=plain,mixed", limit_s=70)


@item("F2", "losses of fp8 linear layers within 10% of bfloat16's", 35)
def fp8(work: Work) -> str:
    return job(work, "fp8", 30)


@item("F3", "train.compile passes, by inductor", 110)
def compiled(work: Work) -> str:
    return one(work, "train.compile", limit_s=105)


@item("F4", "losses under reduce-overhead (CUDA graphs) within 1% of plain", 50)
def cuda_graphs(work: Work) -> str:
    return job(work, "reduce_overhead", 45)


@item("F5", "train.model passes for Llama, Qwen3-MoE and ViT by their config.json", 150)
def configurations(work: Work) -> str:
    env: dict[str, str] = {}
    if missing(work, "transformers"):
        env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests' / 'models' / 'hub'}"
    told = []
    for name, values in [*CONFIGURATIONS.items()][: 1 if env else None]:  # the stand-in knows one kind of model
        (work.folder / name).mkdir(exist_ok=True)
        work.save(f"{name}/config.json", {**values, **({"model_type": "tiny", "architectures": None} if env else {})})
        words = ("--model", f"{name}/config.json", "--set", "train.model.strategies=ddp/plain,fsdp2/plain")
        right, seen = sound(work, "train.model", *words, limit_s=40, name=name, env=env)
        told.append((right, f"{name}: {seen}"))
    return work.expect(all(right for right, _ in told), " || ".join(seen for _, seen in told))


@item("F6", "train.model passes for a LightningModule", 65)
def lightning(work: Work) -> str:
    words = ("--model", f"{LIGHTNING}:Classifier", "--set", "train.model.strategies=ddp/plain,fsdp2/plain")
    return missing(work, "pytorch_lightning") or one(work, "train.model", *words, limit_s=60)


@item("F7", "data.sampler, data.seeds and data.resume pass for Accelerate's loader with pinned memory", 40)
def pinned(work: Work) -> str:
    why = missing(work, "accelerate")
    seen = one(work, "data", "--data", f"{JOBS / 'train_jobs.py'}:pinned_loader", limit_s=35)
    return f"{why}; {seen}" if why else seen


@item("F8", "train.checkpoint passes from GPU tensors (on NCCL alone it leaves async_save out)", 75)
def checkpoint(work: Work) -> str:
    return one(work, "train.checkpoint", "--set", "train.checkpoint.gib=0.5", limit_s=70)


@item("F9", "preflight.run in a script passes and leaves neither context nor memory", 65)
def within(work: Work) -> str:
    """One command runs both ranks; each starts preflight beside itself."""
    return job(work, "within", 60)
