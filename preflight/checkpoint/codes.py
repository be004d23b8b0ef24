"""The codes of `preflight checkpoint`: what each means, and what to do."""

from preflight.check import Code

FAMILY = "preflight.checkpoint"
PURPOSE = "What `preflight checkpoint` finds in a saved checkpoint."

TRUNCATED = Code(
    "A file ends before what it should hold, or was never filled: the save or the copy did not finish.",
    fix="Copy it again and compare the sizes (ls -l on both sides); if the original is as short, take the checkpoint "
    "before it. Was the disk full, or the job killed while it saved?",
)
MISSING = Code(
    "A file, or a tensor in it, is not there though the index or the metadata names it.",
    fix="Copy the whole folder again (rsync -a --checksum); if the original lacks it, too, use the checkpoint before "
    "it.",
)
UNFINISHED = Code(
    "Files of ranks are there, but the metadata, which is written last, is not: the save did not finish.",
    fix="Use the checkpoint before it; delete this one. Let the job resume only from folders that hold .metadata.",
)
BROKEN = Code(
    "A file contradicts itself, or cannot be decoded.",
    fix="Copy it again and compare checksums (sha256sum on both sides); if they are equal, use the checkpoint before "
    "it.",
)
CHECKSUM = Code(
    "Bytes of a file are not those that were saved: the checksum (CRC32) that was written with them differs.",
    fix="Copy it again and compare (sha256sum on both sides); if the original is as damaged, a disk or server has lost "
    "a block: use the checkpoint before it.",
)
WRONG_SHAPE = Code(
    "A tensor's shape, type or size differs from the metadata: files of two saves are mixed, or one is damaged.",
    fix="Save into an empty folder each time; use the checkpoint before it.",
)
NOT_FINITE = Code(
    "A tensor holds NaN or infinite elements.",
    fix="Use an earlier checkpoint that is finite, and skip the data or lower the learning rate that led to it: the "
    "training had diverged before this one was saved.",
)
INFINITE = Code(
    "Every element of a tensor is infinite: a limit that is not set yet, or an overflow.",
    fix="Nothing if it is a minimum or maximum that was not observed yet; else use an earlier checkpoint.",
)
EXECUTES = Code(
    "Loading a file runs code: its pickle calls functions that tensors do not need.",
    fix="Do not load it (neither with weights_only=False nor otherwise). Find out who wrote it; use another copy.",
)
OBJECTS = Code(
    "A file of tensors holds objects of other classes: torch.load since 2.6 refuses it (weights_only=True).",
    fix="Save model.state_dict() and plain numbers instead of objects; to load it once, if you trust it: "
    "torch.load(..., weights_only=False), with the same code importable.",
)
PICKLE = Code(
    "A file is a pickle where tensors are expected.",
    fix="Do not load it, unless you made it yourself; save with torch.save(state_dict) or safetensors.",
)
WRONG_FORMAT = Code(
    "A file that should hold tensors has another format.",
    fix="Check what it is (file NAME); copy the right one, or move it out of the folder.",
)
LEFTOVER = Code(
    "No index names a file or a tensor that is there: it is left from another save, and nothing loads it.",
    fix="Save into an empty folder each time; delete it once this checkpoint is known to load.",
)
DUPLICATE_TENSOR = Code(
    "A tensor is in two files: which one counts depends on the loader.",
    fix="Delete the file that is left from another save, or write the shards again into an empty folder.",
)
OVERSIZED = Code(
    "A small tensor was saved with the whole large storage behind it.",
    fix="Save tensor.clone() instead of a slice or a view of a larger tensor.",
)
NO_TENSORS = Code(
    "The checkpoint holds no tensor.",
    fix="Was the model's state saved? Name the file or folder that has the weights.",
)
PREFIX = Code(
    "Names differ from the model's by what a wrapper puts into them: load_state_dict refuses them.",
    fix="Load with {name.replace('module.', '', 1): t for ...} (or _orig_mod.), or save the unwrapped model: "
    "model.module.state_dict(), or torch.distributed.checkpoint.state_dict.get_model_state_dict.",
)
NOT_IN_CHECKPOINT = Code(
    "The model has tensors that the checkpoint lacks.",
    fix="Is it the checkpoint of this model and version? load_state_dict(strict=False) would leave them at their "
    "initial values.",
)
NOT_IN_MODEL = Code(
    "The checkpoint has tensors that the model lacks.",
    fix="Is it the checkpoint of this model and version? load_state_dict(strict=False) would drop them.",
)
SHAPE_MISMATCH = Code(
    "Shapes of tensors differ from the model's.",
    fix="Build the model with the configuration of the training (vocabulary, width, heads, tensor-parallel degree).",
)
NO_FIT = Code(
    "The checkpoint and the model have no name in common.",
    fix="Is it the checkpoint of this model? Does the function of --model build the model that was trained?",
)
TIED_ONCE = Code(
    "Tensors that are tied in the model are saved under only one of their names: load_state_dict(strict=True) fails.",
    fix="Load with strict=False (the model ties them), or save state_dict() with torch.save, which keeps both names.",
)
TIED_DIFFER = Code(
    "Tensors that are tied in the model are saved with different elements.",
    fix="The weights were untied while training, or the file was put together from two: find out which one is right.",
)
UNREADABLE = Code(
    "A file cannot be read.",
    fix="There: ls -l, and dmesg for the disk; run as a user who may read it.",
)
NO_ANSWER = Code(
    "The file system does not answer.",
    fix="There: time dd if=FILE of=/dev/null; is the server of the mount up (df, mount)? Give a slow one more time: "
    "--timeout.",
)
SEVERITIES = {
    **dict.fromkeys((INFINITE, OBJECTS, LEFTOVER, OVERSIZED, TIED_ONCE), "warn"),
    **dict.fromkeys((UNREADABLE, NO_ANSWER), "error"),
}
"""Severities; all others are fail."""


OF_FIT = {"prefix", "not_in_checkpoint", "not_in_model", "shape_mismatch", "no_fit"}
"""Slugs that do not mean a fault of the checkpoint itself."""


def by_slug() -> dict[str, Code]:
    return {name.lower(): value for name, value in globals().items() if isinstance(value, Code)}
