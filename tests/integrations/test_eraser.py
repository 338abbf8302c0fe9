"""ERASER: predictions in its format, and measures of agreement that are those of slow loops."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
from conserva.integrations.eraser import (
    auprc,
    hard_rationale,
    iou_f1,
    section_scores,
    tau_loo,
    token_f1,
    token_iou,
    word_scores,
    write_eraser,
)
from conserva.results.explanations import Explanations
from doc_pages import shown_and_printed, wrong_examples
from made_up_explanations import explanation

TEXTS = ["a gorgeous , witty movie .", "it is n't unbelievably dull , it's a joy .", "how dull ."]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def many(task: conserva.Text) -> Explanations:
    return conserva.explain(task, TEXTS)


# Words between spaces.


def slow_word_scores(one: conserva.Explanation) -> list[float]:
    owner, words = {}, 0
    for i, letter in enumerate(one.text):
        if not letter.isspace():
            words += i == 0 or one.text[i - 1].isspace()
            owner[i] = words - 1
    scores = [0.0] * words
    for score, span in zip(one.scores, one.offsets, strict=True):
        if span is not None and span[0] in owner:
            scores[owner[span[0]]] += score
    return scores


def test_words_are_those_between_spaces(many: Explanations) -> None:
    for one in many:
        found = word_scores(one)
        assert len(found) == len(one.text.split())
        assert found == pytest.approx(slow_word_scores(one))
        special = sum(score for score, is_special in zip(one.scores, one.special, strict=True) if is_special)
        assert sum(found) == pytest.approx(sum(one.scores) - special)
        assert word_scores(one.merged()) == pytest.approx(found)


def words_of_eraser(text: str) -> list[str]:
    """Return the words of a document, as ERASER's scorer reads a file: lines, stripped, split at spaces."""
    lines = [line.strip() for line in io.StringIO(text, newline=None)]
    return [word for line in lines for word in line.split(" ") if word]


ODD = [
    "a joy\nhow dull .\n\n  so  \r\n dull\r.",
    "  a   joy  ",
    "a\u00a0joy \u00a0 .",
    "\t a\tjoy \t. \t",
    "a\u2028joy \x85 .",
    "\u200b a joy \u200b",
]


@pytest.mark.parametrize("text", ODD)
def test_words_are_those_of_erasers_scorer(task: conserva.Text, text: str) -> None:
    one = conserva.explain(task, text)
    found = word_scores(one)
    assert len(found) == len(words_of_eraser(text))
    special = sum(score for score, is_special in zip(one.scores, one.special, strict=True) if is_special)
    assert sum(found) == pytest.approx(sum(one.scores) - special)


@pytest.mark.parametrize("texts", [(text, "how dull .") for text in ODD] + [("how | dull", text) for text in ODD])
def test_words_at_the_ends_of_pairs_are_counted(task: conserva.Text, texts: tuple[str, str]) -> None:
    found = section_scores(conserva.explain(task, texts))
    assert [len(scores) for scores in found] == [len(words_of_eraser(text)) for text in texts]


def test_words_that_were_truncated_have_the_score_0(task: conserva.Text) -> None:
    long = "a joy . how dull . " * 100
    for first, second in (("a joy .", long), (long, "a joy .")):
        one = conserva.explain(task, (first, second), truncate=True)
        found = section_scores(one)
        assert [len(scores) for scores in found] == [len(first.split()), len(second.split())]
        assert sum(map(sum, found)) == pytest.approx(sum(one.visible().scores))
        assert max(found, key=len)[-1] == 0 != max(found, key=len)[0]


def test_words_without_tokens() -> None:
    one = explanation(["<s>", "a", "jo", "y"], text="  a  joy\n\u200b x")
    one = replace(one, offsets=(None, (1, 3), (5, 7), (7, 9)), scores=(9.0, 1.0, 2.0, 4.0))  # two have spaces in them
    assert word_scores(one) == [1.0, 6.0, 0.0, 0.0]


def test_a_feature_of_several_words_is_refused(many: Explanations) -> None:
    with pytest.raises(conserva.Error, match=r"Feature 1, .* has 6 words: .*before sentences\(\)"):
        word_scores(many[0].sentences())


def test_features_without_offsets_are_refused() -> None:
    with pytest.raises(conserva.Error, match=r"'a joy' has no offsets, which tell where"):
        word_scores(explanation(["a", "joy"]))


def test_a_pair_has_words_of_two_texts(task: conserva.Text) -> None:
    first, second = "a joy , a thing .", "how | very dull ."
    one = conserva.explain(task, (first, second))
    found = section_scores(one)
    assert list(map(len, found)) == [len(first.split()), len(second.split())]
    assert sum(map(sum, found)) == pytest.approx(sum(one.visible().scores))
    with pytest.raises(conserva.Error, match=r"2 texts: .*section_scores"):
        word_scores(one)


# Hard rationales.


@pytest.mark.parametrize(
    ("scores", "how", "chosen"),
    [
        ([1, 3, 2], {"top": 2}, [1, 2]),
        ([1, 3, 2], {"top": 99}, [0, 1, 2]),
        ([1, 1, 1, 1], {"top": 2}, [0, 1]),  # ties: the first
        ([-1, -3, 2], {"top": 2}, [2]),  # only positive ones
        ([0, 0, 0], {"top": 2}, []),
        ([5, 4, 3, 2, 1], {"top": 0.2}, [0]),
        ([5, 4, 3, 2, 1], {"top": 0.21}, [0, 1]),
        ([1, 2, 3], {"threshold": 2}, [2]),
        ([0, -1, -3], {"threshold": -2}, [0, 1]),
        ([1], {"threshold": 1}, []),
        ([1, 3, 2], {"top": np.int64(1)}, [1]),
        ([1, 3, 2], {"top": np.float32(0.4)}, [1, 2]),
        ([1, 3, 2], {"threshold": np.float32(2)}, [1]),
    ],
)
def test_hard_rationales(scores: list[float], how: dict[str, Any], chosen: list[int]) -> None:
    assert hard_rationale(scores, **how) == [i in chosen for i in range(len(scores))]


def test_of_many_equal_scores_the_first_are_chosen() -> None:
    scores = [1.0, 2.0] * 50
    assert [i for i, chosen in enumerate(hard_rationale(scores, top=20)) if chosen] == list(range(1, 40, 2))


def test_shares_are_not_rounded_up_by_rounding_errors() -> None:
    assert sum(hard_rationale(range(1, 101), top=0.07)) == 7  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how", [{}, {"top": 1, "threshold": 0.0}, {"top": 0}, {"top": 1.5}, {"top": True}, {"top": "2"}]
)
def test_bad_ways_of_choosing(how: dict[str, Any]) -> None:
    with pytest.raises(conserva.Error, match=r"top="):
        hard_rationale([1.0, 2.0], **how)
    for threshold in (math.nan, "1"):
        with pytest.raises(conserva.Error, match=r"^threshold=.*: give a number\.$"):
            hard_rationale([1.0, 2.0], threshold=threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [[], [[1.0]], [math.nan], ["a"], None])
def test_bad_scores(scores: Any) -> None:
    with pytest.raises(conserva.Error, match=r"^scores="):
        hard_rationale(scores, top=1)
    with pytest.raises(conserva.Error, match=r"^scores="):
        auprc(scores, [True])


# Measures. The replicas are loops over their definitions.


def slow_auprc(scores: Sequence[float], truth: Sequence[bool]) -> float:
    points = [(0.0, 1.0)]
    for limit in sorted(set(scores), reverse=True):
        chosen = [flag for score, flag in zip(scores, truth, strict=True) if score >= limit]
        points.append((sum(chosen) / sum(truth), sum(chosen) / len(chosen)))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))


def slow_f1(chosen: set[Any], truth: set[Any], both: int) -> float:
    if not chosen and not truth:
        return math.nan
    precision, recall = both / len(chosen) if chosen else 0.0, both / len(truth) if truth else 0.0
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def runs(flags: Sequence[bool]) -> list[set[int]]:
    found: list[set[int]] = []
    for i, flag in enumerate(flags):
        if flag and (i == 0 or not flags[i - 1]):
            found.append(set())
        if flag:
            found[-1].add(i)
    return found


def slow_iou_f1(chosen: Sequence[bool], truth: Sequence[bool], threshold: float) -> float:
    matches = 0
    for run in runs(chosen):
        overlap = [len(run & other) / len(run | other) for other in runs(truth)]
        matches += bool(overlap) and max(overlap) >= threshold
    return slow_f1(set(map(tuple, runs(chosen))), set(map(tuple, runs(truth))), matches)


def beside(flags: list[bool], others: Any) -> Any:
    """Return a strategy for flags with as many others."""
    return st.tuples(st.just(flags), st.lists(others, min_size=len(flags), max_size=len(flags)))


some_flags = st.lists(st.booleans(), min_size=1, max_size=9)
pairs = some_flags.flatmap(lambda flags: beside(flags, st.booleans()))
scored = some_flags.flatmap(lambda flags: beside(flags, st.sampled_from([-1.5, 0.0, 0.5, 2.0])))


@settings(max_examples=80, deadline=None)
@given(scored)
def test_auprc_is_its_replica(case: tuple[list[bool], list[float]]) -> None:
    truth, scores = case
    if any(truth):
        assert auprc(scores, truth) == pytest.approx(slow_auprc(scores, truth), abs=1e-12)
    else:
        assert math.isnan(auprc(scores, truth))


@settings(max_examples=80, deadline=None)
@given(pairs, st.sampled_from([0.5, 2 / 3, 0.8, 1.0]))
def test_f1_are_their_replicas(case: tuple[list[bool], list[bool]], threshold: float) -> None:
    chosen, truth = case
    tokens = {i for i, flag in enumerate(chosen) if flag}, {i for i, flag in enumerate(truth) if flag}
    expected = slow_f1(*tokens, len(tokens[0] & tokens[1]))
    assert token_f1(chosen, truth) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    expected = len(tokens[0] & tokens[1]) / len(tokens[0] | tokens[1]) if any(chosen + truth) else math.nan
    assert token_iou(chosen, truth) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    expected = slow_iou_f1(chosen, truth, threshold)
    assert iou_f1(chosen, truth, threshold) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert math.isnan(expected) or expected <= 1


def test_measures_of_nothing() -> None:
    none, some = [False, False], [True, False]
    assert math.isnan(token_f1(none, none))
    assert math.isnan(iou_f1(none, none))
    assert math.isnan(token_iou(none, none))
    assert token_f1(none, some) == token_f1(some, none) == iou_f1(none, some) == iou_f1(some, none) == 0
    assert auprc([0, 0], some) == 0.75  # (1 + 1/2) / 2


def test_a_run_of_half_the_words_matches() -> None:
    assert iou_f1([1, 1, 0, 0], [1, 1, 1, 1]) == 1
    assert iou_f1([1, 0, 0, 0], [1, 1, 1, 1]) == 0


@pytest.mark.parametrize("measure", [auprc, token_f1, token_iou, iou_f1])
def test_bad_rationales(measure: Any) -> None:
    with pytest.raises(conserva.Error, match=r"has 2 words and rationale 3: give one entry for each"):
        measure([1, 0], [True, False, True])
    for bad in ([0.5, 1], [[True]], [], ["a", "b"]):
        with pytest.raises(conserva.Error, match=r"^rationale=.*: give True or False for each word"):
            measure([1, 0], bad)
    for threshold in (0.4, 1.1, math.nan):
        with pytest.raises(conserva.Error, match=r"^threshold=.*from 0\.5 to 1"):
            iou_f1([1, 0], [1, 0], threshold)


# The file.


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_predictions(task: conserva.Text, many: Explanations, tmp_path: Path) -> None:
    path = write_eraser(tmp_path / "predictions.jsonl", many, ["a", "b", "c"], ["1", "2", "2"], top=0.5)
    found = lines(path)
    assert [each["annotation_id"] for each in found] == ["a", "b", "c"]
    for each, one, docid in zip(found, many, ["1", "2", "2"], strict=True):
        (rationale,) = each["rationales"]
        assert rationale["docid"] == docid
        assert rationale["soft_rationale_predictions"] == word_scores(one)
        chosen = [False] * len(one.text.split())
        for span in rationale["hard_rationale_predictions"]:
            assert span["start_token"] < span["end_token"]
            for i in range(span["start_token"], span["end_token"]):
                assert not chosen[i]
                chosen[i] = True
        assert chosen == hard_rationale(word_scores(one), top=0.5)
        assert each["classification"] == one.classes[0].label
        assert each["classification"] == max(each["classification_scores"], key=each["classification_scores"].get)
        assert sum(each["classification_scores"].values()) == pytest.approx(1, abs=1e-6)
        assert set(each["classification_scores"]) == set(task.labels)


def test_ids_are_documents_and_hard_rationales_are_optional(many: Explanations, tmp_path: Path) -> None:
    found = lines(write_eraser(tmp_path / "x.jsonl", list(many), ["a", "b", "c"]))
    assert [each["rationales"][0]["docid"] for each in found] == ["a", "b", "c"]
    assert all("hard_rationale_predictions" not in each["rationales"][0] for each in found)
    numbered = lines(write_eraser(tmp_path / "x.jsonl", many, [1, 2, 3]))  # type: ignore[list-item]
    assert [(each["annotation_id"], each["rationales"][0]["docid"]) for each in numbered] == [(i, i) for i in "123"]


def test_pairs_have_two_documents(task: conserva.Text, tmp_path: Path) -> None:
    both = conserva.explain(task, [("a joy .", "how dull ."), ("how very dull .", "a joy .")])
    found = lines(write_eraser(tmp_path / "x.jsonl", both, ["a", "b"], [("a1", "a2"), (None, "b2")], threshold=0.0))
    assert [[each["docid"] for each in one["rationales"]] for one in found] == [["a1", "a2"], ["b2"]]
    assert [len(each["soft_rationale_predictions"]) for each in found[0]["rationales"]] == [3, 3]
    with pytest.raises(conserva.Error, match=r"docids has 'a' for .*, which has 2 text\(s\)"):
        write_eraser(tmp_path / "x.jsonl", both, ["a", "b"])


def test_classes_are_left_out_where_they_are_no_distribution(many: Explanations, tmp_path: Path) -> None:
    half = tuple(replace(one, probability=0.9) for one in many[1].classes)
    mixed = [many[0], replace(many[1], classes=half), many[2]]
    assert all("classification" not in one for one in lines(write_eraser(tmp_path / "x.jsonl", mixed, ["a", "b", "c"])))


def test_bad_files_and_ids(many: Explanations, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    cases: list[tuple[Any, Any, Any, str]] = [
        (tmp_path / "x.json", many, ["a", "b", "c"], r"ends in '\.json'"),
        (tmp_path / "no" / "x.jsonl", many, ["a", "b", "c"], "does not exist"),
        (path, many, ["a", "b"], r"ids has 2 entries for 3 explanation"),
        (path, many, "abc", r"ids has 3 entries for 3"),
        (path, many, ["a", "b", "a"], "ids has 'a' more than once"),
        (path, many[0], ["a"], "explanations is a single one"),
    ]
    for where, explanations, ids, message in cases:
        with pytest.raises(conserva.Error, match=message):
            write_eraser(where, explanations, ids)
    with pytest.raises(conserva.Error, match="docids has 1 entries for 3"):
        write_eraser(path, many, ["a", "b", "c"], ["a"])
    with pytest.raises(conserva.Error, match=r"top=0: give a number of words"):
        write_eraser(path, many, ["a", "b", "c"], top=0)
    assert not path.exists()


def test_no_explanations_are_an_empty_file(tmp_path: Path) -> None:
    assert write_eraser(tmp_path / "x.jsonl", [], []).read_text() == ""


def test_the_page_runs_and_shows_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown, printed = shown_and_printed("eraser")
    assert printed == shown
    assert len(lines(tmp_path / "predictions.jsonl")) == 2


def test_numpy_arrays_are_taken() -> None:
    assert auprc(np.array([1.0, 0.0]), np.array([1, 0])) == 1
    assert token_f1(np.array([1, 0]), np.array([True, False])) == 1


@pytest.mark.parametrize("one", [auprc, hard_rationale, iou_f1, tau_loo, token_f1, word_scores, write_eraser])
def test_examples_run(one: Any) -> None:
    assert wrong_examples(one) == ""
