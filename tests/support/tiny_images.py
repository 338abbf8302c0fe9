"""What tests share: tiny images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn

from conserva.models.quiet import quiet_loading
from tiny import shake

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


PATCHES = {"image_size": 32, "patch_size": 8}


WORDS = ["<pad>", "<s>", "</s>", "a", "cat", "dog", "photo", "of", "small"]


EXACT = {"rtol": 1e-10, "atol": 1e-10}


def vit(**changes: object) -> nn.Module:
    names = {0: "cat", 1: "dog", 2: "bird"}
    settings = {**SMALL, **PATCHES, "id2label": names, "label2id": {v: k for k, v in names.items()}, **changes}
    torch.manual_seed(0)
    return shake(transformers.ViTForImageClassification(transformers.ViTConfig(**settings))).double().eval()


def clip_config(kind: Any) -> Any:
    text = {"vocab_size": len(WORDS), "max_position_embeddings": 8, "pad_token_id": 0, "bos_token_id": 1}
    sizes = {**SMALL, "projection_size": 16}
    return kind(text_config={**sizes, **text, "eos_token_id": 2}, vision_config={**sizes, **PATCHES}, projection_dim=12)


def noise(seed: int = 0, high: int = 40, wide: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), dtype=np.uint8)


def words() -> Any:
    found = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    found.pre_tokenizer = Whitespace()
    found.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=found, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def processor() -> Any:
    with quiet_loading():
        size = {"height": 32, "width": 32}
        images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)
        return transformers.CLIPProcessor(image_processor=images, tokenizer=words())
