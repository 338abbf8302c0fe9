"""The text classifier of Ali et al. (2022): blocks of attention and nothing else, on frozen word vectors.

It is a Hugging Face model, so that it is saved, loaded and explained like any other.
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
    """The shape of the model. What the paper's released code does otherwise than its text is an option."""

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
    """Whether scores are divided by the root of a head's width, as in equation 5; the released code does not."""
    affine_norm: bool = True
    """Whether norms have a weight and a bias; in the released code they have none."""
    unbiased_norm: bool = False
    """Whether norms divide by the deviation with N - 1, the epsilon added to it, as in the released code."""

    @staticmethod
    def quirks() -> dict[str, bool]:
        """Return the options that make the model that of the paper's released code."""
        return {"scaled_scores": False, "affine_norm": False, "unbiased_norm": True}


class AttentionOnly(PreTrainedModel):
    """Frozen embeddings, attention-only blocks, the class token through a tanh pooler, one linear layer."""

    config_class = AttentionOnlyConfig
    config: AttentionOnlyConfig

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__(config)
        if config.hidden_size % config.num_attention_heads:
            raise Error(
                f"hidden_size={config.hidden_size} is not a multiple of "
                f"num_attention_heads={config.num_attention_heads}: heads share the width evenly."
            )
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Leave every layer as PyTorch makes it, which is what the paper's code does."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of word vectors."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **ignored: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits; the first of the hidden states is the paper's input, words with their places."""
        if inputs_embeds is None:
            if input_ids is None:
                raise Error("Neither input_ids nor inputs_embeds was given: there is nothing to classify.")
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        x = self.embeddings(inputs_embeds)
        states = [x]
        seen = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, seen)
            states.append(x)
        logits = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return SequenceClassifierOutput(logits=logits, hidden_states=tuple(states) if output_hidden_states else None)


class Embeddings(nn.Module):
    """BERT's: words, places and the one segment added up, then a norm. They are not trained."""

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        added = self.position_embeddings(places) + self.token_type_embeddings(torch.zeros_like(places))
        return F.dropout(self.LayerNorm(words + added), self.dropout, self.training)


class Block(nn.Module):
    """Attention, the skip connection, then a norm (post-LN)."""

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

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, scale=self.scale)
        update = self.output(context.transpose(1, 2).flatten(2))
        out: Tensor = self.norm(x + F.dropout(update, self.dropout, self.training))
        return out


class UnbiasedNorm(nn.Module):
    """The released code's norm: the deviation has N - 1 below it, and the epsilon is added outside the root."""

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
"""What the model has in common with the BERT whose embeddings it takes."""


def with_embeddings(source: str, labels: Sequence[str], **options: Any) -> AttentionOnly:
    """Return an untrained classifier on the embeddings of a BERT: a folder, or a name on the hub."""
    donor, missing = model_of("AutoModel", source, UNTRUSTED, config_of(source, UNTRUSTED))
    if missing := [one for one in missing if "embeddings." in one]:
        raise Error(
            f"embeddings={source!r}: its file has no weights for {', '.join(missing[:3])}. Choose another BERT."
        )
    shape = {name: getattr(donor.config, name) for name in SHARED if hasattr(donor.config, name)}
    names = dict(enumerate(labels))
    model = AttentionOnly(
        AttentionOnlyConfig(
            **{**shape, "id2label": names, "label2id": {name: index for index, name in names.items()}, **options}
        )
    )
    model.eval()  # type: ignore[no-untyped-call]
    given = getattr(donor, "embeddings", None)
    if not isinstance(given, nn.Module) or not _take_over(model.embeddings, given):
        raise Error(
            f"embeddings={source!r} is a {type(donor).__name__}, whose embeddings are not BERT's: take "
            "'bert-base-uncased', 'sentence-transformers/all-MiniLM-L6-v2' or another BERT."
        )
    model.embeddings.requires_grad_(False)
    return model


@torch.no_grad()
def _take_over(ours: Embeddings, given: nn.Module) -> bool:
    """Copy a donor's embeddings, and say whether they compute what the donor's do: RoBERTa's count places from 2."""
    mine, theirs = dict(ours.named_parameters()), dict(given.named_parameters())
    if {name: p.shape for name, p in mine.items()} != {name: p.shape for name, p in theirs.items()}:
        return False
    for name, parameter in mine.items():
        parameter.copy_(theirs[name])
    ids = torch.arange(min(ours.word_embeddings.num_embeddings, ours.position_embeddings.num_embeddings, 8))[None]
    return torch.allclose(ours(ours.word_embeddings(ids)), given(input_ids=ids), atol=1e-5, equal_nan=True)


AutoConfig.register(AttentionOnlyConfig.model_type, AttentionOnlyConfig)
AutoModelForSequenceClassification.register(AttentionOnlyConfig, AttentionOnly)
