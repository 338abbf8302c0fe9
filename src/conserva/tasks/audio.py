"""Recordings: read from a WAV file or taken from an array, mixed to one channel, at the rate that a model takes."""

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
"""Samples a second: none records more."""
LONGEST = 4 * 3600
"""Seconds of a recording."""

_FULL = {1: 1 << 7, 2: 1 << 15, 3: 1 << 23, 4: 1 << 31}
"""How loud the loudest number is, by the bytes that a number takes."""


@dataclass(frozen=True, eq=False)
class Audio:
    """One channel of sound: numbers from -1 to 1, how many of them make a second, and where they are from."""

    samples: np.ndarray
    rate: int
    name: str

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def at(self, rate: int) -> Audio:
        """Return the same sound with another number of samples a second."""
        if rate == self.rate:
            return self
        try:
            from scipy.signal import resample_poly  # type: ignore[import-untyped]
        except ImportError:
            raise Error(
                f"{self.name} has {self.rate} samples a second, the model takes {rate}: install scipy, or give it at "
                f"{rate}."
            ) from None
        shared = math.gcd(rate, self.rate)
        samples = resample_poly(self.samples, rate // shared, self.rate // shared)
        return replace(self, samples=samples.astype(np.float32), rate=rate)


def is_audio(given: Any) -> bool:
    """Return whether something stands for a recording: a file's path, or an array and its rate."""
    return isinstance(given, (str, Path)) or (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], np.ndarray)
        and not isinstance(given[1], str)
    )


def audio_of(given: Any) -> Audio:
    """Return a recording, from a file's path or from an array and its rate."""
    found = _of_array(*given) if isinstance(given, tuple) else _of_file(expanded(given))
    if not len(found.samples):
        raise Error(f"{found.name} holds no sound: it is 0 s long.")
    if found.rate > HIGHEST_RATE or found.seconds > LONGEST:
        raise Error(
            f"{found.name} has {found.rate:,} samples a second and is {found.seconds:,.0f} s long: give at most "
            f"{HIGHEST_RATE:,} a second, and {LONGEST:,} s."
        )
    return found


def _of_array(samples: np.ndarray, rate: Any) -> Audio:
    what = f"The array of shape {samples.shape}"
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate < 1:
        raise Error(f"{what} comes with rate={rate!r}: give how many samples make a second, as in (array, 16000).")
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise Error(
            f"{what} and type {samples.dtype} is not a recording: give one channel of numbers from -1 to 1, as floats."
        )
    if not np.isfinite(samples).all():
        raise Error(f"{what} has nan or inf: give numbers from -1 to 1.")
    return Audio(samples.astype(np.float32), int(rate), "the array")


def _of_file(path: Path) -> Audio:
    whole = read_bytes(path, repr(str(path)), LARGEST_RECORDING)
    try:
        with wave.open(io.BytesIO(whole), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            content = file.readframes(file.getnframes())
    except Exception as error:  # of a file that is not audio, each reader raises errors of its own
        reason = f"{type(error).__name__}: {error or 'it ends too soon'}"
        raise Error(
            f"{str(path)!r} is not audio that can be read ({reason}): give a WAV file of whole numbers (PCM), or an "
            "array and its rate, as in (array, 16000)."
        ) from None
    if width not in _FULL or rate < 1:
        raise Error(f"{str(path)!r} has {8 * width} bits a number and {rate} a second: give 8, 16, 24 or 32 bits.")
    end = len(content) - len(content) % (width * channels)  # a file that was cut may end within a number
    samples = _numbers(content[:end], width).reshape(-1, channels).mean(1)
    return Audio(samples.astype(np.float32), rate, str(path))


def _numbers(content: bytes, width: int) -> np.ndarray:
    """Return whole numbers of some bytes each, the lowest first, as numbers from -1 to 1."""
    raw = np.frombuffer(content, np.uint8).reshape(-1, width)
    if width == 1:
        found = raw[:, 0].astype(np.int64) - _FULL[1]  # the only ones without a sign
    else:
        # The highest bytes of four keep the sign; a division takes the empty ones below them off again.
        four = np.zeros((len(raw), 4), np.uint8)
        four[:, 4 - width :] = raw
        found = four.view("<i4")[:, 0].astype(np.int64) // (1 << 8 * (4 - width))
    scaled: np.ndarray = found / _FULL[width]
    return scaled
