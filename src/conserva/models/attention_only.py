"""The text classifier of Ali et al. (2022): attention blocks without feed-forward layers, on frozen BERT embeddings.

It is a Hugging Face `PreTrainedModel`, so it is saved, loaded and explained like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from ..errors import Error
from .pretrained import UNTRUSTED, config_of, model_of


class AttentionOnlyConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The configuration of the model. Differences between the paper's text and its released code are options."""

    model_type = "conserva-attention-only"

    vocab_size: int = 30522
    hidden_size: int = 384
    num_hidden_layers: int = 3
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: int | None = 0
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    scaled_scores: bool = True
    """Whether attention scores are divided by sqrt(head dimension), as in equation 5; in the released code they are
    not."""
    affine_norm: bool = True
    """Whether layer norms have a weight and a bias; in the released code they do not."""
    unbiased_norm: bool = False
    """Whether layer norms use the unbiased standard deviation plus epsilon, as in the released code."""

    @staticmethod
    def quirks() -> dict[str, bool]:
        """Return the options that reproduce the model of the paper's released code."""
        return {"scaled_scores": False, "affine_norm": False, "unbiased_norm": True}


class AttentionOnly(PreTrainedModel):
    """Frozen embeddings, attention-only blocks, a tanh pooler on the class token, and a linear classifier."""

    config_class = AttentionOnlyConfig
    config: AttentionOnlyConfig

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__(config)
        if config.hidden_size % config.num_attention_heads:
            raise Error(
                f"hidden_size={config.hidden_size} is not a multiple of "
                f"num_attention_heads={config.num_attention_heads}: choose a multiple."
            )
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Keep PyTorch's default initialisation, as the paper's code does."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embedding layer."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **ignored: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits; the first hidden state is the sum of word, position and segment embeddings."""
        if inputs_embeds is None:
            if input_ids is None:
                raise Error("input_ids and inputs_embeds are both None: give one of them.")
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        x = self.embeddings(inputs_embeds)
        states = [x]
        visible = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, visible)
            states.append(x)
        logits = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return SequenceClassifierOutput(logits=logits, hidden_states=tuple(states) if output_hidden_states else None)


class Embeddings(nn.Module):
    """BERT's embeddings: the sum of word, position and segment embeddings, then a layer norm. They are not trained."""

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, words: Tensor) -> Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        added = self.position_embeddings(positions) + self.token_type_embeddings(torch.zeros_like(positions))
        return F.dropout(self.LayerNorm(words + added), self.dropout, self.training)


class Block(nn.Module):
    """Attention with a residual connection, followed by a layer norm (post-LN)."""

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.scale = None if config.scaled_scores else 1.0
        self.dropout = config.hidden_dropout_prob
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        if config.unbiased_norm:
            self.norm: nn.Module = UnbiasedNorm(width, config.layer_norm_eps, config.affine_norm)
        else:
            self.norm = nn.LayerNorm(width, config.layer_norm_eps, elementwise_affine=config.affine_norm)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout, scale=self.scale)
        update = self.output(context.transpose(1, 2).flatten(2))
        out: Tensor = self.norm(x + F.dropout(update, self.dropout, self.training))
        return out


class UnbiasedNorm(nn.Module):
    """The layer norm of the released code: unbiased standard deviation, with epsilon added to it."""

    def __init__(self, width: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return y if self.weight is None or self.bias is None else y * self.weight + self.bias


SHARED = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
    "layer_norm_eps",
)
"""Configuration entries copied from the BERT model that provides the embeddings."""


def with_embeddings(source: str, labels: Sequence[str], **options: Any) -> AttentionOnly:
    """Return an untrained classifier with the embeddings of a BERT model, given as a folder or a name on the hub."""
    donor, missing = model_of("AutoModel", source, UNTRUSTED, config_of(source, UNTRUSTED))
    if missing := [name for name in missing if "embeddings." in name]:
        raise Error(
            f"embeddings={source!r}: its file has no weights for {', '.join(missing[:3])}. Choose another BERT model."
        )
    shape = {name: getattr(donor.config, name) for name in SHARED if hasattr(donor.config, name)}
    names = dict(enumerate(labels))
    model = AttentionOnly(
        AttentionOnlyConfig(
            **{**shape, "id2label": names, "label2id": {name: index for index, name in names.items()}, **options}
        )
    )
    model.eval()  # type: ignore[no-untyped-call]
    embeddings = getattr(donor, "embeddings", None)
    if not isinstance(embeddings, nn.Module) or not _copy_embeddings(model.embeddings, embeddings):
        raise Error(
            f"embeddings={source!r} is a {type(donor).__name__}, whose embeddings differ from BERT's: choose "
            "'bert-base-uncased', 'sentence-transformers/all-MiniLM-L6-v2' or another BERT model."
        )
    model.embeddings.requires_grad_(False)
    return model


@torch.no_grad()
def _copy_embeddings(ours: Embeddings, source: nn.Module) -> bool:
    """Copy the weights; return whether both modules compute the same: RoBERTa, for one, counts positions from 2."""
    mine, theirs = dict(ours.named_parameters()), dict(source.named_parameters())
    if {name: p.shape for name, p in mine.items()} != {name: p.shape for name, p in theirs.items()}:
        return False
    for name, parameter in mine.items():
        parameter.copy_(theirs[name])
    ids = torch.arange(min(ours.word_embeddings.num_embeddings, ours.position_embeddings.num_embeddings, 8))[None]
    return torch.allclose(ours(ours.word_embeddings(ids)), source(input_ids=ids), atol=1e-5, equal_nan=True)


AutoConfig.register(AttentionOnlyConfig.model_type, AttentionOnlyConfig)
AutoModelForSequenceClassification.register(AttentionOnlyConfig, AttentionOnly)
