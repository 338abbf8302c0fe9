"""Labels are ranked as by a zero-shot-classification pipeline, and the outputs of their hypotheses are explained."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import transformers

import conserva
from conserva.integrations.ranking import contrast
from conserva.integrations.zero_shot import explain_labels
from doc_pages import shown_and_printed, wrong_examples
from objects import closes, is_unchanged, snapshot
from pipelines import piped

TEXT = "I have a problem with my phone that needs to be resolved asap!!"
LABELS = ["urgent", "not urgent", "phone", "tablet", "computer"]
EXACT = {"rel": 1e-6, "abs": 1e-6}
NAMES = {
    "last": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "first": {0: "ENTAILMENT", 1: "NEUTRAL", 2: "CONTRADICTION"},
    "middle": {0: "CONTRADICTION", 1: "entailed", 2: "neutral"},
}


def zero_shot(names: dict[int, str] = NAMES["last"], **options: Any) -> Any:
    pipe = piped("zero-shot-classification", **options)
    pipe.model.config.id2label, pipe.model.config.label2id = names, {label: i for i, label in names.items()}
    return pipe


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:1]], ids=["five", "one"])
def test_labels_and_probabilities_are_those_of_the_pipeline(names: str, multi_label: bool, labels: list[str]) -> None:
    pipe = zero_shot(NAMES[names])
    before = snapshot(pipe.model)
    found = explain_labels(pipe, TEXT, labels, multi_label=multi_label)
    assert is_unchanged(pipe.model, before)
    expected = pipe(TEXT, candidate_labels=labels, multi_label=multi_label)
    assert [one.target for one in found] == expected["labels"]
    assert [one.probability for one in found] == pytest.approx(expected["scores"], **EXACT)
    assert all(map(closes, found))
    for one in found:
        assert [name for name, _ in one.sections] == ["text", f"hypothesis {one.target}"]
        assert one.text == f"{TEXT} | This example is {one.target}."
        assert [each.label for each in one.classes] == expected["labels"]
        assert one.probability == {each.label: each.probability for each in one.classes}[one.target]


@pytest.mark.parametrize("multi_label", [False, True])
def test_an_explanation_is_that_of_the_pair(multi_label: bool) -> None:
    pipe = zero_shot()
    task = conserva.load(pipe)
    target = "entailment - contradiction" if multi_label else "entailment"
    for one in explain_labels(task, TEXT, LABELS, multi_label=multi_label):
        alone = conserva.explain(task, (TEXT, f"This example is {one.target}."), target)
        assert list(one.scores) == pytest.approx(list(alone.scores), **EXACT)
        assert one.output == pytest.approx(alone.output, **EXACT)


def test_a_contrast_is_the_logarithm_of_the_ratio_of_two_probabilities() -> None:
    pipe = zero_shot()
    found = explain_labels(pipe, TEXT, LABELS)
    scores = dict(zip(*(pipe(TEXT, LABELS)[key] for key in ("labels", "scores")), strict=True))
    why = contrast(found[0], found[3])
    one, other = found[0].target, found[3].target
    assert why.target == f"{one} - {other}"
    assert why.output == pytest.approx(math.log(scores[one] / scores[other]), **EXACT)
    assert why.classes == found[0].classes
    assert [name for name, _ in why.sections] == ["text", f"hypothesis {one}", f"hypothesis {other}"]
    assert sum(why.scores) == pytest.approx(why.ledger.inputs if why.ledger else None, abs=1e-6)


def test_labels_of_other_calls_have_no_contrast() -> None:
    task = conserva.load(zero_shot())
    one, other = explain_labels(task, TEXT, LABELS)[0], explain_labels(task, TEXT, LABELS[:3])[0]
    with pytest.raises(conserva.Error, match="are for different targets"):
        contrast(one, other)


def test_what_the_pipeline_was_created_with_is_the_default() -> None:
    own = {"candidate_labels": "urgent, phone", "hypothesis_template": "It is about {}!", "multi_label": True}
    pipe = zero_shot(**own)
    found, expected = explain_labels(pipe, TEXT), pipe(TEXT)
    assert [one.target for one in found] == expected["labels"]
    assert [one.probability for one in found] == pytest.approx(expected["scores"], **EXACT)
    given = {"candidate_labels": "garden,  house,", "hypothesis_template": "{}.", "multi_label": False}
    found, expected = (
        explain_labels(pipe, TEXT, **given),
        pipe(TEXT, **{**given, "candidate_labels": ["garden", "house"]}),
    )
    assert [one.target for one in found] == expected["labels"]
    assert [one.probability for one in found] == pytest.approx(expected["scores"], **EXACT)


def test_a_long_text_is_truncated_as_by_the_pipeline() -> None:
    pipe = zero_shot()
    pipe.tokenizer.model_max_length = 24
    with pytest.raises(conserva.Error, match="the model takes 24"):
        explain_labels(pipe, TEXT * 2, LABELS)
    found, expected = explain_labels(pipe, TEXT * 2, LABELS, truncate=True), pipe(TEXT * 2, LABELS)
    assert [one.probability for one in found] == pytest.approx(expected["scores"], **EXACT)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (TEXT, {}, "candidate_labels=None, and the pipeline was not created with labels"),
        (TEXT, {"candidate_labels": []}, r"candidate_labels=\[\] has no labels: give at least one"),
        (TEXT, {"candidate_labels": " , "}, "has no labels"),
        (TEXT, {"candidate_labels": {"a": 1}}, "is not a list of labels"),
        (TEXT, {"candidate_labels": 7}, "candidate_labels=7 is not a list of labels"),
        (TEXT, {"candidate_labels": ["a", 7]}, "candidate_labels has 7, which is not a string"),
        (
            TEXT,
            {"candidate_labels": ["a"], "hypothesis_template": "it is"},
            r"'it is' has no \{\} in place of the label",
        ),
        (TEXT, {"candidate_labels": ["a"], "hypothesis_template": "{b}"}, r"'\{b\}' has no \{\} in place"),
        (TEXT, {"candidate_labels": ["a"], "hypothesis_template": "{"}, r"'\{' has no \{\} in place"),
        (TEXT, {"candidate_labels": ["a"], "hypothesis_template": 7}, r"=7 has no \{\} in place"),
        ([TEXT], {"candidate_labels": ["a"]}, "is not a string: give one text at a time"),
        ("", {"candidate_labels": ["a"]}, "is empty: there is nothing to explain"),
    ],
)
def test_bad_inputs_are_refused(text: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        explain_labels(zero_shot(), text, **options)


def test_models_without_entailment_are_refused() -> None:
    with pytest.raises(
        conserva.Error, match="has the labels 'LABEL_0', 'LABEL_1', 'LABEL_2', none of which is entailm"
    ):
        explain_labels(piped("zero-shot-classification"), TEXT, LABELS)
    with pytest.raises(conserva.Error, match="has the labels 'negative', 'positive', none of which"):
        explain_labels(conserva.load(), TEXT, LABELS)
    with pytest.raises(conserva.Error, match="model is a Causal, which does not score pairs"):
        explain_labels(piped("text-generation"), TEXT, LABELS)


def test_the_example_of_the_docstring() -> None:
    assert wrong_examples(explain_labels) == ""


def test_the_page_runs_and_shows_what_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, tiny = transformers.pipeline, zero_shot()
    monkeypatch.setattr(transformers, "pipeline", lambda kind, *name, **own: make(kind, **own) if own else tiny)
    shown, printed = shown_and_printed("pipelines")
    assert printed.startswith(shown)
    assert re.match(r"\n*(\S+|not urgent) - ", printed.removeprefix(shown))  # the contrast of the second example
