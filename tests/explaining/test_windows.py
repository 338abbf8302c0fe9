"""Texts longer than the model's maximum length, explained in windows: the ledger of the mean output adds up."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import conserva
import language
import tiny_heads
from conserva.tasks.encoded_text import EncodedText, EncodedTextPair
from conserva.tasks.windows import WindowSize, windows_of
from tiny_images import vit

LONG = "a gorgeous, witty, seductive movie that is not much of anything at all, it is what it is. " * 4
SHORT = "a joy."
SIZE = (20, 6)


@cache
def task_of(kind: str = "bert", without_limit: bool = False, **changes: Any) -> conserva.Text:
    tokenizer = copy.deepcopy(tiny_heads.tokenizer())
    if without_limit:
        tokenizer.model_max_length = 10**30
    changes = {"num_labels": 3, "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 40, **changes}
    changes["eos_token_id"] = tokenizer.sep_token_id
    changes = {name: value for name, value in changes.items() if value is not None}
    return conserva.Text(tiny_heads.model(kind, "AutoModelForSequenceClassification", **changes), tokenizer, kind)


def in_windows(task: conserva.Text, text: Any, target: Any = None, size: Any = SIZE, **options: Any) -> Any:
    return conserva.explain(task, text, target, windows=size, **options)


def by_hand(
    task: conserva.Text, text: str, target: int, size: tuple[int, int], rules: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the text's tokens, and the mean logits: every window is cut and explained by hand."""
    ids = task.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    room = size[0] - 2
    starts = [*range(0, len(ids) - room, room - size[1]), len(ids) - room]
    scores, logits = np.zeros(len(ids)), []
    for start in starts:
        part = [task.tokenizer.cls_token_id, *ids[start : start + room], task.tokenizer.sep_token_id]
        inputs = {"input_ids": torch.tensor([part]), "attention_mask": torch.ones(1, len(part), dtype=torch.long)}
        found = conserva.relevance(task.network, inputs, target, rules=rules)
        scores[start : start + room] += found.scores()[0, 1:-1].numpy() / len(starts)
        logits.append(task.network(**inputs).logits[0].detach().numpy())
    return scores, np.mean(logits, 0)


@pytest.mark.parametrize("rules", ["exact", "ah+ln", "gi"])
@pytest.mark.parametrize("size", [(20, 6), (40, 10), (10, 0), (12, 9)])
def test_scores_and_output_are_means_over_windows(size: tuple[int, int], rules: str) -> None:
    task = task_of()
    one = in_windows(task, LONG, 1, size, method=rules)
    scores, logits = by_hand(task, LONG, 1, size, rules)
    np.testing.assert_allclose(one.visible().scores, scores, atol=1e-12)
    assert one.output == pytest.approx(logits[1], abs=1e-12)
    assert [entry.output for entry in one.classes] == pytest.approx(sorted(logits, reverse=True))
    assert one.probability == pytest.approx(float(torch.tensor(logits).softmax(-1)[1]), abs=1e-6)
    assert math.fsum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-12)
    assert one.ledger.output == pytest.approx(one.output, abs=1e-12)
    assert one.output == pytest.approx(np.mean([window.output for window in one.windows]), abs=1e-12)
    assert rules != "exact" or tiny_heads.closes(one)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "electra", "modernbert", "deberta-v2"])
def test_the_ledger_closes_for_every_kind_of_model(kind: str) -> None:
    one = in_windows(task_of(kind), LONG)
    assert len(one.windows) > 2
    assert tiny_heads.closes(one)


HEADS: dict[str, tuple[dict[str, Any], Any]] = {
    "single label": ({}, None),
    "contrast": ({}, "LABEL_2 - LABEL_0"),
    "multi-label": ({"problem_type": "multi_label_classification"}, None),
    "one logit": ({"num_labels": 1, "problem_type": "multi_label_classification"}, None),
    "regression": ({"num_labels": 1}, None),
    "several outputs": ({"problem_type": "regression"}, 2),
}


@pytest.mark.parametrize("head", HEADS)
def test_windows_of_every_head(head: str) -> None:
    changes, target = HEADS[head]
    task = task_of(**changes)
    one = in_windows(task, LONG, target)
    assert tiny_heads.closes(one)
    whole = conserva.explain(task, SHORT, target)
    assert (one.probability is None) == (whole.probability is None)
    assert len(one.classes) == len(whole.classes)


def test_several_outputs_have_no_default() -> None:
    with pytest.raises(conserva.Error, match="target"):
        in_windows(task_of(problem_type="regression"), LONG)


def test_the_default_target_is_the_class_of_the_highest_mean_output() -> None:
    task = task_of()
    one = in_windows(task, LONG)
    _, logits = by_hand(task, LONG, 0, SIZE, "gi")
    assert one.target == f"LABEL_{int(logits.argmax())}"
    assert one.classes[0].label == one.target
    assert one == in_windows(task, LONG, int(logits.argmax()))


def test_features_are_those_of_the_whole_text() -> None:
    one = in_windows(task_of(), LONG)
    plain = task_of().tokenizer(LONG, return_offsets_mapping=True, verbose=False)
    assert len(one.features) == len(plain["input_ids"])
    spans = [span for span in one.offsets if span is not None]
    assert spans == [tuple(span) for span in plain["offset_mapping"][1:-1]]
    assert one.words == tuple(plain.word_ids())
    assert [i for i, special in enumerate(one.special) if special] == [0, len(one.features) - 1]
    assert one.provenance["windows"] == [20, 6]
    assert conserva.Explanation.from_json(one.to_json()) == one
    assert [(window.first, window.last) for window in one.windows][:2] == [(1, 19), (13, 31)]
    assert one.windows[-1].last == len(one.features) - 1
    two = in_windows(task_of(), " ".join(["joy"] * 22))
    assert [(window.first, window.last) for window in two.windows] == [(1, 19), (5, 23)]  # both have what they share
    words = one.merged().visible()
    assert math.fsum(words.scores) == pytest.approx(math.fsum(one.visible().scores))
    assert words.windows[-1].last == len(words.features)


def test_short_texts_are_explained_as_without_windows() -> None:
    task = task_of()
    one = in_windows(task, SHORT)
    assert one == replace(conserva.explain(task, SHORT), provenance=one.provenance)
    exactly = " ".join(["joy"] * (SIZE[0] - 2))
    assert not in_windows(task, exactly).windows
    assert len(in_windows(task, exactly + " joy").windows) == 2


def test_many_texts_equal_single_ones() -> None:
    task, texts = task_of(), [SHORT, LONG, ("dull", LONG), SHORT * 3, LONG[:200]]
    targets = [0, None, "LABEL_1", 2, None]
    many = in_windows(task, texts, targets, batch_tokens=200)
    for text, target, one in zip(texts, targets, many, strict=True):
        alone = in_windows(task, text, target)
        np.testing.assert_allclose(one.scores, alone.scores, atol=1e-12)
        assert (one.target, len(one.windows)) == (alone.target, len(alone.windows))
        assert tiny_heads.closes(one)


@pytest.mark.parametrize("method", ["rollout", "gae", "a-last", "random", "ig:steps=3", "chefer"])
def test_other_methods_work_in_windows(method: str) -> None:
    one = in_windows(conserva.load(), LONG * 4, method=method, size=(60, 10))
    assert len(one.windows) > 3
    assert len(one.scores) == len(one.features)
    if one.ledger is not None:
        assert one.ledger.output == pytest.approx(one.output)


def test_windows_of_the_models_maximum_length() -> None:
    task = task_of()
    one = in_windows(task, LONG, size=True)
    assert one == in_windows(task, LONG, size=(40, 10))
    bundled = conserva.explain(conserva.load(), "a gorgeous film. " * 300, windows=True)
    assert bundled.target == "positive"
    assert abs(bundled.ledger.gap) < 1e-4


def test_of_a_pair_the_second_text_is_split() -> None:
    task = task_of()
    first, second = "is it a joy?", LONG
    one = in_windows(task, (first, second), 2)
    assert [name for name, _ in one.sections] == ["first text", "second text"]
    assert tiny_heads.closes(one)
    border = one.sections[0][1]
    assert one.windows[0].first == border
    ids = task.tokenizer(first, second, verbose=False)["input_ids"]
    room = SIZE[0] - border - 1
    part = torch.tensor([[*ids[:border], *ids[border : border + room], ids[-1]]])
    types = torch.tensor([[0] * border + [1] * (room + 1)])
    found = conserva.relevance(
        task.network, {"input_ids": part, "attention_mask": torch.ones_like(part), "token_type_ids": types}, 2
    )
    assert one.windows[0].output == pytest.approx(float(found.output[0]), abs=1e-12)


def test_comparisons_have_windows_too() -> None:
    many = conserva.compare(task_of(), LONG, 1, methods=["gi", "exact"], windows=SIZE)
    assert [len(one.windows) for one in many] == [len(in_windows(task_of(), LONG, 1).windows)] * 2


def test_progress_is_reported() -> None:
    done: list[int] = []
    in_windows(task_of(), [LONG, SHORT], progress=done.append)
    assert sum(done) == 2


@pytest.mark.parametrize(
    ("windows", "says"),
    [
        ("yes", "is neither True nor"),
        (20, "is neither True nor"),
        ((20,), "is neither True nor"),
        ((20, 6, 1), "is neither True nor"),
        ((20.0, 6), "is neither True nor"),
        ((True, False), "is neither True nor"),
        ((41, 6), "the length must be at most 40"),
        ((20, 20), "the overlap must be smaller than the length"),
        ((20, -1), "the overlap must be smaller than the length"),
        ((0, 0), "the length must be at most 40"),
        ((3, 1), "2 of them. Give a smaller overlap or longer windows"),
        ((2, 0), "special tokens take 2 of them"),
    ],
)
def test_wrong_sizes_are_refused(windows: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task_of(), LONG, windows=windows)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(conserva.Error, match="the first text and the special tokens take"):
        in_windows(task_of(), (LONG, SHORT))
    with pytest.raises(conserva.Error, match="exclude each other"):
        in_windows(task_of(), LONG, truncate=True)
    for task, text in ((language.causal(), "the capital"), (conserva.Image(vit()), np.zeros((32, 32, 3), np.uint8))):
        with pytest.raises(conserva.Error, match="only text classifiers are explained in windows"):
            conserva.explain(task, text, windows=True)


def test_a_model_without_a_maximum_length_reads_the_whole_text() -> None:
    task = task_of("xlnet", without_limit=True, max_position_embeddings=None)
    assert not conserva.explain(task, LONG, windows=True, method="gi").windows
    assert len(in_windows(task, LONG, method="gi").windows) > 3


@pytest.mark.parametrize("kind", ["roberta", "mpnet", "esm", "luke", "ibert", "camembert"])
def test_positions_that_begin_after_the_padding_make_the_maximum_shorter(kind: str) -> None:
    task = task_of(kind, without_limit=True)
    assert task.longest == 40 - (1 if kind == "mpnet" else task.tokenizer.pad_token_id) - 1
    assert len(conserva.explain(task, " ".join(["joy"] * (task.longest - 2)), 1, method="gi").features) == task.longest
    with pytest.raises(conserva.Error, match=f"the model takes {task.longest}"):
        conserva.explain(task, " ".join(["joy"] * (task.longest - 1)))
    assert len(conserva.explain(task, LONG, 1, method="gi", windows=True).windows) > 1


def test_a_text_that_is_too_long_says_what_to_do() -> None:
    with pytest.raises(conserva.Error, match=r"truncate=True .* windows=True"):
        conserva.explain(task_of(), LONG)


@given(
    tokens=st.integers(1, 200),
    length=st.integers(3, 60),
    overlap=st.integers(0, 59),
    border=st.none() | st.integers(2, 9),
)
def test_windows_cover_every_token_in_order(tokens: int, length: int, overlap: int, border: int | None) -> None:
    ids = tuple(range(tokens + 2))
    flags = (True, *[False] * tokens, True)
    names = tuple(map(str, ids))
    if border is None or border >= tokens:
        text = EncodedText("", names, flags, ids, ids)
        fixed = [0, len(ids) - 1]
    else:
        text = EncodedTextPair("", names, flags, ids, ids, border=border, start=0)
        fixed = [*range(border), len(ids) - 1]
    try:
        windows = windows_of(text, WindowSize(length, overlap))
    except conserva.Error:
        assert length - len(fixed) <= overlap
        return
    assert {feature for window in windows for feature in window} == set(ids)
    if len(windows) == 1:
        return
    for window in windows:
        assert len(window) == length
        assert window == sorted(window)
        assert set(fixed) <= set(window)
    own = [[feature for feature in window if feature not in fixed] for window in windows]
    for before, after in itertools.pairwise(own):
        assert len(set(before) & set(after)) >= overlap
        assert after[0] > before[0]
    assert all(part == list(range(part[0], part[-1] + 1)) for part in own)
