"""Masked words: what a model puts in a blank, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import conserva
from conserva.evaluation.protocol import PROTOCOLS
from conserva.evaluation.samples import Sample
from conserva.tasks import Blanks
from tiny_heads import closes, is_as_it_was, model, scores_with_pads, state_of, tokenizer

TEXT = "has a lot of the [MASK] of eastwood at his best."


def filler(kind: str = "bert") -> Blanks:
    return Blanks(model(kind, "AutoModelForMaskedLM"), tokenizer(), kind)


@pytest.fixture(scope="module")
def task() -> Blanks:
    return filler()


@pytest.mark.parametrize("kind", ["bert", "electra", "roberta", "distilbert"])
def test_books_close_and_the_blank_is_read(kind: str) -> None:
    task = filler(kind)
    before = state_of(task.network)
    one = conserva.explain(task, TEXT, "film", method="exact")
    assert closes(one)
    encoded = task.encode(TEXT)
    assert encoded.tokens[encoded.read] == "[MASK]"
    with torch.no_grad():
        logits = task.network(input_ids=torch.tensor([encoded.ids])).logits[0, encoded.read]
    token = task.tokenizer.convert_tokens_to_ids("film")
    assert one.output == pytest.approx(float(logits[token]), rel=1e-6)
    assert one.probability == pytest.approx(float(logits.softmax(-1)[token]), rel=1e-4)
    assert is_as_it_was(task.network, before)


def test_many_equal_single_ones_and_pads_get_nothing(task: Blanks) -> None:
    texts, targets = [TEXT, "a [MASK].", "[MASK] of anything at all"], ["film", None, "film - joy"]
    many = conserva.explain(task, texts, targets, method="exact")
    for text, target, one in zip(texts, targets, many, strict=True):
        alone = conserva.explain(task, text, target, method="exact")
        assert one.scores == pytest.approx(alone.scores, abs=1e-12)
        assert (one.text, one.target) == (text, alone.target)
    encoded = [task.encode(text) for text in texts]
    scores = scores_with_pads(task, encoded)["input_ids"]
    for row, one in zip(scores, encoded, strict=True):
        assert row[: len(one)].ne(0).all()
        assert row[len(one) :].eq(0).all()


def test_targets(task: Blanks) -> None:
    film, joy = (conserva.explain(task, TEXT, word, method="exact") for word in ("film", "joy"))
    assert film.target == "film"
    token = task.tokenizer.convert_tokens_to_ids("film")
    by_number = conserva.explain(task, TEXT, token, method="exact")
    assert (by_number.target, by_number.output) == ("film", film.output)
    contrast = conserva.explain(task, TEXT, "film - joy", method="exact")
    assert contrast.output == pytest.approx(film.output - joy.output)
    assert (contrast.target, contrast.probability) == ("film - joy", None)
    best = conserva.explain(task, TEXT, method="exact")
    assert best.output > max(film.output, joy.output)
    assert task.resolve_target(best.target, None) == task.tokenizer.convert_tokens_to_ids(best.target)


def test_a_word_after_a_space_is_meant_where_tokens_tell() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AddedToken, PreTrainedTokenizerFast

    bytes_of = Tokenizer(models.BPE())
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>"], initial_alphabet=alphabet)
    bytes_of.train_from_iterator(["joy joy of joy", "joy"] * 5, trainer)
    mask = AddedToken("<mask>", lstrip=True, special=True)
    byte_level = PreTrainedTokenizerFast(tokenizer_object=bytes_of, pad_token="<pad>", mask_token=mask)
    task = Blanks(model("bert", "AutoModelForMaskedLM"), byte_level)
    assert byte_level.convert_ids_to_tokens(task.resolve_target("joy", None)) == "Ġjoy"
    one = conserva.explain(task, "of <mask>", "joy", method="exact")
    assert (one.features[-1], one.target) == ("<mask>", "joy")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "text='' is empty"),
        ("a joy.", r"text='a joy\.' has no \[MASK\]: write \[MASK\], where the word is missing"),
        ("a ___.", r"has no \[MASK\]"),
        ("[MASK] and [MASK]", r"has 2 times \[MASK\]: write it once"),
        ("[MASK]", "nothing to explain"),
        (7, "7 is not a string"),
        ("good " * 600 + "[MASK]", "603 tokens, the model takes 128"),
    ],
)
def test_bad_texts_are_refused(task: Blanks, text: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, [text])


def test_a_blank_that_was_cut_off_is_refused(task: Blanks) -> None:
    with pytest.raises(conserva.Error, match=r"'good good .* was truncated before its \[MASK\]"):
        conserva.explain(task, "good " * 300 + "[MASK]", truncate=True)
    assert len(conserva.explain(task, "[MASK]" + " good" * 300, "film", truncate=True).features) == 128


@pytest.mark.parametrize("target", ["unwatchably", "", "no such words", "film - unwatchably", 12000])
def test_bad_targets_are_refused(task: Blanks, target: Any) -> None:
    says = "'unwatchably' is not a single token of bert, its pieces are 'un'" if "unwatch" in str(target) else "target="
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, TEXT, target)


def test_a_model_without_masks_is_refused() -> None:
    unmasked = tokenizer()
    unmasked.mask_token = None
    with pytest.raises(conserva.Error, match="has no mask token"):
        Blanks(model("bert", "AutoModelForMaskedLM"), unmasked)
    with pytest.raises(conserva.Error, match="returns no logits at every token"):
        conserva.explain(Blanks(conserva.load().model, tokenizer()), TEXT, "film")


def test_the_blank_stays_and_words_are_labels(task: Blanks) -> None:
    encoded = task.encode(TEXT)
    for protocol in PROTOCOLS.values():
        kept = ~Sample(0, encoded, None).maskable(protocol)
        assert kept[encoded.read]
        assert kept.sum() == (1 if protocol.special else 3)
    rows = task.masked(encoded, np.array([[i == encoded.read for i in range(len(encoded))]]), "drop")
    assert rows.attention.sum() == 1
    film = task.tokenizer.convert_tokens_to_ids("film")
    assert task.labelled([(TEXT, "film"), ("a [MASK].", 7)]).labels == (film, 7)
    found = conserva.evaluate(task, [(TEXT, "film")], ["exact"], protocol="paper", mask="unk", reference=False)
    assert (found.samples, found.accuracy) == (1, 0.0)
