"""Sentence encoders: how alike two texts are, and which of their words say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import conserva
from conserva.evaluation.stream import Stream
from conserva.tasks import Similarity
from tiny_heads import closes, is_as_it_was, model, scores_with_pads, state_of, tokenizer

PAIR = ("an unwatchably long film by eastwood.", "it is far too long")


def encoder(kind: str = "bert", **how: str) -> Similarity:
    return Similarity(model(kind, "AutoModel"), tokenizer(), kind, **how)


@pytest.fixture(scope="module")
def task() -> Similarity:
    return encoder()


def vector(task: Similarity, text: str, pooling: str) -> torch.Tensor:
    ids = torch.tensor([task.text.encode(text).ids])
    with torch.no_grad():
        states = task.network(input_ids=ids).last_hidden_state[0]
    return states[0] if pooling == "cls" else states.mean(0)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("score", ["cosine", "dot"])
@pytest.mark.parametrize("kind", ["bert", "distilbert", "deberta-v2"])
def test_books_close_on_the_similarity(kind: str, score: str, pooling: str) -> None:
    task = encoder(kind, pooling=pooling, score=score)
    before = state_of(task.network)
    one = conserva.explain(task, PAIR)
    assert one.method == "exact"
    assert closes(one)
    a, b = (vector(task, text, pooling) for text in PAIR)
    expected = F.cosine_similarity(a, b, dim=0) if score == "cosine" else a @ b
    assert one.output == pytest.approx(float(expected), rel=1e-6)
    assert (one.target, one.probability) == ({"cosine": "cosine similarity", "dot": "dot product"}[score], None)
    assert is_as_it_was(task.network, before)


def test_each_text_gets_half_of_the_product(task: Similarity) -> None:
    last = "network.encoder.layer.1.output.LayerNorm"
    found = conserva.relevance(task.model, task.batch([task.encode(PAIR)]), (0,), rules="exact", at=last)
    halves = [float(found.values[name].sum()) for name in (last, f"{last}#2")]
    assert halves == pytest.approx([float(found.output) / 2] * 2, rel=1e-10)
    doubled = conserva.relevance(task.model, task.batch([task.encode(PAIR)]), (0,), rules="ah+ln", at=last)
    assert float(doubled.values[last].sum()) == pytest.approx(float(found.output), rel=1e-10)


def test_many_equal_single_ones_and_pads_get_nothing(task: Similarity) -> None:
    pairs = [PAIR, ("a joy.", "dull"), ("dull", PAIR[0]), (PAIR[0], PAIR[0])]
    many = conserva.explain(task, pairs)
    for pair, one in zip(pairs, many, strict=True):
        alone = conserva.explain(task, pair)
        assert one.scores == pytest.approx(alone.scores, abs=1e-12)
        assert one.text == " | ".join(pair)
    assert many[3].output == pytest.approx(1, abs=1e-6)
    encoded = [task.encode(pair) for pair in pairs]
    scores = scores_with_pads(task, encoded, (0,))
    for i, one in enumerate(encoded):
        for name, own in zip(task.features, one.parts, strict=True):
            assert scores[name][i, :own].ne(0).all()
            assert scores[name][i, own:].eq(0).all()


def test_the_two_texts_are_sections(task: Similarity) -> None:
    one = conserva.explain(task, PAIR)
    words = one.merged().visible()
    assert words.sections == (("first text", 7), ("second text", 5))
    assert words.features[:7] == ("an", "unwatchably", "long", "film", "by", "eastwood", ".")
    assert words.features[7:] == ("it", "is", "far", "too", "long")
    swapped = conserva.explain(task, PAIR[::-1])
    border = one.sections[0][1]
    assert swapped.scores == pytest.approx(one.scores[border:] + one.scores[:border], abs=1e-12)


@pytest.mark.parametrize("method", ["gi", "ah+ln", "attnlrp", "ig:steps=5", "gae", "random"])
def test_other_methods(task: Similarity, method: str) -> None:
    assert len(conserva.explain(task, PAIR, method=method).scores) == len(task.encode(PAIR))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a joy.", "'a joy.' is not a pair of texts: give"),
        (("a joy.",), "is not a pair of texts"),
        (("a joy.", "dull", "long"), "is not a pair of texts"),
        (("a joy.", " "), "text=' ' is empty"),
        (("", "a joy."), "text='' is empty"),
        (("a joy.", 7), "7 is not a string"),
        (("a joy.", "good " * 600), "602 tokens, the model takes 128"),
    ],
)
def test_bad_pairs_are_refused(task: Similarity, given: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, [given])


def test_what_else_is_refused(task: Similarity) -> None:
    for how, says in (
        ({"pooling": "max"}, "pooling='max' is unknown: choose one of mean, cls"),
        ({"score": "l2"}, "score='l2'"),
    ):
        with pytest.raises(conserva.Error, match=says):
            Similarity(task.network, task.text.tokenizer, **how)
    with pytest.raises(conserva.Error, match="target='positive': the cosine similarity is a single number"):
        conserva.explain(task, PAIR, "positive")
    with pytest.raises(conserva.Error, match=r"has 1 class\(es\)"):
        conserva.evaluate(task, [PAIR], ["exact"])
    with pytest.raises(conserva.Error, match=r"give a list of \(text, text\)"):
        conserva.evaluate(task, PAIR[0], ["exact"])
    with pytest.raises(conserva.Error, match=r"a-last.*one sequence"):
        conserva.explain(task, PAIR, method="a-last")
    with pytest.raises(conserva.Error, match="returns no last_hidden_state"):
        conserva.explain(Similarity(conserva.load().model, tokenizer()), PAIR)
    with pytest.raises(conserva.Error, match=r"not a torch\.nn\.Module"):
        Similarity("model", tokenizer())  # type: ignore[arg-type]
    cut = conserva.explain(task, ("a joy.", "good " * 600), truncate=True)
    assert cut.sections == (("first text", 5), ("second text", 128))


def test_tokens_are_taken_from_the_text_they_belong_to(task: Similarity) -> None:
    # The last two are the same tokens, with another border.
    pairs = [PAIR, ("a joy.", "dull"), ("a [SEP] [CLS] joy", "film"), ("a", "joy [SEP] [CLS] film")]
    encoded = [task.encode(pair) for pair in pairs]
    whole = [np.ones((2, len(one)), dtype=bool) for one in encoded]
    gone = len(encoded[0].first) + 1
    whole[0][1, gone] = False
    parts = [task.masked(one, kept, "unk") for one, kept in zip(encoded, whole, strict=True)]
    found = Stream(task).logits(parts)
    for pair, logits in zip(pairs, found, strict=True):
        assert logits[0, 0] == pytest.approx(conserva.explain(task, pair).output, rel=1e-5)
    words = PAIR[1].split()
    unknown = conserva.explain(task, (PAIR[0], " ".join(["[UNK]", *words[1:]])))
    assert found[0][1, 0] == pytest.approx(unknown.output, rel=1e-5)
    audit = conserva.audit(task, PAIR, rules="exact")
    assert abs(audit.ledger.gap) < 1e-10
