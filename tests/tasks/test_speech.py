"""Speech: tenths of a second and the text so far, explained by what would be written next."""

from __future__ import annotations

import builtins
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import conserva
from conserva.tasks.audio import Audio, audio_of
from conserva.tasks.seq2seq import Seq2Seq
from conserva.tasks.speech import Speech
from tiny import bert
from tiny_speech import RATE, extractor, speech, tone, written
from writers import byte_level, t5

INPUTS: list[Any] = [
    (tone(), RATE),
    ((tone(0.3, hertz=900), RATE), "the cat sat"),
    ((tone(1.0, hertz=200), RATE), " a dog"),
]


def test_the_books_close() -> None:
    task = speech()
    before = [one.detach().clone() for one in task.network.parameters()]
    for one in conserva.explain(task, INPUTS, method="exact"):
        assert abs(one.ledger.gap) < 1e-10
        assert sum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-10)
        assert one.ledger.positions != 0
        assert one.sections[0] == ("source", 10)
    assert all(torch.equal(a, b) for a, b in zip(before, task.network.parameters(), strict=True))


@pytest.mark.parametrize("method", ["exact", "ah+ln", "random", "ig:steps=3"])
def test_many_equal_single_ones(method: str) -> None:
    for given, one in zip(INPUTS, conserva.explain(speech(), INPUTS, method=method), strict=True):
        alone = conserva.explain(speech(), given, method=method)
        assert (one.features, one.target) == (alone.features, alone.target)
        assert one.scores == pytest.approx(alone.scores, abs=1e-10)


@pytest.mark.parametrize("frames", [10, 7])
def test_windows_are_sums_of_frames(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relevance as the network itself gives its spectrogram; with 7 frames the last window is a short one."""
    monkeypatch.setattr(Speech, "_frames", frames)
    task = speech()
    one = conserva.explain(task, INPUTS[1], 7, method="exact")
    found = extractor()(tone(0.3, hertz=900).astype(np.float32), sampling_rate=RATE, return_tensors="pt")
    ids = torch.tensor([[*task.start, *task.vocabulary.pieces("the cat sat")]])
    inputs = {"input_features": found["input_features"].double(), "decoder_input_ids": ids}
    direct = conserva.relevance(task.network, inputs, (ids.shape[1] - 1, 7), rules="exact")
    assert one.output == pytest.approx(float(direct.output), abs=1e-10)
    each = direct.values["input_features"][0].sum(0)
    windows = [float(part.sum()) for part in each.split(frames)]
    assert list(one.scores[: len(windows)]) == pytest.approx(windows, abs=1e-10)
    assert list(one.scores[len(windows) :]) == pytest.approx(direct.scores("decoder_input_ids")[0].tolist(), abs=1e-10)


def test_features_are_named_by_their_time() -> None:
    encoded = speech().encode(((tone(0.62), RATE), "the cat"))
    assert encoded.tokens[:2] == ("0.0-0.1 s", "0.1-0.2 s")
    assert encoded.tokens[9:] == ("0.9-1.0 s", "<s>", "the", " cat")
    # The seventh window has sound in it, those behind it are silence that the model is given.
    assert encoded.special == (*[False] * 7, *[True] * 4, False, False)
    assert encoded.words == (*range(7), *[None] * 4, 0, 1)
    assert encoded.parts == (10, 3)


def test_the_tokenizers_prefix_begins_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    task = speech()
    monkeypatch.setattr(task.tokenizer, "prefix_tokens", [0, 30, 31], raising=False)
    encoded = task.encode(INPUTS[1])
    assert encoded.answer[:3] == (0, 30, 31)
    assert encoded.special[10:14] == (True, True, True, False)


def test_an_answer_is_explained_token_by_token() -> None:
    task = speech()
    whole = conserva.explain_generation(task, INPUTS[0], tokens=4, method="exact")
    assert whole.steps[0].scores == pytest.approx(conserva.explain(task, INPUTS[0], method="exact").scores, abs=1e-10)
    assert all(abs(step.ledger.gap) < 1e-10 for step in whole.steps)
    assert whole.sections == (("source", 10), ("answer so far", 1 + len(whole.steps)))
    for step in whole.steps:
        assert step.others[0][0] == step.token


def test_sound_that_is_taken_away_is_silent() -> None:
    task = speech()
    encoded = [task.encode(one) for one in INPUTS]
    generator = np.random.default_rng(0)
    kept = [generator.random((3, len(one))) < 0.6 for one in encoded]
    rows = [task.masked(one, keep, "silence") for one, keep in zip(encoded, kept, strict=True)]
    with torch.no_grad():
        together = task.model(**task.stack(rows)).logits
        alone = []
        for one, keep in zip(encoded, kept, strict=True):
            for row in keep:
                own = task.batch([one])
                own["windows"][0, ~torch.from_numpy(row[:10])] = float(one.source.windows.min())
                seen = torch.from_numpy(row[None, 10:].astype(np.int64))
                seen[:, -1] = 1
                alone.append(task.model(**{**own, "decoder_attention_mask": seen}).logits)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-10)
    padding = task.encode(INPUTS[1]).source.windows[-1]
    assert padding == pytest.approx(np.full_like(padding, padding.min()), abs=1e-6)


def test_an_evaluation_runs_on_speech() -> None:
    data = [(one, " cat") for one in INPUTS[1:]]
    found = conserva.evaluate(speech(), data, ["exact", "random"], random_seeds=1)
    assert (found.samples, found.protocol["mask"]) == (2, "silence")
    with pytest.raises(conserva.Error, match="mask='drop'"):
        conserva.evaluate(speech(), data, ["exact"], mask="drop")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_files_are_read_number_by_number(tmp_path: Path, width: int, channels: int) -> None:
    left, right = np.array([0.0, 0.5, -0.5, -1.0, 0.25]), np.array([0.5, 0.0, -0.5, -1.0, -0.25])
    samples = np.stack([left, right], 1).reshape(-1) if channels == 2 else left
    expected = (left + right) / 2 if channels == 2 else left
    found = audio_of(written(tmp_path / "a.wav", samples, width, channels, 8000))
    assert found.rate == 8000
    assert found.samples == pytest.approx(expected, abs=1e-7)


def test_a_file_equals_its_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", tone())
    with wave.open(str(path)) as file:
        numbers = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
    for given in (path, str(path)):
        one = conserva.explain(speech(), given, 7)
        assert one.scores == pytest.approx(conserva.explain(speech(), (numbers, RATE), 7).scores, abs=1e-10)
        assert one.text == str(path)
    assert conserva.explain(speech(), (str(path), "the"), 7).features[-1] == "the"


def test_another_rate_is_resampled() -> None:
    found = Audio(tone(0.5, 8000).astype(np.float32), 8000, "x").at(RATE)
    assert (found.rate, len(found.samples)) == (RATE, 8000)
    # The ends ring: the filter knows nothing of what would lie beyond them.
    assert found.samples[500:-500] == pytest.approx(tone(0.5)[500:-500], abs=5e-3)


def test_another_rate_without_scipy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return true_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(conserva.Error, match="8000 samples a second, the model takes 16000: install scipy"):
        Audio(tone(0.5, 8000), 8000, "x").at(RATE)


REFUSED: list[tuple[Any, str]] = [
    ((np.zeros(0), RATE), "0 s long"),
    ((tone(1.5), RATE), r"1.5 s long, tiny takes 1.0 s"),
    ((tone(), 0), "rate=0"),
    ((tone(), None), "rate=None"),
    ((tone(), "the cat"), "not a recording"),
    ((np.zeros((2, 50)), RATE), r"\(2, 50\)"),
    ((np.zeros(50, np.int16), RATE), "int16"),
    ((np.full(50, np.nan), RATE), "has nan or inf: give numbers"),
    ("missing.wav", "'missing.wav' cannot be read"),
    (7, "7 is neither a single recording"),
    ([7], "7 is not a recording"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_sound_that_cannot_be_explained_is_refused(given: Any, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.explain(speech(), given)


@pytest.mark.parametrize("content", [b"", b"no sound at all", b"RIFF\x04\x00\x00\x00WAVE", bytes(range(256)) * 9])
def test_a_file_that_is_no_audio_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(conserva.Error, match=r"a.wav' cannot be read as audio .*: give a WAV file"):
        conserva.explain(speech(), tmp_path / "a.wav")
    with pytest.raises(conserva.Error, match="0 s long"):
        conserva.explain(speech(), written(tmp_path / "empty.wav", np.zeros(0)))
    with pytest.raises(conserva.Error, match="is a folder: give a file"):
        conserva.explain(speech(), tmp_path)


def test_sound_that_is_too_long_may_be_cut() -> None:
    cut = conserva.explain(speech(), (tone(1.5), RATE), 7, truncate=True)
    assert cut.scores == pytest.approx(conserva.explain(speech(), (tone(1.5)[:RATE], RATE), 7).scores, abs=1e-10)


def test_other_models_are_refused() -> None:
    with pytest.raises(conserva.Error, match="T5ForConditionalGeneration takes input_ids"):
        Speech(t5(), extractor(), byte_level())
    with pytest.raises(conserva.Error, match="WhisperForConditionalGeneration takes input_features"):
        Seq2Seq(speech().network, byte_level())
    with pytest.raises(conserva.Error, match="BertForSequenceClassification is not an encoder-decoder"):
        Speech(bert(), extractor(), byte_level())
    with pytest.raises(conserva.Error, match="feature_extractor=NoneType"):
        Speech(speech().network, None, byte_level())
    with pytest.raises(conserva.Error, match=r"returns 16 x 100 features, .* takes 8 x 100"):
        Speech(speech().network, extractor(feature_size=16), byte_level())
