"""Stands for Hugging Face's transformers, which tests do without: a configuration of one kind of model, and that model.

It has the names that preflight asks for, as version 5.24 has them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

__version__ = "5.24.0"


class TinyConfig:
    model_type = "tiny"

    def __init__(self, **given: Any) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = 32, 16, 2
        self.pad_token_id: int | None = None
        self.architectures: list[str] | None = None
        self.use_cache = True
        vars(self).update(given)
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size}\nis no multiple of 2")

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "TinyConfig":
        return cls(**{name: value for name, value in given.items() if name != "model_type"})


class PreTrainedModel(nn.Module):
    main_input_name = "input_ids"


class Output(NamedTuple):
    logits: Tensor | None = None
    loss: Tensor | None = None
    last_hidden_state: Tensor | None = None


class TinyModel(PreTrainedModel):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(self.depth))
        self.norm = nn.LayerNorm(config.hidden_size)

    @property
    def depth(self) -> int:
        return int(self.config.num_hidden_layers)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor) -> Output:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return Output(last_hidden_state=self.norm(x))


class TinyForCausalLM(TinyModel):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def loss_function(self) -> Any:
        return _of_next

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.lm_head(super().forward(input_ids).last_hidden_state)
        loss = None if labels is None else _of_next(logits, labels, self.config.vocab_size)
        return Output(logits=logits, loss=loss)


class TinySound(TinyModel):
    main_input_name = "input_values"


def _of_next(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].flatten())


class _Auto:
    _model_mapping: dict[type, type] = {}  # noqa: RUF012 -- as there

    @classmethod
    def from_config(cls, config: TinyConfig) -> nn.Module:
        return TinyModel(config)


class AutoModel(_Auto):
    pass


class AutoModelForCausalLM(_Auto):
    _model_mapping = {TinyConfig: TinyForCausalLM}  # noqa: RUF012

    @classmethod
    def from_config(cls, config: TinyConfig) -> nn.Module:
        return TinyForCausalLM(config)


AutoModelForSeq2SeqLM = AutoModelForMaskedLM = AutoModelForImageClassification = AutoModel
CONFIG_MAPPING = {"tiny": TinyConfig}
