"""A model of transformers with an adapter of peft around it: a stand-in, with the names that preflight asks for."""

import importlib
from typing import Any

from torch import Tensor, nn


class PeftModelForCausalLM(nn.Module):
    """The base model is frozen; what is trained is beside its embedding."""

    __module__ = "peft.peft_model"

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_model = base.requires_grad_(False)
        self.adapter = nn.Linear(16, 16)
        nn.init.normal_(self.adapter.weight, std=0.5)

    def get_base_model(self) -> Any:
        return self.base_model

    def forward(self, **named: Tensor) -> Any:
        embed = self.get_base_model().get_input_embeddings()
        found = embed.register_forward_hook(lambda _, __, rows: rows + self.adapter(rows))
        try:
            return self.base_model(**named)
        finally:
            found.remove()


def adapted() -> nn.Module:
    transformers = importlib.import_module("transformers")  # tests/models/hub
    return PeftModelForCausalLM(transformers.TinyForCausalLM(transformers.TinyConfig()))
