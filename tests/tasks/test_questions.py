"""Question answering: which words of a context are the answer, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import conserva
from conserva.evaluation.stream import Stream
from conserva.tasks import Question
from conserva.tasks.questions import MOST_TOKENS
from tiny_heads import closes, is_as_it_was, model, scores_with_pads, state_of, tokenizer

PAIR = ("who is at his best?", "this film has a lot of the virtues of clint eastwood, who is unwatchably long.")
LONG = ("what is it?", "a film and " * 20)


def answering(kind: str = "bert", part: str = "span") -> Question:
    return Question(model(kind, "AutoModelForQuestionAnswering"), tokenizer(), kind, part=part)


@pytest.fixture(scope="module")
def task() -> Question:
    return answering()


def ends(task: Question, pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the network's own scores of starts and ends, and the places of the context."""
    found = task.tokenizer(*pair, return_tensors="pt", return_token_type_ids=task.tells_types)
    with torch.no_grad():
        output = task.network(**found)
    places = [i for i, number in enumerate(found.encodings[0].sequence_ids) if number == 1]
    return output.start_logits[0].numpy(), output.end_logits[0].numpy(), places


def all_spans(task: Question, pair: tuple[str, str]) -> dict[tuple[int, int], float]:
    """Return the score of every answer that a context holds, found with loops."""
    start, end, places = ends(task, pair)
    return {(i, j): start[i] + end[j] for i in places for j in places if i <= j < i + MOST_TOKENS}


@pytest.mark.parametrize("kind", ["bert", "electra", "distilbert", "deberta-v2"])
def test_books_close_on_an_answer(kind: str) -> None:
    task = answering(kind)
    before = state_of(task.network)
    one = conserva.explain(task, PAIR, "clint eastwood", method="exact")
    assert closes(one)
    span = (one.features.index("clint"), one.features.index("eastwood"))
    assert one.output == pytest.approx(all_spans(task, PAIR)[span], rel=1e-6)
    assert is_as_it_was(task.network, before)


@pytest.mark.parametrize("pair", [PAIR, LONG], ids=["short", "long"])
def test_the_answer_is_the_best_span_of_the_context(task: Question, pair: tuple[str, str]) -> None:
    one = conserva.explain(task, pair, method="exact")
    scores = all_spans(task, pair)
    first, last = max(scores, key=scores.__getitem__)
    assert one.output == pytest.approx(scores[first, last], rel=1e-6)
    share = np.exp(scores[first, last]) / np.exp(list(scores.values())).sum()
    assert one.probability == pytest.approx(share, rel=1e-4)
    spans = task.encode(pair).spans
    assert one.target == pair[1][spans[first][0] : spans[last][1]]
    assert conserva.explain(task, pair, method="exact").target in pair[1]


@pytest.mark.parametrize("part", ["start", "end"])
def test_the_start_and_the_end_alone(task: Question, part: str) -> None:
    alone = Question(task.network, task.tokenizer, part=part)
    start, end, places = ends(task, PAIR)
    scores = start if part == "start" else end
    best = max(places, key=scores.__getitem__)
    one = conserva.explain(alone, PAIR, method="exact")
    assert closes(one)
    assert one.output == pytest.approx(scores[best], rel=1e-6)
    assert one.probability == pytest.approx(np.exp(scores[best]) / np.exp(scores[places]).sum(), rel=1e-4)
    named = conserva.explain(alone, PAIR, "clint eastwood", method="exact")
    place = named.features.index("clint" if part == "start" else "eastwood")
    assert named.output == pytest.approx(scores[place], rel=1e-6)


def test_an_answer_is_its_start_and_its_end(task: Question) -> None:
    parts = [Question(task.network, task.tokenizer, part=part) for part in ("start", "end")]
    start, end = (conserva.explain(one, PAIR, "clint eastwood", method="exact") for one in parts)
    whole = conserva.explain(task, PAIR, "clint eastwood", method="exact")
    assert whole.output == pytest.approx(start.output + end.output)
    assert whole.scores == pytest.approx(np.add(start.scores, end.scores), abs=1e-12)
    contrast = conserva.explain(task, PAIR, "clint eastwood - this film", method="exact")
    other = conserva.explain(task, PAIR, "this film", method="exact")
    assert contrast.output == pytest.approx(whole.output - other.output)
    assert (contrast.target, contrast.probability) == ("clint eastwood - this film", None)
    assert whole.target == "clint eastwood"
    dashed = (PAIR[0], "a joy - a film")
    assert conserva.explain(task, dashed, "joy - a", method="exact").probability is not None  # the words stand there


def test_many_equal_single_ones_and_pads_get_nothing(task: Question) -> None:
    pairs, targets = [PAIR, ("who?", "a joy."), LONG], ["unwatchably", None, "film - and"]
    many = conserva.explain(task, pairs, targets, method="exact")
    for pair, target, one in zip(pairs, targets, many, strict=True):
        alone = conserva.explain(task, pair, target, method="exact")
        assert one.scores == pytest.approx(alone.scores, abs=1e-12)
        assert (one.text, one.target) == (" | ".join(pair), alone.target)
        assert one.probability == pytest.approx(alone.probability)
    encoded = [task.encode(pair) for pair in pairs]
    scores = scores_with_pads(task, encoded)["input_ids"]
    for row, one in zip(scores, encoded, strict=True):
        assert row[: len(one)].ne(0).all()
        assert row[len(one) :].eq(0).all()


def test_question_and_context_are_sections(task: Question) -> None:
    one = conserva.explain(task, PAIR)
    words = one.merged().visible()
    assert words.sections == (("question", 6), ("context", 17))
    assert "unwatchably" in words.features
    assert task.encode(PAIR).token_types == (0,) * 8 + (1,) * (len(one.features) - 8)
    assert not answering("distilbert").tells_types


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a joy.", "'a joy.' is not a pair of texts: give"),
        (("who?", "a joy.", "x"), "is not a pair of texts"),
        (("who?", 7), "is not a pair of texts"),
        (("", "a joy."), "question='' is empty"),
        (("who \ud83d?", "a joy."), "half a character"),
        (("who?", "  "), "context='  ' is empty"),
        (("who?", "\u200b"), "has no tokens in the tokenizer's vocabulary"),
        (("who?", "good " * 600), "has 605 tokens, the model takes 128"),
    ],
)
def test_bad_pairs_are_refused(task: Question, given: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, [given])


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("horse", "target='horse' is not in the context 'this film"),
        ("who is at", "target='who is at' is not in the context"),  # in the question alone
        ("", "target='' is not in the context"),
        ("clint eastwood - horse", "target='horse'"),
        (3, "target=3: give text of the context"),
    ],
)
def test_bad_targets_are_refused(task: Question, target: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, PAIR, target)


def test_answers_have_a_length(task: Question) -> None:
    words = LONG[1].split()
    assert conserva.explain(task, LONG, " ".join(words[:30]), method="exact").probability is not None
    with pytest.raises(conserva.Error, match="has 31 tokens: answers have at most 30"):
        conserva.explain(task, LONG, " ".join(words[:31]))


def test_long_contexts_are_cut_by_choice_and_questions_never(task: Question) -> None:
    context = "good " * 300 + "film"
    one = conserva.explain(task, ("who?", context), "good", method="exact", truncate=True)
    assert len(one.features) == 128
    assert one.features[1:3] == ("who", "?")
    both = conserva.explain(task, ("who " * 90, "good " * 60), truncate=True)
    assert both.sections == (("question", 92), ("context", 36))
    with pytest.raises(conserva.Error, match=r"'film' is not in the context .*truncated"):
        conserva.explain(task, ("who?", context), "film", truncate=True)
    with pytest.raises(conserva.Error, match="leaves none for a context: the model takes 128"):
        conserva.explain(task, ("who " * 200, context), truncate=True)


def test_wrong_models_and_tokenizers_are_refused(task: Question) -> None:
    with pytest.raises(conserva.Error, match="part='middle' is unknown: choose one of span, start, end"):
        Question(task.network, task.tokenizer, part="middle")
    with pytest.raises(conserva.Error, match="AutoModelForQuestionAnswering"):
        conserva.explain(Question(conserva.load().model, task.tokenizer), PAIR)
    slow = type("Slow", (), {"__call__": print, "convert_ids_to_tokens": print})()
    with pytest.raises(conserva.Error, match="load a fast one"):
        Question(task.network, slow)


def test_masked_rows_keep_question_and_context_apart(task: Question) -> None:
    # The last two are the same tokens, with another border.
    pairs = [PAIR, ("who?", "a joy."), ("who?", "a [SEP] joy."), ("who? [SEP] a", "joy.")]
    encoded = [task.encode(pair) for pair in pairs]
    parts = [task.masked(one, np.ones((1, len(one)), dtype=bool), "mask") for one in encoded]
    assert encoded[2].ids == encoded[3].ids
    found = Stream(task).logits(parts)
    for pair, logits in zip(pairs, found, strict=True):
        assert logits.shape == (1, task.classes)
        scores = all_spans(task, pair)
        for (first, last), score in scores.items():
            assert logits[0, first * MOST_TOKENS + last - first] == pytest.approx(score, rel=1e-4, abs=1e-5)
        assert (logits[0] > -1000).sum() == len(scores)


def test_evaluation_and_audit_take_answers(task: Question) -> None:
    data = [(PAIR, "clint eastwood"), (("who?", "a joy."), "joy")]
    found = conserva.evaluate(task, data, ["exact"], protocol="paper", reference=False)
    assert (found.samples, found.refused) == (2, {})
    plain = conserva.evaluate(task, [pair for pair, _ in data], ["exact"])
    assert plain.accuracy is None
    with pytest.raises(conserva.Error, match="'horse' is not in the context"):
        conserva.evaluate(task, [(PAIR, "horse")], ["exact"])
    assert abs(conserva.audit(task, PAIR, rules="exact").ledger.gap) < 1e-9
