"""Tiny language models, and tokenizers small enough to read."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from conserva.tasks import Causal
from tiny import shake

CORPUS = [
    "The capital of France is Paris. The capital of Italy is Rome. The capital of England is London.",
    "user assistant system said: name the capital of France, and the capital of Italy, and the capital of England.",
    "Paris is in France, Rome is in Italy, London is in England. Paris, London, Rome: capitals - all of them.",
] * 3

BEGIN, END = "<begin>", "<end>"

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_tokenizer(begins: bool = True, **settings: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer like GPT-2's: bytes, spaces inside of tokens; a mark of the beginning, and no pad token."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator(CORPUS, trainer)
    if begins:
        found.post_processor = processors.TemplateProcessing(f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=found, bos_token=BEGIN, eos_token=END, **settings)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, with a token for unknown ones."""
    words = sorted({word.strip(".,:") for line in CORPUS for word in line.split()} - {"", "-"})
    found = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="[UNK]")


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama 2's: a space is a letter, put before every text and taken off again."""
    pieces, merges = ["<unk>", "<0xC3>", "<0xA9>", *"▁abcdefghijklmnopqrstuvwxyzLPRT.,"], []
    for word in ("Paris", "London", "▁Paris", "▁London"):
        parts = ["▁", word[1:]] if word[0] == "▁" else list(word)
        for end in range(1, len(parts)):
            merges.append(("".join(parts[:end]), parts[end]))
            pieces.append("".join(parts[: end + 1]))
    ids = {piece: i for i, piece in enumerate(pieces)}
    found = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="<unk>")


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def language_model(kind: str = "llama", size: int = 420, **changes: Any) -> Any:
    """Return a tiny language model in float64."""
    shared = {"vocab_size": size, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1, **changes}
    torch.manual_seed(0)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2, **shared))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, **shared))
    else:
        own = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 5.0}
        kinds = ["sliding_attention", "full_attention"]
        model = Gemma3ForCausalLM(Gemma3TextConfig(**_SIZES, **own, layer_types=kinds, **shared))
    return shake(model.double())


KINDS = ("llama", "gpt2", "gemma3")


def causal(kind: str = "llama", **settings: Any) -> Causal:
    """Return a tiny language model as a task, with a tokenizer of bytes."""
    return Causal(language_model(kind), byte_tokenizer(**settings), name=f"tiny {kind}")
