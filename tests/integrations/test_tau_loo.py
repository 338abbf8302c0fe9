"""tau-LOO: Kendall's tau of scores and of the effects of leaving one feature out, against scipy and loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conserva
import tiny_heads
from conserva._util.kendall import kendall_tau
from conserva.integrations.eraser import tau_loo
from conserva.results.explanations import Explanations

kendalltau = pytest.importorskip("scipy.stats", reason="scipy is not installed").kendalltau

TEXTS = ["a gorgeous , witty movie .", "it is n't unbelievably dull , it's a joy .", "how dull ."]


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.fixture(scope="module")
def many(task: conserva.Text) -> Explanations:
    return conserva.explain(task, TEXTS)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 3.0]), st.integers(-2, 2)), min_size=2, max_size=9))
def test_tau_is_scipys(case: list[tuple[float, int]]) -> None:
    a, b = zip(*case, strict=True)
    assert kendall_tau(a, b) == pytest.approx(float(kendalltau(a, b).statistic), abs=1e-12, nan_ok=True)


def test_tau_of_equal_numbers_is_undefined() -> None:
    assert math.isnan(kendall_tau([0, 0, 0], [1, 2, 3]))
    assert math.isnan(kendall_tau([1], [1]))


def slow_tau(task: Any, one: conserva.Explanation, target: int, mask: str) -> float:
    ids = task.tokenizer(one.text)["input_ids"]

    def logit(changed: list[int], kept: list[int]) -> float:
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor([changed]), "attention_mask": torch.tensor([kept])}
            return float(task.model(**inputs).logits[0, target])

    effects = []
    for i, is_special in enumerate(one.special):
        if not is_special:
            changed = [
                task.tokenizer.mask_token_id if i == k and mask == "mask" else each for k, each in enumerate(ids)
            ]
            kept = [int(i != k or mask == "mask") for k in range(len(ids))]
            effects.append(logit(ids, [1] * len(ids)) - logit(changed, kept))
    scores = [score for score, is_special in zip(one.scores, one.special, strict=True) if not is_special]
    return float(kendalltau(scores, effects).statistic)


@pytest.mark.parametrize("mask", ["mask", "drop"])
def test_tau_loo_is_its_replica(task: conserva.Text, many: Explanations, mask: str) -> None:
    found = tau_loo(task, TEXTS, many, mask=mask)
    expected = [slow_tau(task, one, task.labels[one.target], mask) for one in many]
    assert found == pytest.approx(expected, abs=1e-12)
    assert tau_loo(task, TEXTS[0], many[0], mask=mask) == pytest.approx(expected[0], abs=1e-12)


def test_tau_loo_of_a_pair_and_of_another_class() -> None:
    network = tiny_heads.model("bert", "AutoModelForSequenceClassification", num_labels=3)
    task = conserva.Text(network, tiny_heads.tokenizer())
    pair = ("a joy .", "how dull .")
    one = conserva.explain(task, pair, 2)
    assert -1 <= tau_loo(task, pair, one) <= 1  # type: ignore[operator]
    assert tau_loo(task, [pair], Explanations((one,))) == [tau_loo(task, pair, one)]


def test_tau_loo_of_zeros_is_undefined(task: conserva.Text, many: Explanations) -> None:
    zero = replace(many[0], scores=(0.0,) * len(many[0].scores))
    assert math.isnan(tau_loo(task, TEXTS[0], zero))  # type: ignore[arg-type]
    assert tau_loo(task, [], Explanations(())) == []


def test_tau_loo_refuses_what_does_not_belong_together(task: conserva.Text, many: Explanations) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (TEXTS[1], many[0], "does not have the features of its explanation"),
        (TEXTS[0], many[0].merged().visible(), "does not have the features of its explanation"),
        (TEXTS, many[:2], r"3 text\(s\) and 2 explanation"),
        (TEXTS[:1], many[0], "both in a list"),
        (
            TEXTS[0],
            conserva.explain(task, TEXTS[0], "positive - negative"),
            "target='positive - negative' is not a class",
        ),
        (TEXTS[0], replace(many[0], output=many[0].output + 1), "the explained output"),
    ]
    for inputs, explanations, message in cases:
        with pytest.raises(conserva.Error, match=message):
            tau_loo(task, inputs, explanations)
    with pytest.raises(conserva.Error, match="is not a task"):
        tau_loo("model", TEXTS[0], many[0])  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match=r"mask='zero' is unknown"):
        tau_loo(task, TEXTS[0], many[0], mask="zero")
