"""Tiny encoder-decoders that write texts, with tokenizers of the two common kinds."""

from __future__ import annotations

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from conserva.tasks import Seq2Seq
from tiny import shake

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat", "and", "slept", "under", "tree"]


@cache
def pieces() -> PreTrainedTokenizerFast:
    """Return a tokenizer as SentencePiece makes them: a space before every word, </s> at the end."""
    words = [(f"\u2581{word}", -1.0) for word in WORDS]
    letters = [(letter, -9.0) for letter in "abcdefghijklmnopqrstuvwxyz.-"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    made = Tokenizer(models.Unigram([*special, *words, ("\u2581", -3.0), *letters], unk_id=2))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=30, **names)


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Return a tokenizer as BART has it: bytes, <s> and </s> around a text."""
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(names.values()), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([" ".join(WORDS)] * 3 + ["the cat", "a dog"] * 5, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def t5() -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=len(pieces()) + 5, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config)


def umt5() -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return UMT5ForConditionalGeneration(UMT5Config(vocab_size=len(pieces()), decoder_start_token_id=0, **sizes))


def _bart_sizes() -> dict[str, int]:
    halves = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in _EACH.items()}
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return {"vocab_size": len(byte_level()), "d_model": 32, "max_position_embeddings": 24, **halves, **tokens}


_EACH = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}


def bart() -> nn.Module:
    """Return a BART that, as most do, is told to begin with <s>, to end with </s>, and to search with beams."""
    model = BartForConditionalGeneration(BartConfig(**_bart_sizes()))
    settings = model.generation_config
    settings.forced_bos_token_id, settings.forced_eos_token_id = 0, 2
    settings.num_beams, settings.min_length, settings.no_repeat_ngram_size, settings.early_stopping = 4, 5, 2, True
    return model


def mbart() -> nn.Module:
    return MBartForConditionalGeneration(MBartConfig(**_bart_sizes()))


KINDS = {"t5": (t5, pieces), "umt5": (umt5, pieces), "bart": (bart, byte_level), "mbart": (mbart, byte_level)}


@cache
def writer(kind: str) -> Seq2Seq:
    """Return the task of a tiny model with weights at random, in float64."""
    make, tokenizer = KINDS[kind]
    torch.manual_seed(0)
    return Seq2Seq(shake(make().double()), tokenizer(), name=kind)
