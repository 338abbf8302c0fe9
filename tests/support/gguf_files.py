"""Tiny language models in GGUF files, with weights in several types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Types
from gguf.quants import quantize

WIDTH, INNER, LAYERS = 64, 96, 2

_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
ALPHABET = [*map(chr, _BYTES), *(chr(256 + i) for i in range(256 - len(_BYTES)))]
"""The characters with which byte-level tokenizers write bytes."""

MERGES = ["a b", "ab c", "Ġ a", "h e", "l l", "he ll", "hell o"]


def written(
    path: Path, weights: Types = Types.Q4_1, *, pieces: bool = False, left_out: str = "", **changes: Any
) -> Path:
    """Write a Llama as a GGUF file, with byte-level tokens, or with `pieces` as of SentencePiece."""
    file = gguf.GGUFWriter(path, "llama")
    tokens = ["<unk>", "<s>", "</s>"]
    if pieces:
        tokens += [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
        file.add_tokenizer_model("llama")
        file.add_token_scores([-float(i) for i in range(len(tokens))])
        file.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)])
    else:
        tokens += [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre("smollm")
        file.add_token_merges(MERGES)
        file.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
        file.add_chat_template("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    file.add_token_list(tokens)
    numbers = {
        "block_count": LAYERS, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": INNER,
        "head_count": 4, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 1e4,
        "rope_dimension_count": WIDTH // 4, "vocab_size": len(tokens), "bos_token_id": 1, "eos_token_id": 2,
        "unk_token_id": 0,
    }  # fmt: skip
    for name, value in {**numbers, **changes}.items():
        getattr(file, f"add_{name}")(value)
    drawn = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        numbers = drawn.normal(size=shape).astype(np.float32) * (0.3 if len(shape) > 1 else 1)
        if name == left_out:
            return
        if len(shape) == 1 or weights == Types.F32:
            file.add_tensor(name, numbers)
        else:
            file.add_tensor(name, quantize(numbers, weights), raw_dtype=weights)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name, wide in {"q": WIDTH, "k": WIDTH // 2, "v": WIDTH // 2, "output": WIDTH}.items():
            add(f"blk.{layer}.attn_{name}.weight", wide, WIDTH)
        add(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
        add(f"blk.{layer}.attn_norm.weight", WIDTH)
        add(f"blk.{layer}.ffn_norm.weight", WIDTH)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
