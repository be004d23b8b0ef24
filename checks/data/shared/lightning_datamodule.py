"""The loaders of a LightningDataModule as Lightning's Trainer provides them: prepared, set up, and with the sampler it
injects. Uses Lightning's own code, by private names of 2.6."""

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import UserError

PACKAGES = ("lightning", "pytorch_lightning")
STAGES = {"train": "fit", "val": "fit", "test": "test"}
"""The stage to call `setup` with, by name of the loader."""
USED = ("_request_dataloader", "_DataLoaderSource", "_process_dataloader")
"""Names used from Lightning's data_connector.py."""


def is_one(value: Any) -> bool:
    return _package(value) != ""


def loaders(module: Any, nodes: int) -> dict[str, Any]:
    """Loaders by name: train, val and test, as far as the user's class has them; val/0 if a hook returns several. Keeps
    a Trainer that the user set as `module.trainer`; else makes one for all ranks on `nodes` nodes. Raises UserError if
    this version of Lightning works differently."""
    package = _package(module)
    module.trainer = module.trainer or _trainer(package, nodes)
    module.trainer.datamodule = module
    _prepare(module)
    found: dict[str, Any] = {}
    done = set[str]()
    for name, stage in STAGES.items():
        if not _overrides(module, package, f"{name}_dataloader"):
            continue
        if stage not in done:
            module.setup(stage)
            done.add(stage)
        found |= _of_hook(module, package, name)
    return found


def _package(value: Any) -> str:
    """ "lightning.pytorch" or "pytorch_lightning"; "" if it is not a data module."""
    for kind in type(value).__mro__:
        if kind.__name__ == "LightningDataModule" and kind.__module__.partition(".")[0] in PACKAGES:
            return kind.__module__.removesuffix(".core.datamodule")
    return ""


def _trainer(package: str, nodes: int) -> Any:
    """A Trainer on CPUs: nothing is trained."""
    world = int(os.environ["WORLD_SIZE"])
    nodes = nodes if world % nodes == 0 else 1
    environments = importlib.import_module(f"{package}.plugins.environments")
    return importlib.import_module(package).Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=world // nodes,
        num_nodes=nodes,
        plugins=[environments.TorchElasticEnvironment()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _prepare(module: Any) -> None:
    """Runs prepare_data on the first rank of each node, or of all; the others wait."""
    from torch import distributed

    first = os.environ["LOCAL_RANK" if getattr(module, "prepare_data_per_node", True) else "RANK"] == "0"
    if first:
        module.prepare_data()
    if distributed.is_initialized():
        distributed.barrier()


def _overrides(module: Any, package: str, hook: str) -> bool:
    base = importlib.import_module(f"{package}.core.datamodule").LightningDataModule
    return getattr(type(module), hook) is not getattr(base, hook)


def _of_hook(module: Any, package: str, name: str) -> dict[str, Any]:
    connector = importlib.import_module(f"{package}.trainer.connectors.data_connector")
    if not all(hasattr(connector, needed) for needed in USED):
        version = importlib.import_module(package.partition(".")[0]).__version__
        raise UserError(f"Lightning {version} provides loaders in an unknown way: return them instead")
    states = importlib.import_module(f"{package}.trainer.states")
    does = states.TrainerFn.TESTING if name == "test" else states.TrainerFn.FITTING
    stage = {"train": "TRAINING", "val": "VALIDATING", "test": "TESTING"}[name]
    loaders = connector._request_dataloader(connector._DataLoaderSource(module, f"{name}_dataloader"))
    return {
        path: connector._process_dataloader(module.trainer, does, getattr(states.RunningStage, stage), loader)
        for path, loader in _flat(loaders, name)
    }


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, loader) for a hook's nested lists or dicts of loaders, or a CombinedLoader."""
    if type(value).__name__ == "CombinedLoader":
        value = value.iterables
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}/{number}")
    else:
        yield path, value
