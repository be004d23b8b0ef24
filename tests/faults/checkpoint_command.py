"""What the command `preflight checkpoint` finds: made by tests/checkpoint/damages.py, held by
tests/checkpoint/test_damages.py."""

from typing import Any

from tests.faults.row import Fault, elsewhere

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""


def _row(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    """`file`, `parameter`: what the finding names."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    culprit = {key: more.pop(key) for key in ("file", "parameter") if key in more}
    found = tuple(find.replace(" ", " preflight.checkpoint.") for find in finds)
    settings = {"exit_code": exit_code, "deadline_s": 60, "culprit": culprit, **more}
    return elsewhere(f"saved_{name}", story, made, *found, **settings)


_MODEL, _SAFE, _RANK_1 = "model.pt", "model.safetensors", "__1_0.distcp"
_FIRST, _SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ELSEWHERE: tuple[Fault, ...] = (
    _row("torn_zip", "A file of torch.save was cut off.", "its second half is cut", "fail truncated", file=_MODEL,
         says="the directory at its end is missing: it was cut off after "),
    _row("empty_file", "A full disk leaves a file of 0 bytes.", "an empty file", "fail truncated", file=_MODEL,
         says="has 0 bytes"),
    _row("zeros", "A node died before the data of a file reached the disk.", "a file of zeros", "fail truncated",
         file=_SAFE, says="begins with 512 zeros"),
    _row("cut_safetensors", "A file of safetensors was cut off.", "its last 10 bytes are cut", "fail truncated",
         file=_SAFE, parameter="1.bias", says="by the header, the file at "),
    _row("cut_legacy", "A file of an old torch.save was cut off.", "its last 10 bytes are cut", "fail truncated",
         file=_MODEL, parameter="weight", says="needs 400 bytes of its storage, and 390 are in the file"),
    _row("cut_rank", "The file of one of two ranks (DCP) was cut off.", "its last 10 bytes are cut", "fail truncated",
         file=_RANK_1, says=" parts are cut off, such as "),
    _row("lost_rank", "The file of one of two ranks (DCP) is not there.", "it is deleted", "fail missing",
         file=_RANK_1, says="is not there, but .metadata expects "),
    _row("unfinished", "A job was killed while DCP saved.", ".metadata is deleted", "fail unfinished",
         says="holds 2 files of ranks and no .metadata"),
    _row("lost_shard", "A shard that the index names was not copied.", "it is deleted", "fail missing", file=_SECOND,
         says="is not there, but model.safetensors.index.json expects 2 tensors in it: 1.weight and 1.bias"),
    _row("lost_bin", "A shard of pytorch_model.bin was not copied.", "it is deleted", "fail missing",
         file="pytorch_model-00001-of-00002.bin", says="expects 2 tensors in it: 0.weight and 0.bias"),
    _row("lost_number", "Of numbered shards without an index one is not there.", "it and the index are deleted",
         "fail missing", says=f"{_FIRST} of 2 numbered files are not there"),
    _row("lost_tensor", "A shard lacks a tensor that the index expects in it.", "the index names one more",
         "fail missing", file=_SECOND, parameter="1.scale", says="is not in it, but model.safetensors.index.json"),
    _row("lost_storage", "A file of torch.save lacks the data of a tensor.", "the zip is written without data/0",
         "fail missing", file=_MODEL, parameter="weight", says="data/0, is not in the file"),
    _row("lfs_pointer", "A repository was cloned without Git LFS.", "the pointer of a file", "fail missing",
         file=_SAFE, says="git lfs pull"),
    _row("broken_header", "The header of safetensors is damaged.", "zeros in the JSON", "fail broken", file=_SAFE,
         says="its header is not JSON"),
    _row("huge_header", "The header of safetensors says an absurd length.", "2**62 bytes", "fail broken", file=_SAFE,
         says="its header would have 4,611,686,018,427,387,904 bytes"),
    _row("mixed_saves", "One rank's file (DCP) is of another save.", "that of a wider model is copied in its place",
         "fail wrong_shape", also=("fail preflight.checkpoint.broken",), file=_RANK_1),
    _row("gap", "The metadata (DCP) lacks a rank's part of a tensor.", "its chunk is taken out", "fail wrong_shape",
         file=".metadata", parameter="model.weight", says="its chunks hold 12 elements, and its shape [5, 4] has 20"),
    _row("overlap", "The chunks of two ranks (DCP) overlap.", "the second begins a row before", "fail wrong_shape",
         file=".metadata", parameter="model.weight", says="overlap, so that others are missing"),
    _row("lost_block", "A server has lost a block of a file.", "64 KiB of zeros in a tensor", "fail checksum",
         file=_MODEL, parameter="weight", says="its 262,144 bytes have the CRC32 "),
    _row("lost_block_of_a_rank", "A bit has flipped in a rank's file (DCP).", "one bit of a chunk", "fail checksum",
         file=_RANK_1, says="the file is damaged"),
    _row("other_header_shape", "A tensor's shape does not fit its bytes.", "another shape in the header",
         "fail wrong_shape", file=_SAFE, parameter="weight", says="[5, 4] of float32 needs 80 bytes"),
    _row("nan", "A weight is NaN.", "an element of a state dict", "fail not_finite", file=_MODEL,
         parameter="model.1.weight", says="1 NaN of 64 elements, the first at 35"),
    _row("nan_by_ranks", "A weight in a rank's chunk (DCP) is NaN.", "its last element", "fail not_finite",
         file=_RANK_1, parameter="model.weight", says="1 NaN of "),
    _row("inf", "A weight has overflowed.", "an element in bfloat16", "fail not_finite", file=_SAFE,
         parameter="weight", says="1 infinite of 1,572,864 elements, the first at 1,048,583"),
    _row("all_inf", "All of a tensor is infinite.", "torch.full", "warn infinite", file=_MODEL,
         parameter="observer.min_val", says="every element is infinite"),
    _row("runs_code", "Loading the file would run a program.", "an object whose __reduce__ is os.system",
         "fail executes", file=_MODEL, says="names posix.system to be called when it is loaded"),
    _row("metadata_runs_code", "Loading the metadata (DCP) would run a program.", "such an object as .metadata",
         "fail executes", file=".metadata", says="names posix.system"),
    _row("entry_runs_code", "Loading one rank's part (DCP) would run a program.", "such an object in a tensor's place",
         "fail executes", file="__0_0.distcp", says="posix.system"),
    _row("whole_model", "A whole model was saved, not its state.", "torch.save(model)", "warn objects", file=_MODEL,
         says="tests.checkpoint.models.Tied"),
    _row("plain_pickle", "A pickle stands where tensors are expected.", "pickle.dump", "fail pickle", file=_MODEL,
         says="is a plain pickle"),
    _row("other_format", "A file in the folder has another format.", "GGUF under the name of a shard",
         "fail wrong_format", file=_SECOND, says="is a file of GGUF"),
    _row("more_ranks_before", "A save of more ranks went into the same folder before (DCP).",
         "a third rank's file is there", "warn leftover", file="__2_0.distcp", says="is not named in .metadata"),
    _row("tensor_left_over", "A shard holds a tensor that the index does not know.", "it is taken out of the index",
         "warn leftover", file=_SECOND, parameter="1.bias", says="no loader reads it"),
    _row("in_two_files", "Two shards hold one tensor.", "a shard is written with it, too", "fail duplicate_tensor",
         parameter="1.bias", says=f"is in {_FIRST} and {_SECOND}"),
    _row("slice_of_large", "A slice was saved with all of the tensor behind it.", "torch.save of a view of 80 MiB",
         "warn oversized", file=_MODEL, parameter="weight", says="uses 12 B of a storage of 80 MiB"),
    _row("no_tensors", "A file holds numbers only.", "torch.save of a step", "fail no_tensors"),
    _row("ddp_names", "The model was saved in DDP.", "module. before all names", "fail prefix",
         says="all 4 names under model have module. (DDP's or DataParallel's) in them"),
    _row("compiled_model", "The model is compiled, and was not when it was saved.", "torch.compile in --model",
         "fail prefix", says="all 4 names lack _orig_mod. (torch.compile's) of the model's"),
    _row("lacks", "The model has more layers.", "a layer more in --model", "fail not_in_checkpoint",
         says="2.weight and 2.bias"),
    _row("has_more", "The checkpoint has more layers.", "a layer fewer in --model", "fail not_in_model",
         says="state.model.1.weight and state.model.1.bias"),
    _row("other_width", "The model has another width.", "another size in --model", "fail shape_mismatch", file=_MODEL,
         says="1.weight: [4, 16], and [5, 16] in the model"),
    _row("other_model", "It is the checkpoint of another model.", "another one in --model", "fail no_fit",
         says="none of the model's 2 names (encoder.weight and encoder.bias) is in it"),
    _row("tied_once", "Tied weights are saved under one name.", "safetensors of such a model", "warn tied_once",
         parameter="head.weight", says="is one tensor with embed.weight in the model"),
    _row("tied_twice", "Tied weights are saved twice, and differ.", "other values for the second", "fail tied_differ",
         parameter="head.weight", says="differs from embed.weight"),
    _row("tied_in_two_types", "Tied weights are saved in two types.", "the second in bfloat16", "fail tied_differ",
         parameter="head.weight", says="is saved as bfloat16, and embed.weight as float32"),
    _row("disk_error", "The disk gives an error.", "EIO by a file system of the test's own", "error unreadable",
         file=_MODEL, exit_code=3, says="cannot be read (Input/output error)"),
    _row("dead_server", "The file system's server does not answer.", "it never answers a read, `--timeout 5`",
         "error no_answer", exit_code=3, says="no answer within "),
)  # fmt: skip
