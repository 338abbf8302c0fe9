"""Rankings are those of sentence-transformers, and a contrast splits the difference of two outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

import torch
from torch import Tensor, nn

import conserva
import tiny_heads
from conserva.integrations.ranking import contrast, explain_ranking
from conserva.results.explanations import Explanations
from doc_pages import shown_and_printed, wrong_examples
from objects import classifier, closes, is_unchanged, snapshot
from passages import PASSAGES, QUERY, index_of
from sentence_models import cross_encoder, sentence_encoder

EXACT = {"rel": 1e-6, "abs": 1e-6}
ENTRIES = ("inputs", "positions", "biases", "gap")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cross_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sentence_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def ranking(model: Any) -> Explanations:
    return explain_ranking(model, QUERY, PASSAGES)


# Rankings.


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Identity()], ids=["sigmoid", "identity"])
def test_a_ranking_is_that_of_the_cross_encoder(tmp_path: Path, activation: nn.Module) -> None:
    model = cross_encoder(tmp_path, activation_fn=activation)
    before = snapshot(model)
    found = explain_ranking(model, QUERY, PASSAGES)
    assert is_unchanged(model, before)
    expected = model.rank(QUERY, PASSAGES)
    assert [index_of(one) for one in found] == [each["corpus_id"] for each in expected]
    shown = [one.output if one.probability is None else one.probability for one in found]
    assert shown == pytest.approx([each["score"] for each in expected], **EXACT)
    assert [one.output for one in found] == sorted((one.output for one in found), reverse=True)
    assert all(map(closes, found))


@pytest.mark.parametrize("method", ["exact", "ah+ln", "gi"])
def test_each_explanation_is_the_relevance_of_the_model(model: Any, method: str) -> None:
    for one in explain_ranking(model, QUERY, PASSAGES, method=method):
        pair = (QUERY, PASSAGES[index_of(one)])
        inputs = {key: x for key, x in model.preprocess([pair]).items() if isinstance(x, Tensor)}
        alone = conserva.relevance(model.model, inputs, rules=method)
        assert alone.ledger is not None
        assert one.ledger is not None
        assert list(one.scores) == pytest.approx(alone.scores()[0].tolist(), **EXACT)
        assert one.output == pytest.approx(float(model.predict(pair, activation_fn=nn.Identity())), **EXACT)
        for entry in ENTRIES[:-1]:
            assert getattr(one.ledger, entry) == pytest.approx(float(getattr(alone.ledger, entry)[0]), **EXACT)


def test_a_ranking_of_many_is_that_of_each_alone(model: Any, ranking: Explanations) -> None:
    for one in ranking:
        alone = explain_ranking(model, QUERY, [PASSAGES[index_of(one)]])[0]
        assert list(one.scores) == pytest.approx(list(alone.scores), **EXACT)
        assert one.output == pytest.approx(alone.output, **EXACT)
        assert (one.features, one.target, one.text) == (alone.features, alone.target, alone.text)
        small = explain_ranking(model, QUERY, PASSAGES, batch_tokens=1)
        assert [index_of(each) for each in small] == [index_of(each) for each in ranking]


def test_sections_are_the_query_and_the_passage(ranking: Explanations) -> None:
    for one in ranking:
        (query, first), (passage, _) = one.sections
        assert (query, passage) == ("query", f"passage {index_of(one)}")
        assert one.text == f"{QUERY} | {PASSAGES[index_of(one)]}"
        starts = [span[0] for span in one.offsets[first:] if span is not None]
        assert min(starts) == len(QUERY) + 3


def test_a_task_and_any_collection_of_passages(model: Any, ranking: Explanations) -> None:
    task = conserva.load(model)
    for given in (tuple(PASSAGES), np.array(PASSAGES, dtype=object), (text for text in PASSAGES)):
        assert explain_ranking(task, QUERY, given) == ranking


def test_equal_passages_keep_their_order(model: Any) -> None:
    found = explain_ranking(model, QUERY, ["a joy.", "dull", "a joy."])
    assert [index_of(one) for one in found if one.text.endswith("joy.")] == [0, 2]


def test_a_classifier_of_pairs_is_ranked_by_a_label(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path, 3)
    with pytest.raises(conserva.Error, match=r"has 3 outputs\. Choose the one to rank by: 'LABEL_0', 'LABEL_1', 'LABE"):
        explain_ranking(model, QUERY, PASSAGES)
    logits = model.predict([(QUERY, text) for text in PASSAGES], activation_fn=nn.Identity())
    for target, numbers in (
        ("LABEL_1", logits[:, 1]),
        (2, logits[:, 2]),
        ("LABEL_1 - LABEL_0", logits[:, 1] - logits[:, 0]),
    ):
        found = explain_ranking(model, QUERY, PASSAGES, target)
        assert [index_of(one) for one in found] == np.argsort(-numbers).tolist()
        assert [one.output for one in found] == pytest.approx(sorted(numbers, reverse=True), **EXACT)


def test_long_passages_are_truncated_or_explained_in_windows(tmp_path: Path) -> None:
    model, long = cross_encoder(tmp_path, max_length=24), PASSAGES[2] * 3
    with pytest.raises(conserva.Error, match="the model takes 24"):
        explain_ranking(model, QUERY, [long, "a joy."])
    cut = explain_ranking(model, QUERY, [long, "a joy."], truncate=True)
    scores = {each["corpus_id"]: each["score"] for each in model.rank(QUERY, [long, "a joy."])}
    assert {index_of(one): one.probability for one in cut} == pytest.approx(scores, **EXACT)
    whole = explain_ranking(model, QUERY, [long, "a joy."], windows=True)
    assert sum(len(one.windows) > 1 for one in whole) == 1
    for one, other in (whole, whole[::-1]):
        why = contrast(one, other)
        assert closes(why)
        assert why.windows == ()
        assert why.output == pytest.approx(one.output - other.output)


# Sentence encoders.


def test_a_sentence_encoder_ranks_by_its_similarity(encoder: Any) -> None:
    found = explain_ranking(encoder, QUERY, PASSAGES)
    expected = encoder.similarity(encoder.encode_query([QUERY]), encoder.encode_document(PASSAGES))[0]
    assert [index_of(one) for one in found] == expected.argsort(descending=True).tolist()
    assert [one.output for one in found] == pytest.approx(expected.sort(descending=True).values.tolist(), **EXACT)
    assert found[0].sections[0][0] == "query"
    assert closes(contrast(found[0], found[-1]))


@pytest.mark.parametrize(
    ("prompts", "before"),
    [
        ({"query": "search: ", "document": "text: "}, ("search: ", "text: ")),
        ({"passage": "text: "}, ("", "text: ")),
        ({"query": "search: ", "corpus": "c: ", "passage": "p: "}, ("search: ", "p: ")),
        ({"document": "", "passage": "p: "}, ("", "")),
        ({"other": "p: "}, ("", "")),
    ],
)
def test_prompts_for_queries_and_documents(tmp_path: Path, prompts: dict[str, str], before: tuple[str, str]) -> None:
    model = sentence_encoder(tmp_path)
    model.prompts = prompts
    found = explain_ranking(model, QUERY, PASSAGES)
    expected = model.similarity(model.encode_query([QUERY]), model.encode_document(PASSAGES))[0]
    assert [one.output for one in found] == pytest.approx(expected.sort(descending=True).values.tolist(), **EXACT)
    assert found[0].text == f"{before[0]}{QUERY} | {before[1]}{PASSAGES[index_of(found[0])]}"
    plain = explain_ranking(conserva.load(model), QUERY, PASSAGES)
    assert all(one.text.startswith(QUERY) for one in plain)


def test_prompts_that_are_left_out_of_the_pooling_are_refused(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path, prompts={"query": "search: "})
    model[1].include_prompt = False
    with pytest.raises(conserva.Error, match=r"leaves the tokens of its prompts \['search: ', ''\] out of its pooling"):
        explain_ranking(model, QUERY, PASSAGES)
    model.prompts = {}
    assert explain_ranking(model, QUERY, PASSAGES)


# What is refused.


@pytest.mark.parametrize(
    ("query", "passages", "says"),
    [
        (QUERY, [], "passages is empty: there is nothing to rank"),
        (QUERY, "a joy.", "passages='a joy.' is not a list of texts"),
        (QUERY, {"a": "b"}, "is not a list of texts"),
        (QUERY, None, "passages=None is not a list of texts"),
        (QUERY, ["a joy.", None], "passages has None, which is not a string"),
        (QUERY, [("a", "b")], r"passages has \('a', 'b'\), which is not a string"),
        (QUERY, ["a joy.", " "], "is empty: there is nothing to explain"),
        ([QUERY], PASSAGES, "is not a string: give one query at a time"),
        ("", PASSAGES, "is empty: there is nothing to explain"),
        (None, PASSAGES, "query=None is not a string"),
    ],
)
def test_what_is_not_a_query_with_passages_is_refused(model: Any, query: Any, passages: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        explain_ranking(model, query, passages)


def test_models_that_do_not_score_pairs_are_refused() -> None:
    task = conserva.Tokens(
        tiny_heads.model("bert", "AutoModelForTokenClassification"), tokenizer=tiny_heads.tokenizer()
    )
    with pytest.raises(conserva.Error, match="model is a Tokens, which does not score pairs of texts: give a CrossEnc"):
        explain_ranking(task, QUERY, PASSAGES)
    with pytest.raises(conserva.Error, match="without a tokenizer"):
        explain_ranking(classifier(), QUERY, PASSAGES)


def test_methods_without_a_ledger_rank_but_have_no_contrast(model: Any, ranking: Explanations) -> None:
    found = explain_ranking(model, QUERY, PASSAGES, method="rollout")
    assert [index_of(one) for one in found] == [index_of(one) for one in ranking]
    with pytest.raises(conserva.Error, match="has no ledger"):
        contrast(found[0], found[1])


def test_nothing_is_random(model: Any, ranking: Explanations) -> None:
    torch.manual_seed(7)
    assert explain_ranking(model, QUERY, PASSAGES) == ranking


@pytest.mark.parametrize("one", [explain_ranking, contrast])
def test_examples_in_docstrings(one: Any) -> None:
    assert wrong_examples(one) == ""


def test_the_page_runs_and_shows_what_it_prints(
    model: Any, encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sentence_transformers.CrossEncoder", lambda name: model)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", lambda name: encoder)
    shown, printed = shown_and_printed("sentence_transformers")
    assert printed == shown
    assert {path.name for path in tmp_path.iterdir()} == {"why.html"}
