"""Audio from WAV files and arrays, mixed to one channel and resampled to the sampling rate of a model."""

from __future__ import annotations

import io
import math
import wave
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._util.files import MEBIBYTE, expanded, read_bytes
from ..errors import Error

LARGEST_RECORDING = 512 * MEBIBYTE
HIGHEST_RATE = 768_000
"""The maximum sampling rate, in samples per second."""
LONGEST = 4 * 3600
"""The maximum length of a recording in seconds."""

_FULL = {1: 1 << 7, 2: 1 << 15, 3: 1 << 23, 4: 1 << 31}
"""Bytes per sample -> the full scale of its values."""


@dataclass(frozen=True, eq=False)
class Audio:
    """One channel of audio: samples from -1 to 1, the sampling rate, and a name for messages."""

    samples: np.ndarray
    rate: int
    name: str

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.samples) / self.rate

    def at(self, rate: int) -> Audio:
        """Return the audio resampled to a sampling rate."""
        if rate == self.rate:
            return self
        try:
            from scipy.signal import resample_poly  # type: ignore[import-untyped]
        except ImportError:
            raise Error(
                f"{self.name} has {self.rate} samples a second, the model takes {rate}: install scipy to resample it, "
                f"or give it at {rate}."
            ) from None
        shared = math.gcd(rate, self.rate)
        samples = resample_poly(self.samples, rate // shared, self.rate // shared)
        return replace(self, samples=samples.astype(np.float32), rate=rate)


def is_audio(given: Any) -> bool:
    """Return whether an input is a recording: the path of a file, or (array, sampling rate)."""
    return isinstance(given, (str, Path)) or (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], np.ndarray)
        and not isinstance(given[1], str)
    )


def audio_of(given: Any) -> Audio:
    """Return a recording, given as the path of a file or as (array, sampling rate)."""
    audio = _of_array(*given) if isinstance(given, tuple) else _of_file(expanded(given))
    if not len(audio.samples):
        raise Error(f"{audio.name} is empty: it is 0 s long.")
    if audio.rate > HIGHEST_RATE or audio.seconds > LONGEST:
        raise Error(
            f"{audio.name} has {audio.rate:,} samples a second and is {audio.seconds:,.0f} s long: give at most "
            f"{HIGHEST_RATE:,} a second, and {LONGEST:,} s."
        )
    return audio


def _of_array(samples: np.ndarray, rate: Any) -> Audio:
    what = f"The array of shape {samples.shape}"
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate < 1:
        raise Error(f"{what} comes with rate={rate!r}: give the number of samples a second, as in (array, 16000).")
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise Error(f"{what} and dtype {samples.dtype} is not a recording: give one channel of floats from -1 to 1.")
    if not np.isfinite(samples).all():
        raise Error(f"{what} has nan or inf: give numbers from -1 to 1.")
    return Audio(samples.astype(np.float32), int(rate), "the array")


def _of_file(path: Path) -> Audio:
    whole = read_bytes(path, repr(str(path)), LARGEST_RECORDING)
    try:
        with wave.open(io.BytesIO(whole), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            content = file.readframes(file.getnframes())
    except Exception as error:  # the reader raises many types of exceptions for damaged files
        reason = f"{type(error).__name__}: {error or 'it ends too soon'}"
        raise Error(
            f"{str(path)!r} cannot be read as audio ({reason}): give a WAV file with integer samples (PCM), or an "
            "array and its sampling rate, as in (array, 16000)."
        ) from None
    if width not in _FULL or rate < 1:
        raise Error(f"{str(path)!r} has {8 * width} bits a sample and {rate} a second: give 8, 16, 24 or 32 bits.")
    end = len(content) - len(content) % (width * channels)  # a truncated file may end within a sample
    samples = _numbers(content[:end], width).reshape(-1, channels).mean(1)
    return Audio(samples.astype(np.float32), rate, str(path))


def _numbers(content: bytes, width: int) -> np.ndarray:
    """Return little-endian integers of `width` bytes as numbers from -1 to 1."""
    raw = np.frombuffer(content, np.uint8).reshape(-1, width)
    if width == 1:
        integers = raw[:, 0].astype(np.int64) - _FULL[1]  # only 8-bit samples are unsigned
    else:
        # In the upper bytes of an int32 the sign is right; the division removes the lower bytes.
        four = np.zeros((len(raw), 4), np.uint8)
        four[:, 4 - width :] = raw
        integers = four.view("<i4")[:, 0].astype(np.int64) // (1 << 8 * (4 - width))
    scaled: np.ndarray = integers / _FULL[width]
    return scaled
