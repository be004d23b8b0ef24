"""What data.sampler has to find of loaders that are wrong."""

from dataclasses import dataclass

NOBODY, ODD, ONE, LAST = "nobody", "rank 1 where most are unlike it", "rank 1", "the last"


@dataclass(frozen=True)
class Wrong:
    code: str
    says: str
    """Words of the message."""
    named: str = NOBODY
    severity: str = "fail"
    least: int = 2
    """Ranks on which it is wrong."""
    settings: str = ""
    file: bool = False
    """Whether the message begins with the user's own line."""


WRONG = {
    "returns_none": Wrong("wrong_return", "returns_none() returns None, expected a loader", file=True),
    "returns_generator": Wrong("wrong_return", "returns a generator, which can be read only once", file=True),
    "returns_dataset": Wrong("wrong_return", "returns a dataset (Numbers), expected the DataLoader", file=True),
    "returns_iterator": Wrong("wrong_return", "_SingleProcessDataLoaderIter, which can be read only once", file=True),
    "returns_no_loaders": Wrong("wrong_return", "an empty list, expected loaders in it", file=True),
    "raises_everywhere": Wrong(
        "user_error", "in raises_everywhere(): ValueError: sampler option is mutually", file=True
    ),
    "raises_on_one": Wrong("user_error", "in raises_on_one(): FileNotFoundError: no shard", ONE, file=True),
    "raises_in_main": Wrong("user_error", "in Bad.fail(): ValueError: the image is truncated", ONE, file=True),
    "raises_in_worker": Wrong("user_error", "in fail(): ValueError: the image is truncated", ONE, file=True),
    "raises_in_sampler": Wrong("user_error", "in RaisingSampler.__iter__(): IndexError: no weights", ONE, file=True),
    "unlike_shapes": Wrong("user_error", "stack expects each tensor to be equal size"),
    "worker_killed": Wrong("user_error", "1 of 1 DataLoader worker ended by SIGKILL", ONE),
    "stuck_in_main": Wrong("stuck", "in Stuck.fail(): still here after 2 s", ONE, settings="patience_s=2", file=True),
    "stuck_in_worker": Wrong(
        "stuck", "in fail(), in 1 of 2 DataLoader workers", ONE, settings="patience_s=2", file=True
    ),
    "stuck_stream": Wrong(
        "stuck", "in __iter__(), in 1 of 1 DataLoader worker", ONE, settings="patience_s=2", file=True
    ),
    "one_loader_less": Wrong("different_loaders", "2 loaders", ODD),
    "shorter_on_one": Wrong("length", "23", ODD),
    "other_order_on_one": Wrong("content", "dataset[0] is a different sample", ODD),
    "other_order_everywhere": Wrong("content", "dataset[0] is a different sample"),
    "all_are_rank_0": Wrong("wrong_replicas", "have rank=0 on"),
    "one_is_rank_0": Wrong("wrong_replicas", "rank=0", ODD),
    "too_many_replicas": Wrong("wrong_replicas", "parts of the samples are read by no rank"),
    "too_few_replicas": Wrong("wrong_replicas", "num_replicas=2", least=3),
    "seed_by_rank": Wrong("different_seeds", "1 on rank 1"),
    "seed_of_one": Wrong("different_seeds", "7", ODD),
    "workers_repeat": Wrong("workers_repeat", "2 workers"),
    "no_sampler": Wrong("same_samples", "24"),
    "no_sampler_shuffled": Wrong("same_samples", "24"),
    "no_sampler_shuffled_alike": Wrong("same_samples", "24"),
    "endless_alike": Wrong("same_samples", "24 samples, in one order"),
    "unsharded": Wrong("same_samples", "24"),
    "repeats_another": Wrong("overlap", "ranks 0-1 see the same", least=3),
    "overlapping": Wrong("overlap", "ranks 0 and 1 share"),
    "split_by_rank": Wrong("overlap", "of 48 samples"),
    "leaves_out": Wrong("never_seen", "24 of 48"),
    "a_batch_more": Wrong("unequal_batches", "rank 0 has"),
    "no_batches": Wrong("no_batches", "gets no batch, expected 4", LAST),
    "unlike_sizes": Wrong("batch_sizes", "4", ODD, "warn"),
    "even": Wrong("wrong_global_batch", "64", settings="global_batch=64"),
    "own_sampler": Wrong("wrong_data_parallel", "data_parallel", settings="data_parallel=2", least=3),
    "same_order": Wrong("same_order", "in the same order in both epochs", severity="warn"),
    "wrapped": Wrong("same_order", "in the same order in both epochs", severity="warn"),
    "wrapped_sampler": Wrong("same_order", "in the same order in both epochs", severity="warn"),
    "set_epoch_ignored": Wrong("set_epoch_ignored", "loader.sampler.set_epoch(1)", severity="warn"),
}
"""By the function of tests/loaders/mistaken.py or broken.py. Where most ranks are alike the odd one is named."""


INFOS = {
    "prints_everywhere": ("other_ranks_print", "ranks 1-3 printed 6 lines in the function, such as 'loading the data'"),
    "writes_everywhere": ("other_ranks_write", "ranks 1-3 wrote, created or removed 1 file in the function, such as "),
    "padded": ("padded", "3 of 25 samples are seen again, to even out 4 ranks"),
    "tails_dropped": ("dropped", "15 of 35 samples are left out of an epoch"),
    "own_part_of_a_split": ("dropped", "6 of 30 samples are left out of an epoch: 6 are in no rank's Subset"),
    "own_files": ("not_proven", "whether they overlap, or are complete, is unknown"),
}
"""On 4 ranks. By the function: its one finding, and what that says."""


SEEDS = {
    "ranks_repeat_in_workers": ("warn ranks_repeat",),
    "ranks_repeat_in_main": ("warn ranks_repeat",),
    "workers_repeat": ("warn workers_repeat",),
    "epochs_and_ranks_repeat": ("warn ranks_repeat", "warn epochs_repeat"),
    "epochs_repeat": ("warn epochs_repeat",),
    "copied_generator": ("warn workers_repeat",),
    "one_seeded_otherwise": ("warn some_differ",),
    "weights_differ": ("info weights_differ",),
    "dropout_repeats": ("info dropout_repeats",),
    "not_a_dataloader": ("info not_seen",),
}
"""What data.seeds finds, by the function of tests/loaders/seeds.py, on 3 ranks: all above info, or the one info. The
rank is named where it is rank 1 that is seeded otherwise."""
ODD_SEED = "one_seeded_otherwise"


WRAPPED = {
    "accelerate_on_top": Wrong("wrong_replicas", "BatchSamplerShard and DistributedSampler each split the samples"),
    "accelerate_dispatched_on_top": Wrong("wrong_replicas", "DataLoaderDispatcher and DistributedSampler each split"),
    "accelerate_not_even": Wrong("unequal_batches", "has 32 batches, rank 1 has 31 batches"),
    "accelerate_unseeded": Wrong("overlap", "ranks 0 and 1 share "),
    "accelerate_not_prepared": Wrong("same_samples", "both ranks see the same 1,003 samples"),
    "stateful_without_sampler": Wrong("same_samples", "both ranks see the same 1,003 samples"),
    "web_not_split": Wrong("same_samples", "both ranks see the same 80 samples"),
    "Shares": Wrong("same_samples", "train: both ranks see the same 1,003 samples"),
}
"""Of tests.loaders.wrapped and modules, on two ranks."""
