"""A pair of texts is one input of a text classifier: a tuple of two strings, read as one sequence."""

from __future__ import annotations

import copy
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import conserva
import tiny_heads
import writers
from conserva.cli import main
from conserva.datasets import Labelled
from conserva.models.quiet import quiet_loading
from conserva.views.explanation_page import page

PAIR = ("a man eats an unwatchably good meal.", "someone is eating.")
PAIRS = [PAIR, ("dull", "a joy of a film, and long."), ("a joy.", "dull")]
KINDS = ("bert", "roberta", "deberta-v2", "distilbert", "electra", "bart", "modernbert")


@cache
def bytes_tokenizer() -> Any:
    """Return a tokenizer as RoBERTa's: <s> first </s></s> second </s>, without token types."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator([" ".join(pair) for pair in PAIRS] * 3, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=120, model_input_names=inputs, **names)


@cache
def task_of(kind: str, **changes: Any) -> conserva.Text:
    tokenizer = bytes_tokenizer() if kind in ("roberta", "bart") else tiny_heads.tokenizer()
    changes = {"num_labels": 3, "pad_token_id": tokenizer.pad_token_id, **changes}
    changes["eos_token_id"] = tokenizer.sep_token_id
    network = tiny_heads.model(kind, "AutoModelForSequenceClassification", **changes)
    return conserva.Text(network, tokenizer, kind)


def by_hand(task: conserva.Text, pair: tuple[str, str]) -> dict[str, torch.Tensor]:
    """Return what Hugging Face asks the model with."""
    found = task.tokenizer(*pair, return_tensors="pt")
    takes = inspect.signature(task.network.forward).parameters
    return {name: x for name, x in found.items() if name in takes}


@pytest.mark.parametrize("method", ["exact", "ah+ln", "gi"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_explained_as_the_tokenizer_puts_it(kind: str, method: str) -> None:
    task = task_of(kind)
    one = conserva.explain(task, PAIR, method=method)
    assert isinstance(one, conserva.Explanation)
    inputs = by_hand(task, PAIR)
    expected = conserva.relevance(task.network, inputs, rules=method)
    np.testing.assert_allclose(one.scores, expected.scores()[0].numpy(), atol=1e-10)
    assert one.output == pytest.approx(float(expected.output[0]), abs=1e-10)
    assert one.ledger.positions == pytest.approx(float(expected.ledger.positions[0]), abs=1e-10)
    assert one.text == " | ".join(PAIR)
    assert method != "exact" or tiny_heads.closes(one)


@pytest.mark.parametrize("kind", KINDS)
def test_both_texts_have_their_section(kind: str) -> None:
    task = task_of(kind)
    one = conserva.explain(task, PAIR, method="gi")
    (first, count), (second, others) = one.sections
    assert (first, second) == ("first text", "second text")
    assert count + others == len(one.features)
    whole = one.merged().visible()
    border = whole.sections[0][1]
    words = [feature.strip() for feature in whole.features]
    assert "".join(words[:border]) == PAIR[0].replace(" ", "")
    assert "".join(words[border:]) == PAIR[1].replace(" ", "")
    encoded = task.encode(PAIR)
    there = [encoded.text[slice(*span)].strip() for span in encoded.spans if span is not None]
    assert "".join(there) == "".join(PAIR).replace(" ", "")
    stored = conserva.Explanation.from_json(one.to_json())
    assert stored == one
    shown = page([one])
    assert "first text" in shown
    assert "second text" in shown


def test_the_model_is_told_which_token_is_whose() -> None:
    bert, distilbert, roberta = (task_of(kind) for kind in ("bert", "distilbert", "roberta"))
    encoded = bert.encode(PAIR)
    inputs = bert.batch([encoded])
    assert inputs["token_type_ids"].tolist() == by_hand(bert, PAIR)["token_type_ids"].tolist()
    for task in (distilbert, roberta):
        assert "token_type_ids" not in task.batch([task.encode(PAIR)])
    assert "token_type_ids" not in bert.batch([bert.encode("a joy.")])
    without = task_of("bert", type_vocab_size=1)
    assert conserva.explain(without, PAIR).sections
    assert conserva.explain(bert, PAIR).output != pytest.approx(
        conserva.explain(bert, tuple(reversed(PAIR)), conserva.explain(bert, PAIR).target).output
    )


@pytest.mark.parametrize("kind", KINDS)
def test_many_pairs_equal_single_ones(kind: str) -> None:
    task = task_of(kind)
    many = conserva.explain(task, PAIRS, 1, method="exact", batch_tokens=1000)
    assert [one.text for one in many] == [" | ".join(pair) for pair in PAIRS]
    for pair, one in zip(PAIRS, many, strict=True):
        alone = conserva.explain(task, pair, 1, method="exact")
        assert (one.features, one.sections, one.words) == (alone.features, alone.sections, alone.words)
        np.testing.assert_allclose(one.scores, alone.scores, atol=1e-9)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_texts_and_pairs_may_come_together(kind: str) -> None:
    task = task_of(kind)
    given = ["a joy.", PAIR, "dull, and long.", PAIRS[1]]
    many = conserva.explain(task, given, [0, 1, 2, None], batch_tokens=1000)
    for one, text, target in zip(many, given, [0, 1, 2, None], strict=True):
        alone = conserva.explain(task, text, target)
        np.testing.assert_allclose(one.scores, alone.scores, atol=1e-9)
        assert one.sections == alone.sections
    assert [len(one.sections) for one in many] == [0, 2, 0, 2]


@pytest.mark.parametrize("method", conserva.methods())
def test_every_method_takes_a_pair(method: str) -> None:
    task = conserva.load()
    one = conserva.explain(task, PAIR, method=method)
    assert len(one.scores) == len(task.encode(PAIR))
    assert [name for name, _ in one.sections] == ["first text", "second text"]
    many = conserva.explain(task, [PAIR, PAIRS[1]], method=method)
    np.testing.assert_allclose(many[0].scores, one.scores, atol=2e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_a_long_pair_is_refused_or_cut_by_choice(kind: str) -> None:
    task = task_of(kind)
    pair = ("good " * 200, "a joy.")
    with pytest.raises(conserva.Error, match="tokens, the model takes"):
        conserva.explain(task, pair)
    cut = conserva.explain(task, pair, truncate=True, method="gi")
    assert len(cut.features) == task.longest
    (_, first), (_, second) = cut.sections
    assert second == len(task.encode(("x", "a joy.")).tokens) - task.encode(("x", "a joy.")).border
    ids = task.tokenizer(*pair, truncation=True, max_length=task.longest)["input_ids"]
    assert list(task.encode(pair, truncate=True).ids) == ids
    assert first > second


def test_a_trace_and_an_audit_are_of_one_pair() -> None:
    task = task_of("bert")
    followed = conserva.trace(task, PAIR, method="exact")
    one = conserva.explain(task, PAIR, method="exact")
    np.testing.assert_allclose(followed.scores[0], one.scores, atol=1e-9)
    assert followed.sections == one.sections
    audit = conserva.audit(task, PAIR, rules="exact")
    assert (audit.samples, audit.output) == (1, pytest.approx(one.output))
    assert conserva.audit(task, PAIRS, 0, rules="gi").samples == 3


@pytest.mark.parametrize(
    "given",
    [("a",), ("a", "b", "c"), ("a", 3), (3, "a"), ("a", None), (), ("a", ("b", "c"))],
)
@pytest.mark.parametrize("listed", [False, True])
def test_other_tuples_are_refused(given: Any, listed: bool) -> None:
    task = task_of("bert")
    with pytest.raises(conserva.Error, match=r"takes a text, or a pair of texts as \(text, text\)"):
        conserva.explain(task, [given] if listed else given)
    with pytest.raises(conserva.Error, match=r"takes a text, or a pair of texts as \(text, text\)"):
        conserva.audit(task, [given] if listed else given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("a", ""), "in the pair .* is empty"),
        (("  ", "b"), "in the pair .* is empty"),
        (("a \udcff joy", "b"), "half a character"),
        (("a", "[SEP]"), "both texts must have tokens"),
        (["a", ("b", "")], "is empty"),
        ([["a", "b", "c"]], "takes a text, or a pair"),
        ([["a", 3]], "takes a text, or a pair"),
    ],
)
def test_broken_pairs_are_refused(given: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task_of("bert"), given)


def test_a_list_of_two_strings_is_two_texts() -> None:
    two = conserva.explain(task_of("bert"), list(PAIR))
    assert [one.text for one in two] == list(PAIR)
    assert not two[0].sections


def tasks_without_pairs() -> dict[str, tuple[conserva.Text | Any, Any]]:
    tokenizer = tiny_heads.tokenizer()
    return {
        "Seq2Seq": (writers.writer("t5"), ("the cat", "sat", "on")),
        "Tokens": (
            conserva.Tokens(tiny_heads.model("bert", "AutoModelForTokenClassification"), tokenizer),
            ("a joy", "dull", "long"),
        ),
        "Similarity": (
            conserva.Similarity(tiny_heads.model("bert", "AutoModel"), tokenizer),
            ("a joy", "dull", "long"),
        ),
        "Question": (
            conserva.Question(tiny_heads.model("bert", "AutoModelForQuestionAnswering"), tokenizer),
            ("who?", "me", "you"),
        ),
    }


@pytest.mark.parametrize("name", ["Seq2Seq", "Tokens", "Similarity", "Question"])
def test_a_tuple_with_texts_is_not_several_inputs(name: str) -> None:
    task, given = tasks_without_pairs()[name]
    with pytest.raises(conserva.Error):
        conserva.explain(task, given)
    with pytest.raises(conserva.Error):
        conserva.audit(task, given)


def nli() -> conserva.Text:
    labels = {0: "refuted", 1: "neutral", 2: "supported"}
    return task_of_labels(tuple(labels.items()))


@cache
def task_of_labels(labels: tuple[tuple[int, str], ...]) -> conserva.Text:
    task = task_of("bert", max_position_embeddings=127)
    network = copy.deepcopy(task.network)
    network.config.id2label = dict(labels)
    return conserva.Text(network, task.tokenizer, "bert")


@pytest.mark.parametrize("label", ["entailment", "not_entailment", "CONTRADICTION", "Paraphrase", "not paraphrased"])
def test_a_model_of_a_relation_refuses_single_texts(label: str) -> None:
    task = task_of_labels(((0, "neutral"), (1, label), (2, "other")))
    says = "is one text, but bert compares two: give a pair"
    for given in ("a joy.", ["a joy.", "dull"], ["a joy.", "dull", "long"], iter(["a joy."])):
        with pytest.raises(conserva.Error, match=says):
            conserva.explain(task, given)
    with pytest.raises(conserva.Error, match=says):
        conserva.evaluate(task, [("a joy.", 1)], ["gi"], reference=False)
    assert conserva.explain(task, PAIR).sections
    assert len(conserva.explain(task, [PAIR, PAIRS[1]])) == 2


def test_audits_and_doctors_of_relations_use_pairs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    task = task_of_labels(((0, "neutral"), (1, "entailment"), (2, "contradiction")))
    task.network.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    assert main(["audit", str(tmp_path), "--rules", "exact", "--text", "A man eats.", "--with", "He eats."]) == 0
    capsys.readouterr()
    assert main(["audit", str(tmp_path), "--text", "A man eats."]) == 1
    assert "is one text, but" in capsys.readouterr().err


SPELLINGS: dict[str, tuple[list[Any], tuple[Any, ...], tuple[Any, ...] | None]] = {
    "texts": (["a joy.", "dull"], ("a joy.", "dull"), None),
    "texts with names": (
        [("a joy.", "neutral"), ("dull", "Supported")],
        ("a joy.", "dull"),
        ("neutral", "Supported"),
    ),
    "texts with indices": ([("a joy.", 1), ["dull", 0]], ("a joy.", "dull"), (1, 0)),
    "pairs with names": ([(PAIR, "neutral"), (PAIRS[1], "supported")], tuple(PAIRS[:2]), ("neutral", "supported")),
    "pairs with indices, as lists": ([[list(PAIR), 1], [list(PAIRS[1]), 2]], tuple(PAIRS[:2]), (1, 2)),
    "pairs without labels": ([(PAIR, None), (PAIRS[1], None)], tuple(PAIRS[:2]), None),
    "both": ([(PAIR, 0), ("a joy.", 1)], (PAIR, "a joy."), (0, 1)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_data_is_texts_or_pairs_with_labels(spelling: str) -> None:
    data, texts, labels = SPELLINGS[spelling]
    found = nli().labelled(data)
    assert (found.texts, found.labels) == (texts, labels)
    assert conserva.evaluate(nli(), data, ["gi"], reference=False).samples == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([PAIR, PAIRS[1]], r"is not one of the model's labels.*\(\(text, text\), label\), or \(\(text, text\), None\)"),
        ([("a joy.", "positiv")], "'positiv' of row 1 is not one of the model's labels: 'refuted', 'neutral'"),
        ([("a joy.", "neutral"), PAIR], "of row 2 is not one"),
        ([(PAIR, None), (PAIR, 1)], "1 of 2 entries with the label None"),
        ([(("a", "b", "c"), 1)], "neither a text nor a pair of texts"),
        ([(3, 1)], "neither a text nor a pair of texts"),
        ([(PAIR, "yes")], "'yes' of row 1 is not one of the model's labels"),
        ([("a", "b", "c")], "its entries differ"),
        (PAIR, "is ambiguous, a pair or two texts"),
    ],
)
def test_data_that_may_mean_two_things_is_refused(data: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.evaluate(nli(), data, ["gi"])


@pytest.mark.parametrize("mask", ["unk", "mask", "pad", "drop"])
def test_curves_of_pairs_take_tokens_of_both_texts_away(mask: str) -> None:
    task = nli()
    data = [(pair, i % 3) for i, pair in enumerate(PAIRS)]
    found = conserva.evaluate(task, data, ["gi", "random"], mask=mask, steps="each")
    assert [one.method for one in found.methods] == ["gi", "random", "leave-one-out"]
    whole = []
    for pair in PAIRS:
        with torch.no_grad():
            logits = task.network(**by_hand(task, pair)).logits[0]
        whole.append(float(logits.softmax(-1).max()))
    for one in found.methods:
        assert one.curves["activation"].mean[-1] == pytest.approx(np.mean(whole), abs=1e-5)
    same = conserva.evaluate(
        task, Labelled(tuple(PAIRS), (0, 1, 2), "pairs"), ["gi", "random"], mask=mask, steps="each"
    )
    assert same.methods == found.methods


def test_rows_of_a_pair_keep_their_types() -> None:
    task = nli()
    encoded = [task.encode(pair) for pair in PAIRS]
    parts = [task.masked(one, np.ones((2, len(one)), dtype=bool), "mask") for one in encoded]
    alone = task.masked(task.encode("a joy."), np.ones((1, 5), dtype=bool), "mask")
    stacked = task.stack([*parts, alone])
    types = stacked["token_type_ids"]
    assert types.shape == stacked["input_ids"].shape
    for i, one in enumerate(encoded):
        assert types[2 * i, : len(one)].tolist() == list(one.token_types)
    assert not types[-1].any()
    shifted = task.encode(("a man", "eats an unwatchably good meal. someone is eating."))
    assert len({one.key for one in [*encoded, shifted]}) == 4


def test_a_bias_study_refuses_pairs() -> None:
    with pytest.raises(conserva.Error, match="a bias study takes single texts, not pairs"):
        conserva.bias(nli(), [(PAIR, None)], {"a": ["man"], "b": ["someone"]}, target="supported - neutral")


def test_the_command_line_takes_a_second_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = task_of("electra")
    with quiet_loading():
        task.network.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    given = [PAIR[0], "--with", PAIR[1], "--model", str(tmp_path), "--json"]
    assert main(["explain", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [name for name, _ in found["sections"]] == ["first text", "second text"]
    assert found["scores"] == pytest.approx(conserva.explain(task, PAIR).scores, abs=1e-3)
    assert (
        main(["compare", PAIR[0], "--with", PAIR[1], "--model", str(tmp_path), "--methods", "gi,exact", "--json"]) == 0
    )
    both = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in both["explanations"] if one["sections"]] == ["gi", "exact"]
    assert main(["explain", PAIR[0], "--with", " ", "--model", str(tmp_path)]) == 1
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("entailment", ["premise", "hypothesis"]),
        ("CONTRADICTION", ["premise", "hypothesis"]),
        ("paraphrase", ["first text", "second text"]),
        ("LABEL_1", ["first text", "second text"]),
    ],
)
def test_the_texts_of_a_pair_are_named_by_the_labels(label: str, names: list[str]) -> None:
    one = conserva.explain(task_of_labels(((0, "neutral"), (1, label), (2, "other"))), PAIR)
    assert [name for name, _ in one.sections] == names
