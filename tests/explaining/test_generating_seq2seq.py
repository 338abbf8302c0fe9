"""Whole answers of encoder-decoders, token by token: each row is what the token alone would get."""

from __future__ import annotations

import copy
import logging
import warnings

import pytest
import torch
from transformers.utils.logging import warning_once

import conserva
from conserva.results.generation import Generation
from conserva.tasks.seq2seq import Seq2Seq
from writers import KINDS, pieces, writer

SOURCE, ANSWER = "a dog slept under the tree", "the dog sat on a mat"


@pytest.mark.parametrize("kind", ["t5", "bart", "umt5"])
@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
def test_the_matrix_equals_its_rows(kind: str, rules: str) -> None:
    task = writer(kind)
    whole = conserva.explain_generation(task, SOURCE, continuation=ANSWER, method=rules)
    words = ANSWER.split()
    assert len(whole.steps) == len(words)
    for i, word in enumerate(words):
        so_far = " ".join(words[:i])
        target = f" {word}" if i or kind != "bart" else word
        one = conserva.explain(task, (SOURCE, so_far), target, method=rules)
        row = whole.row(i)
        assert row.features == one.features
        assert row.special == one.special
        assert row.sections == one.sections
        assert row.scores == pytest.approx(one.scores, abs=1e-10)
        assert row.output == pytest.approx(one.output, abs=1e-10)
        assert row.probability == pytest.approx(one.probability, abs=1e-6)
        for entry in ("inputs", "positions", "biases", "gap"):
            assert getattr(row.ledger, entry) == pytest.approx(getattr(one.ledger, entry), abs=1e-10)
        assert whole.steps[i].token == whole.features[whole.start + i] == target
    assert whole.start == len(task.encode(SOURCE))
    assert whole.written == ANSWER


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_close_for_every_token(kind: str) -> None:
    whole = conserva.explain_generation(writer(kind), SOURCE, tokens=6, method="exact")
    assert 1 <= len(whole.steps) <= 6
    for step in whole.steps:
        assert abs(step.ledger.gap) < 1e-10
        assert sum(step.scores) == pytest.approx(step.ledger.inputs, abs=1e-10)
    assert len(whole.features) == whole.start + len(whole.steps)
    assert whole.sections[0] == ("source", len(writer(kind).encode(SOURCE).source))
    assert Generation.from_json(whole.to_json()) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_most_likely_token_is_written_each_time(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    task = writer(kind)
    before = task.network.generation_config.to_dict()
    talks = logging.getLogger("transformers")  # which passes nothing on to other loggers
    warning_once.cache_clear()
    talks.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            written = task.generated(task.encode(SOURCE), 7)
    finally:
        talks.removeHandler(caplog.handler)
    assert (caplog.records, warned) == ([], [])
    assert task.network.generation_config.to_dict() == before
    read = torch.tensor([task.start])
    source = task.tokenizer(SOURCE, return_tensors="pt")["input_ids"]
    expected: list[int] = []
    with torch.no_grad():
        while len(expected) < 7 and (not expected or expected[-1] != task.tokenizer.eos_token_id):
            expected.append(int(task.network(input_ids=source, decoder_input_ids=read).logits[0, -1].argmax()))
            read = torch.cat([read, torch.tensor([expected[-1:]])], 1)
    assert written == expected


def test_an_answer_ends_with_its_mark() -> None:
    task = Seq2Seq(copy.deepcopy(writer("bart").network), writer("bart").tokenizer)
    task.network.final_logits_bias[0, task.tokenizer.eos_token_id] = 1e3
    whole = conserva.explain_generation(task, SOURCE)
    assert [step.token for step in whole.steps] == ["</s>"]
    assert (whole.special[-1], whole.written) == (True, "")


def test_an_answer_ends_where_the_decoder_does() -> None:
    task = writer("bart")
    assert len(task.generated(task.encode(SOURCE), 100)) <= 24 - len(task.start)
    full = task.pair(task.encode(SOURCE).source, (2,) * 24)
    with pytest.raises(conserva.Error, match="24 tokens, the maximum of the model"):
        task.generated(full, 1)


def test_a_beginning_is_read_and_not_explained() -> None:
    task = writer("t5")
    rest = conserva.explain_generation(task, (SOURCE, "the dog"), continuation=" sat on", method="exact")
    whole = conserva.explain_generation(task, SOURCE, continuation="the dog sat on", method="exact")
    assert rest.features == whole.features
    assert rest.start == whole.start + 2
    for one, same in zip(rest.matrix(), whole.matrix()[2:], strict=True):
        assert one == pytest.approx(same, abs=1e-10)


def test_the_gap_of_a_log_probability_is_minus_the_entropy() -> None:
    task = writer("bart")
    whole = conserva.explain_generation(task, SOURCE, continuation=ANSWER, method="exact", score="log-probability")
    inputs = task.batch([task.pair(task.encode(SOURCE).source, (*task.start, *task.vocabulary.pieces(ANSWER)))])
    del inputs["read"]
    with torch.no_grad():
        logs = task.model(**inputs).logits[0, len(task.start) - 1 :].log_softmax(-1)
    for step, row, token in zip(whole.steps, logs, task.vocabulary.pieces(ANSWER), strict=False):
        assert step.output == pytest.approx(float(row[token]), abs=1e-10)
        assert step.ledger.gap == pytest.approx(float((row.exp() * row).sum()), abs=1e-10)


def test_the_likeliest_tokens_are_told() -> None:
    whole = conserva.explain_generation(writer("t5"), SOURCE, tokens=3)
    for step in whole.steps:
        assert step.others[0] == (step.token, pytest.approx(step.probability, abs=1e-6))
        assert [share for _, share in step.others] == sorted((share for _, share in step.others), reverse=True)


def test_rule_sets_keep_their_options() -> None:
    task = writer("t5")
    plain, other = (
        conserva.explain_generation(task, SOURCE, continuation="the", method=name)
        for name in ("exact", "exact:gamma=0.5")
    )
    assert other.method == "exact:gamma=0.5"
    alone = conserva.explain(task, SOURCE, "the", method="exact:gamma=0.5")
    assert other.row(0).scores == pytest.approx(alone.scores, abs=1e-10)
    assert other.row(0).scores != pytest.approx(plain.row(0).scores, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "gae"}, "'gae' cannot explain a generation"),
        ({"method": "exact:at=embeddings"}, "at the inputs"),
        ({"score": "margin"}, "score='margin'"),
        ({"continuation": ""}, "continuation='' is empty"),
        ({"continuation": 7}, "continuation=7 is not a string"),
        ({"tokens": 0}, "tokens=0 is not a positive integer"),
        ({"inputs": ""}, "is empty"),
        ({"task": pieces()}, "does not generate text: use conserva.Causal"),
    ],
)
def test_what_cannot_be_explained_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.explain_generation(**{"task": writer("t5"), "inputs": SOURCE, **changes})


def test_progress_is_told() -> None:
    told: list[int] = []
    found = conserva.explain_generation(writer("t5"), SOURCE, tokens=3, progress=told.append)
    assert sum(told) == len(found.steps)
