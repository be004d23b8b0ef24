"""Models of Hugging Face's transformers: built from a configuration file with random weights, and a batch for them.

Nothing is downloaded, and no code that the configuration names is run.
"""

import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from preflight.train_smoke.user.validation import ModelMistake, TooBig

AUTO = ("CausalLM", "Seq2SeqLM", "MaskedLM", "ImageClassification")
"""If a configuration names no architecture: the first of AutoModelFor... that knows its type, else AutoModel."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the names of models that predict the next token."""
OF_A_TOKEN = (*CAUSAL, "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")
"""Suffixes of the names of models whose labels are token ids, one per token."""
OF_A_ROW = ("ForSequenceClassification", "ForImageClassification")
"""Suffixes for models with one class per row."""
FEW = 2
"""Layers of a model that is too big as it is; more if it has more kinds of layers."""
VOCABULARY = 1024
"""Size of the vocabulary of such a model."""


class ConfigMistake(Exception):  # noqa: N818 -- the user's, told as a finding
    """Why no model can be built from a configuration."""


def is_one(model: Any) -> bool:
    """Also with adapters of peft around it."""
    own = type(base(model)).__mro__
    return any(kind.__name__ == "PreTrainedModel" and _package(kind) == "transformers" for kind in own)


def base(model: Any) -> Any:
    """The model within peft's, which has its configuration and its kind; else the model itself."""
    is_pefts = any(_package(kind) == "peft" for kind in type(model).__mro__)
    return model.get_base_model() if is_pefts and hasattr(model, "get_base_model") else model


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


# Of a configuration


def build(path: str, too_big: Callable[[int, int], str], agreed: Callable[[bool], bool]) -> tuple[nn.Module, str]:
    """(a model with random weights, how it was made smaller or ""). `too_big` returns why there is no memory for a
    number of parameters and bytes, or "". `agreed` returns the first rank's value of a local one, so that all build the
    same model. Raises ConfigMistake; TooBig if even the small one is too big."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    given = _read(path)
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        why = f"transformers, which builds the model, cannot be imported here ({error}): install it"
        raise ConfigMistake(why) from error
    config, smaller = _config(transformers, given), ""
    why = too_big(*_size(transformers, config))
    if agreed(bool(why)):
        smaller = _made_smaller(config)
        if still := too_big(*_size(transformers, config)):
            text = f"{why or still}; with {smaller or 'no layer less'} {still.partition(': ')[2]}"
            raise TooBig(f"{text}: give a configuration of narrower layers, or start fewer ranks per node")
        smaller = f"{why or 'the first rank has no memory for all of it'}, so it has {smaller}"
    elif why:
        raise TooBig(why)
    return _model(transformers, config), smaller


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
    except OSError as error:
        raise ConfigMistake(f"it cannot be read ({error.strerror}; the current folder is {os.getcwd()})") from error
    except ValueError as error:
        raise ConfigMistake(f"it is not JSON ({error})") from error
    if not isinstance(given, dict) or not isinstance(given.get("model_type"), str):
        raise ConfigMistake('it has no "model_type", expected a config.json of transformers')
    return given


def _config(transformers: Any, given: dict[str, Any]) -> Any:
    kind, known = given["model_type"], transformers.CONFIG_MAPPING
    if kind not in known:
        remote = given.get("auto_map")
        why = f"has the model_type {kind!r}, which transformers {transformers.__version__} does not know"
        if remote:
            why = f"names its own code ({', '.join(map(str, remote.values()))}), which is not run here"
        raise ConfigMistake(f"it {why}: name a function that builds the model")
    try:
        return known[kind].from_dict({key: value for key, value in given.items() if key != "auto_map"})
    except Exception as error:
        raise ConfigMistake(f"transformers does not accept it ({type(error).__name__}: {_line(error)})") from error


def _model(transformers: Any, config: Any) -> nn.Module:
    """The model, in float32 unless the configuration names a different type."""
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    mappings = (getattr(transformers, f"AutoModelFor{kind}") for kind in AUTO)
    auto = next((its for its in mappings if type(config) in its._model_mapping), transformers.AutoModel)
    config.use_cache = False  # training does not need it, and torch.export cannot trace it
    try:
        model: nn.Module = named[0](config) if named and named[0] else auto.from_config(config)
    except Exception as error:
        raise ConfigMistake(f"transformers builds no model from it ({type(error).__name__}: {_line(error)})") from error
    return model


def _size(transformers: Any, config: Any) -> tuple[int, int]:
    """(number of parameters, their bytes), without allocating them."""
    with torch.device("meta"):
        parameters = list(_model(transformers, config).parameters())
    count = sum(parameter.numel() for parameter in parameters)
    return count, sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _made_smaller(config: Any) -> str:
    """Reduces the number of layers and tokens, which changes no layer's computation. Returns the change in words."""
    told = []
    layers, kinds = getattr(config, "num_hidden_layers", None), getattr(config, "layer_types", None)
    if isinstance(layers, int) and layers > FEW:
        first = [kinds.index(kind) + 1 for kind in set(kinds)] if kinds else []
        config.num_hidden_layers = min(layers, max(FEW, *first, 0))
        if kinds:
            config.layer_types = kinds[: config.num_hidden_layers]
        told.append(f"{config.num_hidden_layers} of {layers} layers")
    tokens = getattr(config, "vocab_size", None)
    if isinstance(tokens, int) and tokens > VOCABULARY:
        config.vocab_size = VOCABULARY
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if getattr(config, name, None) is not None:
                setattr(config, name, 0)
        told.append(f"{VOCABULARY} of {tokens} tokens")
    return " and ".join(told)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


# A batch and a loss


def loss_of_logits(model: Any, batch: Mapping[str, Any]) -> Callable[[nn.Module, Any], Tensor] | None:
    """The loss that forward would compute, from its logits, so that a pipeline can run it after its last stage; None if
    forward adds more to it."""
    kind, config = type(model).__name__, model.config
    if not kind.endswith(CAUSAL) or "labels" not in batch or getattr(config, "output_router_logits", False):
        return None
    return functools.partial(_of_logits, model.loss_function, model.get_input_embeddings().num_embeddings)


def _of_logits(loss: Callable[..., Tensor], tokens: int, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    named = {name: value for name, value in batch.items() if name != "labels"}
    return loss(logits=model(**named).logits, labels=batch["labels"], vocab_size=tokens)


def batch(model: Any, rows: int, length: int) -> dict[str, Tensor]:
    """The arguments of its forward by name, with labels if its kind has some. Raises ModelMistake."""
    config, takes = model.config, inspect.signature(model.forward).parameters
    name = model.main_input_name
    if name == "input_ids":
        made = {name: _ids(model, config, rows, length)}
    elif name == "pixel_values" and (size := getattr(config, "image_size", None)):
        size = (size, size) if isinstance(size, int) else tuple(size)
        made = {name: torch.randn(rows, config.num_channels, *size)}
    else:
        text = f"no batch is made up for {type(model).__name__}, whose input is {name}: "
        raise ModelMistake("wrong_batch", f"{text}name a function that returns (model, batch), with a dict for forward")
    kind = type(model).__name__
    if "labels" in takes and kind.endswith(OF_A_ROW):
        made["labels"] = torch.randint(0, config.num_labels, (rows,))
    elif "labels" in takes and kind.endswith(OF_A_TOKEN) and name == "input_ids":
        made["labels"] = made[name].clone()
    return made


def _ids(model: Any, config: Any, rows: int, length: int) -> Tensor:
    """Token ids, none of which is padding."""
    tokens = model.get_input_embeddings().num_embeddings
    length = min(length, getattr(config, "max_position_embeddings", None) or length)
    ids = torch.randint(0, tokens, (rows, length))
    padding = getattr(config, "pad_token_id", None)
    return ids if padding is None else torch.where(ids == padding, (ids + 1) % tokens, ids)
