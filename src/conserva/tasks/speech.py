"""Speech recognition with Whisper, explained at the next token by windows of 0.1 s and by the text so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ..errors import Error
from ..models.pretrained import part_of
from .audio import Audio, audio_of, is_audio
from .masking import TextRows, masked
from .model_kind import ModelKind
from .reading import Answer
from .seq2seq import EncodedPair, NextToken, Seq2Seq
from .task import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Self

WINDOW = 0.1
"""The duration of a feature in seconds."""

MASKS = ("silence",)
"""How removed windows are filled: with the lowest value of the spectrogram. Removed tokens are masked in attention."""

_EXTRACTOR = ("sampling_rate", "hop_length", "n_samples", "nb_max_frames", "feature_size")
"""The required attributes of a feature extractor, which Whisper's has."""


class NextSpokenToken(NextToken):
    """A speech model whose spectrogram is given as windows."""

    def __init__(self, network: nn.Module, bins: int, frames: int) -> None:
        super().__init__(network)
        self.bins, self.frames = bins, frames

    def spectrogram(self, windows: Tensor) -> Tensor:
        """Return spectrograms, samples x bins x frames, from samples x windows x numbers."""
        each = windows.reshape(*windows.shape[:2], self.bins, -1)
        return each.transpose(1, 2).flatten(2)[..., : self.frames]

    def forward(  # type: ignore[override]
        self,
        windows: Tensor,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        read: Tensor | None = None,
        **options: Any,
    ) -> Answer:
        """Return the logits at the decoder position `read` of each sample; without it, at all positions."""
        source = {"input_features": self.spectrogram(windows)}
        return self.next_token(source, decoder_input_ids, decoder_attention_mask, read, options)


@dataclass(frozen=True, eq=False)
class EncodedAudio(Encoded):
    """A recording after preprocessing: its spectrogram, split into windows."""

    windows: np.ndarray
    """Windows x numbers."""

    @property
    def key(self) -> str:
        return self.windows.tobytes().hex()


@dataclass(frozen=True, eq=False)
class SpeechRows:
    """A recording and an answer so far, with different windows and tokens removed in each row."""

    source: EncodedAudio
    kept: np.ndarray
    """Rows x windows."""
    answer: TextRows

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, rows: slice | np.ndarray) -> SpeechRows:
        return SpeechRows(self.source, self.kept[rows], self.answer[rows])

    @property
    def width(self) -> int:
        """The number of features of both."""
        return len(self.source) + self.answer.width

    def keys(self) -> np.ndarray:
        """Return the identity of the recording, the windows that are kept, and the keys of the answer."""
        owner = np.frombuffer(id(self.source).to_bytes(8, "little"), np.uint8)
        return np.concatenate(
            [np.broadcast_to(owner, (len(self), 8)), self.kept.astype(np.uint8), self.answer.keys()], axis=1
        )

    def sound(self) -> np.ndarray:
        """Return rows x windows x numbers, with silence in removed windows."""
        windows = self.source.windows
        filled: np.ndarray = np.where(self.kept[:, :, None], windows, windows.min())
        return filled


class Speech(Seq2Seq):
    """A speech recognition model such as Whisper: a Hugging Face model, its feature extractor and tokenizer.

    An input is the path of a WAV file or (array, sampling rate), or a pair of that and the text so far. What is
    explained is the logit of the next token. Features are windows of 0.1 s, named by their time, then the tokens of the
    text so far; windows after the end of the recording, which are padding, are special. Language and task are set with
    the tokenizer: `tokenizer.set_prefix_tokens(language="english", task="transcribe")`.

    Parameters
    ----------
    model
        A speech recognition model, in evaluation mode.
    feature_extractor
        Its feature extractor.
    tokenizer
        Its tokenizer.
    name
        The name of the model in results.

    Examples
    --------
    >>> task = conserva.Speech(model, feature_extractor, tokenizer)  # doctest: +SKIP
    >>> conserva.explain(task, "recording.wav").show()  # doctest: +SKIP
    """

    kind = ModelKind("speech model", "AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES")

    features = ("windows", "decoder_input_ids")
    noun = "recording"
    takes = "input_features"

    model: NextSpokenToken

    def __init__(
        self,
        model: nn.Module,
        feature_extractor: Any,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
    ) -> None:
        attributes = {name: getattr(feature_extractor, name, None) for name in _EXTRACTOR}
        missing = [name for name, value in attributes.items() if not isinstance(value, int) or value < 1]
        if not callable(feature_extractor) or missing:
            raise Error(
                f"feature_extractor={type(feature_extractor).__name__} is not supported, since it has no "
                f"{', '.join(missing)}: give one like Whisper's."
            )
        self.extractor = feature_extractor
        super().__init__(model, tokenizer, name)
        bins, most = (getattr(model.config, name, None) for name in ("num_mel_bins", "max_source_positions"))
        frames = None if most is None else 2 * most  # Whisper's second convolution halves them
        made = (feature_extractor.feature_size, feature_extractor.nb_max_frames)
        if (bins, frames) != made:
            raise Error(
                f"The feature extractor returns {made[0]} x {made[1]} features, {self.name} takes {bins} x {frames}: "
                "give the one that the model was trained with."
            )

    @classmethod
    def from_files(cls, model: nn.Module, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Self:
        extractor, tokenizer = (part_of(auto, source, options) for auto in ("AutoFeatureExtractor", "AutoTokenizer"))
        return cls(model, extractor, tokenizer, name)

    @classmethod
    def from_objects(cls, model: nn.Module, processor: Any, name: str | None = None, **how: Any) -> Self:
        extractor, tokenizer = (getattr(processor, part, None) for part in ("feature_extractor", "tokenizer"))
        if extractor is None or tokenizer is None:
            raise Error(
                f"tokenizer={type(processor).__name__} has no feature_extractor and tokenizer: give the processor of "
                "the speech model, as from AutoProcessor.from_pretrained."
            )
        return cls(model, extractor, tokenizer, name)

    @property
    def preprocessors(self) -> Mapping[str, Any]:
        return {**super().preprocessors, "feature_extractor": self.extractor}

    def _wrapped(self, model: nn.Module) -> NextSpokenToken:
        return NextSpokenToken(model, self.extractor.feature_size, self.extractor.nb_max_frames)

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens that every answer begins with: the tokenizer's prefix, which sets language and task, if any."""
        prefix = getattr(self.tokenizer, "prefix_tokens", None)
        return tuple(prefix) if prefix else super().start

    @property
    def _frames(self) -> int:
        """The number of frames of the spectrogram in a window."""
        return max(1, round(WINDOW * int(self.extractor.sampling_rate) / int(self.extractor.hop_length)))

    def is_source(self, given: Any) -> bool:
        return is_audio(given)

    def encode_source(self, source: Any, truncate: bool) -> EncodedAudio:
        """Return the windows of a recording's spectrogram; with `truncate` a long recording is truncated."""
        audio = audio_of(source).at(self.extractor.sampling_rate)
        most = self.extractor.n_samples
        if len(audio.samples) > most and not truncate:
            raise Error(
                f"{audio.name} is {audio.seconds:.1f} s long, {self.name} takes {most / audio.rate:.1f} s: shorten it, "
                "or truncate it with truncate=True (--truncate)."
            )
        try:
            output = self.extractor(audio.samples[:most], sampling_rate=audio.rate, return_tensors="np")
            spectrogram = np.asarray(output["input_features"][0])
        except Exception as error:  # an extractor with unsuitable settings can raise anything
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            raise Error(f"{type(self.extractor).__name__} could not process {audio.name}: {reason}.") from None
        return self._windows(audio, spectrogram)

    def _windows(self, audio: Audio, spectrogram: np.ndarray) -> EncodedAudio:
        """Split a spectrogram, bins x frames, into windows; the last one is padded with zeros."""
        bins, frames = spectrogram.shape
        count = -(-frames // self._frames)
        whole = np.pad(spectrogram, ((0, 0), (0, count * self._frames - frames)))
        windows = whole.reshape(bins, count, self._frames).transpose(1, 0, 2).reshape(count, -1)
        seconds = self._frames * self.extractor.hop_length / audio.rate
        names = tuple(f"{i * seconds:.1f}-{(i + 1) * seconds:.1f} s" for i in range(count))
        special = tuple(i * seconds >= audio.seconds for i in range(count))
        words = tuple(None if is_special else i for i, is_special in enumerate(special))
        return EncodedAudio(audio.name, names, special, words, windows)

    def source_texts(self, source: EncodedAudio) -> tuple[str, ...]:
        return source.tokens

    def source_batch(self, sources: Sequence[EncodedAudio]) -> dict[str, np.ndarray]:
        return {"windows": np.stack([source.windows for source in sources])}

    def network_source(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"input_features": self.model.spectrogram(inputs["windows"])}

    def mask(self, given: str | None, preferred: Sequence[str]) -> str:
        if given is not None and given not in MASKS:
            raise Error(f"mask={given!r} is unknown: choose one of {', '.join(MASKS)}.")
        return MASKS[0]

    def masked(self, encoded: EncodedPair, kept: np.ndarray, mask: str) -> SpeechRows:
        border, kept = encoded.parts[0], kept | np.array(encoded.fixed)
        answer = masked(self.tokenizer, np.array(encoded.answer), kept[:, border:], "drop")
        return SpeechRows(encoded.source, kept[:, :border], answer)

    def stack(self, parts: Sequence[SpeechRows]) -> dict[str, Tensor]:
        sound = np.concatenate([part.sound() for part in parts])
        return self._on_device({"windows": sound, **self.stacked_answers(parts)})
