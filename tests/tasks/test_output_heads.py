"""What a classifier's logits say: which head a model has, its probabilities, the names of its targets."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console

import conserva
import tiny_heads
from conserva.cli import main
from conserva.models.quiet import quiet_loading
from conserva.tasks.output_heads import OUTPUT_HEADS, configured_head
from conserva.views.explanation_page import page
from conserva.views.terminal import compare, show
from conserva.views.trace_page import page as trace_page
from tiny import shake
from tiny_images import clip_config, noise, processor, vit

TEXT = "has a lot of the virtues of eastwood at his best."
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

ONE, THREE = {"num_labels": 1}, {"num_labels": 3}
MULTI, NUMBERS = {"problem_type": "multi_label_classification"}, {"problem_type": "regression"}
SINGLE = {"problem_type": "single_label_classification"}
AFTER_SIGMOID, AFTER_IDENTITY = ({"sentence_transformers": {"activation_fn": x}} for x in (SIGMOID, IDENTITY))
OLD_SIGMOID, OLD_IDENTITY = ({"sbert_ce_default_activation_function": x} for x in (SIGMOID, IDENTITY))

CASES: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "three labels": ("bert", THREE, None, "single_label"),
    "single label, said so": ("modernbert", THREE | SINGLE, None, "single_label"),
    "several, after the identity": ("electra", THREE | AFTER_IDENTITY, None, "single_label"),
    "multi-label BERT": ("bert", THREE | MULTI, None, "multi_label"),
    "multi-label DistilBERT": ("distilbert", THREE | MULTI, None, "multi_label"),
    "multi-label BART": ("bart", THREE | MULTI, None, "multi_label"),
    "several, each after a sigmoid": ("electra", THREE | AFTER_SIGMOID, None, "multi_label"),
    "multi-label by the user": ("roberta", THREE, "multi_label", "multi_label"),
    "one output": ("deberta-v2", ONE, None, "regression"),
    "one output, said so": ("roberta", ONE | NUMBERS, None, "regression"),
    "a reranker's plain score": ("bert", ONE | AFTER_IDENTITY, None, "regression"),
    "a reranker's plain score, older": ("electra", ONE | OLD_IDENTITY, None, "regression"),
    "three outputs": ("distilbert", THREE | NUMBERS, None, "regression"),
    "regression by the user": ("bart", THREE, "regression", "regression"),
    "a cross-encoder's sigmoid": ("deberta-v2", ONE | AFTER_SIGMOID, None, "binary"),
    "a cross-encoder's sigmoid, older": ("roberta", ONE | OLD_SIGMOID, None, "binary"),
    "one logit under a BCE loss": ("bart", ONE | MULTI, None, "binary"),
    "binary by the user": ("bert", ONE, "binary", "binary"),
    "ordinal by the user": ("bert", THREE, "ordinal", "ordinal"),
    "ordinal, one threshold": ("deberta-v2", ONE, "ordinal", "ordinal"),
    "ordinal, four thresholds": ("distilbert", {"num_labels": 4}, "ordinal", "ordinal"),
}
"""Case -> the type of model, its configuration, the user's head, and the head that it has."""


def task_of(case: str) -> conserva.Text:
    kind, changes, head, _ = CASES[case]
    tokenizer = tiny_heads.tokenizer()
    network = tiny_heads.model(
        kind, "AutoModelForSequenceClassification", eos_token_id=tokenizer.sep_token_id, **changes
    )
    return conserva.Text(network, tokenizer, "tiny", head=head)


def logits_of(task: conserva.Text, text: str = TEXT) -> list[float]:
    ids = task.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        found: list[float] = task.network(**ids).logits[0].tolist()
    return found


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(head: str, logits: list[float]) -> list[float | None]:
    """Return the probability of every class."""
    if head == "single_label":
        return [math.exp(x) / sum(map(math.exp, logits)) for x in logits]
    if head == "regression":
        return [None] * len(logits)
    if head == "ordinal":
        above = [1.0, *map(sigmoid, logits), 0.0]
        return [max(a - b, 0.0) for a, b in pairwise(above)]
    return list(map(sigmoid, logits))


def outputs_by_hand(head: str, logits: list[float]) -> list[float]:
    """Return the explained number of every class."""
    if head != "ordinal":
        return logits
    return [sum(logits[:k]) / 2 - sum(logits[k:]) / 2 for k in range(len(logits) + 1)]


@pytest.mark.parametrize("case", CASES)
def test_a_probability_is_that_of_the_head(case: str) -> None:
    task, head = task_of(case), CASES[case][-1]
    assert task.head is OUTPUT_HEADS[head]
    logits = logits_of(task)
    outputs, probabilities = outputs_by_hand(head, logits), by_hand(head, logits)
    assert task.classes == len(outputs)
    for index, (output, probability) in enumerate(zip(outputs, probabilities, strict=True)):
        one = conserva.explain(task, TEXT, index, method="exact")
        assert one.output == pytest.approx(output, abs=1e-9)
        assert one.probability == (None if probability is None else pytest.approx(probability, abs=1e-6))
        assert tiny_heads.closes(one)
        assert one.provenance["head"] == head
    if head == "regression" and len(logits) > 1:
        with pytest.raises(conserva.Error, match=r"3 outputs\. Choose one of 'output 0', 'output 1'"):
            conserva.explain(task, TEXT)
        return
    one = conserva.explain(task, TEXT)
    highest = outputs.index(max(outputs))
    assert one.output == pytest.approx(outputs[highest], abs=1e-9)
    assert one.probability == (None if head == "regression" else pytest.approx(probabilities[highest], abs=1e-6))
    if CASES[case][0] == "bart":  # whose decoder sees the tokens shifted: it has no trace
        return
    found = conserva.trace(task, TEXT)
    assert (found.probability, found.target) == (one.probability, one.target)


@pytest.mark.parametrize("case", CASES)
def test_many_texts_have_their_own_probabilities(case: str) -> None:
    task, head = task_of(case), CASES[case][-1]
    texts = [TEXT, "dull", "a joy of a film."]
    for text, one in zip(texts, conserva.explain(task, texts, 0, method="gi", batch_tokens=1000), strict=True):
        expected = by_hand(head, logits_of(task, text))[0]
        assert one.probability == (None if expected is None else pytest.approx(expected, abs=1e-6))


def test_targets_are_named_and_found_by_their_names() -> None:
    one_output, three_outputs = task_of("one output"), task_of("three outputs")
    assert conserva.explain(one_output, TEXT).target == "output"
    for target in ("output", "LABEL_0", 0, None):
        assert conserva.explain(one_output, TEXT, target).output == pytest.approx(logits_of(one_output)[0])
    assert conserva.explain(three_outputs, TEXT, 1).target == "output 1"
    logits = logits_of(three_outputs)
    contrast = conserva.explain(three_outputs, TEXT, "output 2 - LABEL_0")
    assert contrast.output == pytest.approx(logits[2] - logits[0])
    with pytest.raises(conserva.Error, match="'height' is not one of the model's labels: 'output'"):
        conserva.explain(one_output, TEXT, "height")
    network = one_output.network
    network.config.id2label = {0: "similarity"}
    assert conserva.explain(one_output, TEXT).target == "similarity"


def test_a_logit_for_two_names_speaks_for_the_second() -> None:
    task = task_of("binary by the user")
    task.network.config.id2label = {0: "irrelevant", 1: "relevant"}
    task = conserva.Text(task.network, task.tokenizer, head="binary")
    one = conserva.explain(task, TEXT)
    (logit,) = logits_of(task)
    assert (one.target, one.output) == ("relevant", pytest.approx(logit))
    assert one.probability == pytest.approx(sigmoid(logit), abs=1e-6)
    assert conserva.explain(task, TEXT, "relevant").probability == one.probability
    with pytest.raises(conserva.Error, match="'irrelevant' is not one of the model's labels: 'relevant'"):
        conserva.explain(task, TEXT, "irrelevant")


def test_steps_between_ordered_classes_are_the_logits_of_the_thresholds() -> None:
    task = task_of("ordinal, four thresholds")
    assert list(task.labels) == ["0", "1", "2", "3", "4"]
    for k, logit in enumerate(logits_of(task)):
        assert conserva.explain(task, TEXT, f"{k + 1} - {k}", method="exact").output == pytest.approx(logit, abs=1e-9)
    names = dict(enumerate(("poor", "fair", "good", "great", "best")))
    task.network.config.id2label = names
    assert list(task.labels) == list(names.values())
    assert conserva.explain(task, TEXT, "poor").output == pytest.approx(outputs_by_hand("ordinal", logits_of(task))[0])


@pytest.mark.parametrize("falling", [(3.0, 0.1), (2.0, -0.5), (-1.0, -4.0), (5.0, 4.0)])
def test_the_predicted_class_is_above_as_many_thresholds_as_are_passed(falling: tuple[float, ...]) -> None:
    scores = outputs_by_hand("ordinal", list(falling))
    assert scores.index(max(scores)) == sum(x > 0 for x in falling)


def test_probabilities_of_ordered_classes_sum_to_one() -> None:
    logits = torch.tensor([[4.0, 1.0, -2.0], [0.3, 0.2, 0.1]], dtype=torch.float64)
    scores = torch.tensor([outputs_by_hand("ordinal", row) for row in logits.tolist()], dtype=torch.float64)
    found = OUTPUT_HEADS["ordinal"].probabilities(scores)
    assert found.sum(-1).tolist() == pytest.approx([1, 1])
    assert found[0].tolist() == pytest.approx(by_hand("ordinal", logits[0].tolist()))


def test_what_is_no_head_is_refused() -> None:
    task = task_of("three labels")
    with pytest.raises(conserva.Error, match=r"head='softmax' is unknown: choose one of single_label, multi_label"):
        conserva.Text(task.network, task.tokenizer, head="softmax")
    with pytest.raises(conserva.Error, match="is for one logit, but the model returns 3"):
        conserva.explain(conserva.Text(task.network, task.tokenizer, head="binary"), TEXT)

    class Config:
        problem_type, num_labels = "multilabel", 3

    with pytest.raises(conserva.Error, match=r"problem_type='multilabel' is unknown.*head="):
        configured_head(Config())
    assert configured_head(None) is OUTPUT_HEADS["single_label"]


@pytest.mark.parametrize("case", ["one output", "one output, said so", "a reranker's plain score", "three outputs"])
def test_nothing_about_a_regression_speaks_of_probabilities(case: str, tmp_path: Path) -> None:
    task = task_of(case)
    one = conserva.explain(task, TEXT, 0)
    printed = io.StringIO()
    console = Console(file=printed, width=120)
    show([one], console)
    compare({"gi": one, "exact": conserva.explain(task, TEXT, 0, method="exact")}, console)
    followed = conserva.trace(task, TEXT, 0)
    for shown in (printed.getvalue(), page([one]), one._repr_html_(), trace_page(followed)):
        assert "probab" not in shown
        assert "output" in shown
    stored = conserva.Explanation.load(one.save(tmp_path / "one.json"))
    assert stored == one
    assert stored.probability is None
    one.save(tmp_path / "one.png")


@pytest.mark.parametrize("case", ["multi-label BART", "a cross-encoder's sigmoid", "three labels", "one output"])
def test_a_folder_is_loaded_with_its_head(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, head = task_of(case), CASES[case][-1]
    with quiet_loading():
        task.network.float().save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    assert conserva.load(tmp_path).head.name == head
    assert main(["explain", TEXT, "--model", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    logits = logits_of(task)
    highest = logits.index(max(logits))
    expected = by_hand(head, logits)[highest]
    assert found["probability"] == (None if expected is None else pytest.approx(expected, abs=1e-4))
    assert main(["explain", TEXT, "--model", str(tmp_path)]) == 0
    assert ("probab" in capsys.readouterr().out) == (head != "regression")
    given = conserva.load(tmp_path, head="multi_label")
    assert conserva.explain(given, TEXT).probability == pytest.approx(sigmoid(logits[highest]), abs=1e-4)


def test_a_head_is_refused_where_a_model_has_its_own(tmp_path: Path) -> None:
    network = tiny_heads.model("bert", "AutoModelForMaskedLM", **ONE)
    with quiet_loading():
        network.float().save_pretrained(tmp_path)
    tiny_heads.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        conserva.Error, match=r"head='multi_label' is for classifiers.*masked language model: leave it out"
    ):
        conserva.load(tmp_path, head="multi_label")
    one = conserva.explain(conserva.load(tmp_path), "a [MASK] of a film.")
    assert 0 < one.probability < 0.9  # a softmax of the vocabulary, whatever num_labels is


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"problem_type": "multi_label_classification"}, "multi_label"),
        ({"problem_type": "regression"}, "regression"),
        ({}, "single_label"),
    ],
)
def test_images_and_tags_have_heads_too(changes: dict[str, Any], expected: str) -> None:
    network = vit()
    tagger = tiny_heads.model("bert", "AutoModelForTokenClassification", **THREE)
    for key, value in changes.items():
        setattr(network.config, key, value)
        setattr(tagger.config, key, value)
    image, tags = conserva.Image(network), conserva.Tokens(tagger, tiny_heads.tokenizer())
    for task, given in ((image, noise()), (tags, (TEXT, "best"))):
        with torch.no_grad():
            logits = task.model(**task.batch([task.encode(given)])).logits[0].tolist()
        probability = by_hand(expected, logits)[1]
        one = conserva.explain(task, given, 1, method="gi")
        assert one.probability == (None if probability is None else pytest.approx(probability, abs=1e-6))
    with pytest.raises(conserva.Error, match="is for text classifiers"):
        conserva.Image(network, head="ordinal")
    with pytest.raises(conserva.Error, match="is for text classifiers"):
        conserva.Tokens(tagger, tiny_heads.tokenizer(), head="ordinal")


@pytest.mark.parametrize(("kind", "head"), [("CLIP", "single_label"), ("Siglip", "multi_label")])
def test_texts_beside_an_image_are_judged_as_the_model_was_trained(kind: str, head: str) -> None:
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind}Model")(clip_config(getattr(transformers, f"{kind}Config")))
    task = conserva.Image(shake(network).double(), processor(), ["a photo of a cat", "a small dog", "dog"])
    with torch.no_grad():
        logits = task.model(**task.batch([task.encode(noise())])).logits[0].tolist()
    for index, probability in enumerate(by_hand(head, logits)):
        assert conserva.explain(task, noise(), index, method="gi").probability == pytest.approx(probability, abs=1e-6)
    alone = conserva.Image(network, processor(), ["a small dog"])
    one = conserva.explain(alone, noise(), method="gi")
    assert one.probability == (None if kind == "CLIP" else pytest.approx(sigmoid(logits[1]), abs=1e-6))


CURVES = ("three labels", "multi-label BERT", "several, each after a sigmoid", "ordinal by the user")


@pytest.mark.parametrize("case", [*CURVES, "ordinal, one threshold"])
def test_curves_are_of_the_heads_probability(case: str) -> None:
    task, head = task_of(case), CASES[case][-1]
    texts = [TEXT, "a joy of a film.", "dull"]
    found = conserva.evaluate(task, texts, ["gi"], reference=False)
    whole = []
    for text in texts:
        logits = logits_of(task, text)
        outputs = outputs_by_hand(head, logits)
        whole.append(by_hand(head, logits)[outputs.index(max(outputs))])
    assert found.methods[0].curves["pruning_probability"].mean[0] == pytest.approx(np.mean(whole), abs=1e-5)
    assert found.methods[0].curves["activation"].mean[-1] == pytest.approx(np.mean(whole), abs=1e-5)
    assert found.provenance["head"] == head


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("one output", "has a regression head, but the curves need class probabilities"),
        ("three outputs", "has a regression head"),
        ("a cross-encoder's sigmoid", "has a single logit.*head='ordinal'"),
        ("one logit under a BCE loss", "has a single logit"),
    ],
)
def test_curves_need_classes(case: str, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.evaluate(task_of(case), [TEXT], ["gi"])


@pytest.mark.parametrize("case", ["one output", "a cross-encoder's sigmoid", "multi-label BERT"])
def test_an_audit_reads_every_head(case: str) -> None:
    task = task_of(case)
    assert conserva.audit(task, TEXT, rules="exact").output == pytest.approx(max(logits_of(task)))
