"""What tests share: tiny speech."""

from __future__ import annotations

import struct
import wave
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from conserva.tasks.speech import Speech
from tiny import shake
from writers import byte_level

RATE = 16000


def tone(seconds: float = 0.62, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    times = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * times) * (1 + times)).clip(-1, 1)


def extractor(**changes: int) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(**{"feature_size": 8, "chunk_length": 1, **changes})


@cache
def speech() -> Speech:
    """Return a Whisper that hears one second, in float64; its second is 100 frames, of which ten make a window."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    lengths = {"num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 20}
    torch.manual_seed(0)
    config = WhisperConfig(vocab_size=len(byte_level()), **sizes, **heads, **tokens, **lengths)
    return Speech(shake(WhisperForConditionalGeneration(config).double()), extractor(), byte_level(), name="tiny")


def written(path: Path, samples: np.ndarray, width: int = 2, channels: int = 1, rate: int = RATE) -> Path:
    """Write a WAV file number by number."""
    full = 2 ** (8 * width - 1)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = [min(full - 1, round(float(x) * full)) for x in samples]
        content = b"".join(
            struct.pack("B", x + 128) if width == 1 else x.to_bytes(width, "little", signed=True) for x in whole
        )
        file.writeframes(content)
    return path
