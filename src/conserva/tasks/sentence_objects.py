"""Tasks of the models of sentence-transformers in memory: cross-encoders and sentence encoders."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import Tensor, nn

from ..errors import Error
from .loading_checks import refuse_head
from .sentence_files import Truncation, refuse_options, refuse_prompt
from .similarity import SCORES, Similarity, known_pooling
from .text import Text

_LAYERS = ("Dense", "Dropout", "LayerNorm", "Normalize")
"""The modules of a sentence encoder that are supported after its pooling: they map an embedding to an embedding."""

_EXAMPLE = " An  Ex\u00e1mple. "
"""A text that a model may change before its tokenizer reads it: its spaces, capitals and accents."""

_CLASSIFIER = "conserva.load(model.transformers_model, tokenizer=model.tokenizer)"
"""How the transformers model of a cross-encoder is made a task."""

_EMBEDDING = "sentence_embedding"
"""The name of the embedding between the modules of a sentence encoder."""


class EmbeddingLayer(nn.Module):
    """A module of a sentence encoder as a module that maps a tensor to a tensor."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = _in_evaluation_mode(module)
        self.training = False

    def forward(self, embedding: Tensor) -> Tensor:
        """Return the embedding after the module."""
        output: Tensor = self.module({_EMBEDDING: embedding})[_EMBEDDING]
        return output


def cross_encoder(model: Any, head: str | None) -> Text:
    """Return the task of a `CrossEncoder`: what is explained is a logit, before the activation."""
    modules = [type(module).__name__ for module in model] if isinstance(model, nn.Sequential) else []
    if more := modules[1:]:
        raise Error(
            f"model is a CrossEncoder with the modules {', '.join(modules)}: only a transformers model alone is "
            f"supported, without {', '.join(more)}. Explain that one, as {_CLASSIFIER}: a causal language model by the "
            "target 'yes - no', for the texts of both as its prompt."
        )
    _refuse_hooks(model, [model, model[0]] if modules else [model])
    network = _network(model, model.model)
    _refuse_other_tokens(model, (_EXAMPLE, _EXAMPLE), _CLASSIFIER)
    return Text(network, model.tokenizer, head=_head_of(model, network) if head is None else head)


def _head_of(model: Any, network: Any) -> str | None:
    """Return the output head that a cross-encoder's activation implies; None for that of its configuration."""
    activation, config = model.activation_fn, network.config
    name = getattr(activation, "__name__", type(activation).__name__)
    if name in ("Sigmoid", "sigmoid"):
        return "binary" if config.num_labels == 1 else "multi_label"
    if name in ("Softmax", "softmax"):
        return "single_label"
    if name != "Identity":
        raise Error(
            f"model is a CrossEncoder with the activation {name}, which is neither Sigmoid, Softmax nor Identity: say "
            "how its logits are interpreted with head=, such as head='regression'."
        )
    if config.num_labels == 1:
        return "regression"
    return "single_label" if config.problem_type is None else None


def sentence_encoder(model: Any, head: str | None) -> Similarity:
    """Return the task of a `SentenceTransformer`, with its own pooling, layers and measure of similarity."""
    refuse_head(Similarity, head, "a SentenceTransformer")
    modules = list(model)
    names = [type(module).__name__ for module in modules]
    wrong = [name for name in names[2:] if name not in _LAYERS]
    if names[:2] != ["Transformer", "Pooling"] or wrong:
        raise Error(
            f"model is a SentenceTransformer with the modules {', '.join(names)}: a Transformer and a Pooling are "
            f"supported, and after them {', '.join(_LAYERS)}."
        )
    for name, module in zip(names[2:], modules[2:], strict=True):
        ends = {getattr(module, f"module_{end}_name", _EMBEDDING) for end in ("input", "output")}
        if ends != {_EMBEDDING}:
            raise Error(f"model is a SentenceTransformer whose {name} does not map its embedding to an embedding.")
    _refuse_hooks(model, [model, *modules[:2]])
    score = str(model.similarity_fn_name)
    if score not in SCORES:
        raise Error(f"model is a SentenceTransformer with the similarity {score!r}: supported are {', '.join(SCORES)}.")
    layers: list[nn.Module] = [EmbeddingLayer(module) for module in modules[2:]]
    if model.truncate_dim is not None:
        layers.append(Truncation(model.truncate_dim))
    network = _network(model, modules[0].auto_model)
    _refuse_other_tokens(model, _EXAMPLE, "conserva.Similarity(model.transformers_model, model.tokenizer)")
    pooling = getattr(modules[1], "pooling_mode", None) or modules[1].get_pooling_mode_str()
    return Similarity(
        network,
        model.tokenizer,
        pooling=known_pooling(
            [pooling] if isinstance(pooling, str) else list(pooling), "model is a SentenceTransformer that"
        ),
        score=score,
        layers=layers,
    )


def _in_evaluation_mode(module: nn.Module) -> nn.Module:
    """Return a module with the same weights in evaluation mode, which `encode` would set.

    The layers of a sentence encoder that was just loaded are in training mode, in contrast to its transformers model.
    """
    twin = copy(module)
    twin._modules = {name: child and _in_evaluation_mode(child) for name, child in module._modules.items()}
    twin.training = False
    return twin


def _refuse_other_tokens(model: Any, example: str | tuple[str, str], instead: str) -> None:
    """Raise an `Error` if a model does more to texts than its tokenizer does, such as rendering a chat template.

    `instead` makes a task of the transformers model.
    """
    given = f"model is a {type(model).__name__} that"
    refuse_prompt(given, getattr(model, "default_prompt_name", None), getattr(model, "prompts", None))
    refuse_options(given, getattr(model[0], "processing_kwargs", None))
    expected = model.tokenizer(*([example] if isinstance(example, str) else example))["input_ids"]
    read = getattr(model, "preprocess", None)
    if read is not None and read([example])["input_ids"][0].tolist() != expected:
        raise Error(
            f"model is a {type(model).__name__} whose tokens are not those of its tokenizer, for example as it "
            "renders texts by a chat template: this is not supported. Explain its transformers model instead, with "
            f"the texts as the tokenizer must read them, as {instead}."
        )


def _refuse_hooks(model: Any, modules: Sequence[nn.Module]) -> None:
    """Raise an `Error` if one of the modules that the task does not call has a hook, which may change the output."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:
            raise Error(
                f"model is a {type(model).__name__} whose {type(module).__name__} has a forward hook, which is not "
                "explained: remove it, or attach it to model.transformers_model."
            )


def _network(model: Any, network: Any) -> Any:
    if not isinstance(network, nn.Module):
        backend = getattr(model, "backend", type(network).__name__)
        raise Error(
            f"model is a {type(model).__name__} with the backend {backend!r}: load it with the backend 'torch'."
        )
    return network
