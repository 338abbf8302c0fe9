"""A whole generation: every written token explained by all tokens before it, many from one pass."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import conserva
from conserva.engine.constants import Unbatchable
from conserva.engine.ledger import Ledger
from conserva.engine.passes import Pass
from conserva.errors import OutOfMemory
from conserva.explaining import generate_causal as generating
from conserva.explaining import generation_request
from conserva.explaining.generate import explain_generation
from conserva.results.generation import Generation
from conserva.tasks import Causal
from conserva.tasks.fingerprint import fingerprint
from language import BEGIN, END, KINDS, TEMPLATE, byte_tokenizer, causal, language_model
from made_up_prompts import ANSWER, PROMPT

PIECES = (" Paris", ".", " Rome")


@pytest.fixture(scope="module")
def task() -> Causal:
    return causal()


def same(ours: Generation, theirs: Generation, within: float = 1e-7) -> None:
    assert ours.features == theirs.features
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=within)
        assert one.output == pytest.approx(other.output, abs=within)
        assert one.ledger.biases == pytest.approx(other.ledger.biases, abs=within)


@pytest.mark.parametrize("method", ["exact", "ah+ln", "attnlrp", "exact:gamma=0.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_is_its_rows_one_by_one(kind: str, method: str) -> None:
    task = causal(kind)
    before = fingerprint(task.network)
    found = explain_generation(task, PROMPT, continuation=ANSWER, method=method)
    assert found.features == (BEGIN, "The", " capital", " of", " France", " is", *PIECES)
    assert (found.start, found.text, found.written) == (6, PROMPT, ANSWER)
    assert found.words == (None, 0, 1, 2, 3, 4, 5, 5, 6)
    for i, step in enumerate(found.steps):
        prefix = PROMPT + "".join(PIECES[:i])
        alone = conserva.explain(task, prefix, task.vocabulary.pieces(PIECES[i])[0], method=method)
        assert step.token == PIECES[i] == alone.target
        assert len(step.scores) == 6 + i == len(alone.features)
        assert step.scores == pytest.approx(alone.scores, abs=1e-6)
        assert step.output == pytest.approx(alone.output, abs=1e-6)
        assert step.probability == pytest.approx(alone.probability, rel=1e-5)
        assert vars(step.ledger) == pytest.approx(vars(alone.ledger), abs=2e-6)
        shares = [share for _, share in step.others]
        assert len(shares) == 5
        assert shares == sorted(shares, reverse=True)
        assert step.others[0][0] == conserva.explain(task, prefix).target
    assert fingerprint(task.network) == before
    again = explain_generation(task, PROMPT, continuation=ANSWER, method=method, fingerprint=True)
    assert again.provenance["weights"] == before
    assert "weights" not in found.provenance
    assert found.method == method


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_of_every_logit_close(kind: str) -> None:
    found = explain_generation(causal(kind), PROMPT, continuation=ANSWER)
    for step in found.steps:
        assert abs(step.ledger.gap) < (1e-9 if kind == "gpt2" else 1e-6) * (1 + abs(step.output))
        assert sum(step.scores) == pytest.approx(step.ledger.inputs, abs=1e-9)
    matrix = found.matrix()
    for i, row in enumerate(matrix):
        assert row[6 + i :] == [0.0] * (3 - i)  # nothing comes from what was not yet written
        assert all(row[: 6 + i])


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_probability_leaves_minus_the_entropy(kind: str) -> None:
    task = causal(kind)
    found = explain_generation(task, PROMPT, continuation=ANSWER, score="log-probability")
    ids = [*task.encode(PROMPT).ids, *task.vocabulary.pieces(ANSWER)]
    with torch.no_grad():
        chances = task.network(torch.tensor([ids])).logits[0, 5:-1].log_softmax(-1)
    for step, logs, token in zip(found.steps, chances, ids[6:], strict=True):
        entropy = -float((logs.exp() * logs).sum())
        assert entropy > 1
        assert step.output == pytest.approx(float(logs[token]), abs=1e-9)
        assert step.ledger.gap == pytest.approx(-entropy, abs=1e-9 if kind == "gpt2" else 1e-6)
        assert step.probability == pytest.approx(float(logs[token].exp()))
    assert found.row(0).target == "log-probability of ' Paris'"


# One pass for many.


def side_by_side(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    monkeypatch.setattr(generating, "_copies", lambda task, length, steps: copies)


@pytest.mark.parametrize("score", ["logit", "log-probability"])
@pytest.mark.parametrize("copies", [2, 3, 4, 7, 30])
def test_copies_side_by_side_equal_one(task: Causal, copies: int, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = " Paris. Rome is in Italy."
    alone = explain_generation(task, PROMPT, continuation=answer, score=score)
    assert len(alone.steps) == 7
    side_by_side(monkeypatch, copies)
    same(explain_generation(task, PROMPT, continuation=answer, score=score), alone)


@pytest.mark.parametrize(("room", "passes"), [(2**29, [7]), (20_000, [4, 3]), (1, [1] * 7)])
def test_what_one_pass_leaves_fits_into_memory(
    task: Causal, room: int, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, done = " Paris. Rome is in Italy.", []
    whole = explain_generation(task, PROMPT, continuation=answer)
    monkeypatch.setattr(generating, "KEPT_BYTES", room)
    same(explain_generation(task, PROMPT, continuation=answer, progress=done.append), whole)
    assert done == passes


def test_copies_that_do_not_fit_are_halved(task: Causal, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, tried = explain_generation(task, PROMPT, continuation=ANSWER), []
    explain = generation_request.relevance

    def cramped(model: nn.Module, inputs: Any, **how: Any) -> Any:
        tried.append(len(inputs["input_ids"]))
        if tried[-1] > limit:
            raise OutOfMemory("full")
        return explain(model, inputs, **how)

    monkeypatch.setattr(generation_request, "relevance", cramped)
    side_by_side(monkeypatch, 3)
    limit = 1
    same(explain_generation(task, PROMPT, continuation=ANSWER), whole)
    assert tried == [3, 1]
    limit = 0
    with pytest.raises(OutOfMemory, match="full"):
        explain_generation(task, PROMPT, continuation=ANSWER)


@pytest.mark.parametrize("score", ["logit", "log-probability"])
def test_copies_whose_books_cannot_be_told_apart(task: Causal, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, explain = explain_generation(task, PROMPT, continuation=ANSWER, score=score), Pass.__call__

    def one_at_a_time(self: Pass, call: Any, targets: Any) -> Any:
        if call.samples() > 1:
            raise Unbatchable
        return explain(self, call, targets)

    monkeypatch.setattr(Pass, "__call__", one_at_a_time)
    side_by_side(monkeypatch, 3)
    same(explain_generation(task, PROMPT, continuation=ANSWER, score=score), alone)


# What is written.


class _Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_model_writes_the_likeliest_tokens(task: Causal) -> None:
    # Of no use here, which transformers would say.
    task.network.generation_config.update(temperature=0.5, top_k=3, max_length=20)
    done: list[int] = []
    said, logger = _Said(), logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(said)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = explain_generation(task, PROMPT, tokens=4, progress=done.append)
    finally:
        logger.removeHandler(said)
        logger.setLevel(level)
    assert not said.lines
    assert done == [4]
    prefix = list(task.encode(PROMPT).ids)
    for step in found.steps:
        with torch.no_grad():
            prefix.append(int(task.network(torch.tensor([prefix])).logits[0, -1].argmax()))
        assert step.token == task.vocabulary.text(prefix[-1]) == step.others[0][0]
    assert found.written == task.tokenizer.decode(prefix[6:])


def test_the_end_of_the_text_is_the_last_step() -> None:
    task = causal()
    second = explain_generation(task, PROMPT, tokens=3).steps[1].token
    task.network.generation_config.eos_token_id = task.vocabulary[second]
    assert [step.token for step in explain_generation(task, PROMPT, tokens=3).steps][1:] == [second]
    given = explain_generation(task, PROMPT, continuation=f" Paris{END}")
    assert given.features[6:] == (" Paris", END)
    assert given.special[6:] == (False, True)
    assert given.written == " Paris"


def test_a_chat_is_answered() -> None:
    task = causal()
    task.tokenizer.chat_template = TEMPLATE
    found = explain_generation(task, [{"role": "user", "content": "Rome"}], continuation="Paris")
    assert found.text == f"[user]Rome{END}[assistant]"
    assert "".join(found.features) == f"{found.text}Paris"
    assert [step.token for step in found.steps] == ["Paris"]


def test_a_generation_is_saved_and_read_again(task: Causal) -> None:
    found = explain_generation(task, PROMPT, continuation=ANSWER)
    assert Generation.from_json(found.to_json()) == found
    span = found.span(0, 2)
    assert span.output == pytest.approx(sum(step.output for step in found.steps))
    assert isinstance(span.ledger, Ledger)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"inputs": ""}, "prompt='' is empty"),
    "several prompts": ({"inputs": [PROMPT]}, "is neither a text nor a chat"),
    "empty continuation": ({"continuation": ""}, "continuation='' is empty or not a string"),
    "no text": ({"continuation": 3}, "continuation=3 is empty or not a string"),
    "no tokens": ({"tokens": 0}, "tokens=0 is not a positive integer"),
    "too many tokens": (
        {"tokens": 60},
        "tokens=60 after a prompt of 6 tokens makes 65 input tokens, but the model's maximum is",
    ),
    "too long": ({"continuation": " Rome" * 60}, "makes 65 input tokens, but the model's maximum is 64: shorten"),
    "other methods": ({"method": "ig"}, "method='ig' cannot explain a generation"),
    "other places": ({"method": "exact:at=embeddings"}, "at the inputs"),
    "unknown method": ({"method": "lime"}, "method='lime' is unknown"),
    "unknown score": ({"score": "p"}, "score='p' is neither 'logit' nor 'log-probability'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_explained_is_refused(task: Causal, name: str) -> None:
    given, message = BAD[name]
    with pytest.raises(conserva.Error) as error:
        explain_generation(task, **{"inputs": PROMPT, **given})
    assert message in str(error.value)


def test_the_longest_text_is_taken(task: Causal) -> None:
    assert len(explain_generation(task, PROMPT, continuation=" Rome" * 59).steps) == 59


def test_only_language_models_write(task: Causal) -> None:
    with pytest.raises(conserva.Error, match="does not generate text: use"):
        explain_generation(conserva.load(), PROMPT)  # type: ignore[arg-type]


# Weights that lie elsewhere, or are no tensors.


def _dispatched(model: nn.Module, folder: Path) -> nn.Module:
    from accelerate import dispatch_model

    return dispatch_model(model, {"": "cpu"}, force_hooks=True)


def _offloaded(model: nn.Module, folder: Path) -> nn.Module:
    from accelerate import cpu_offload

    return cpu_offload(model, torch.device("cpu"))


def _on_disk(model: nn.Module, folder: Path) -> nn.Module:
    from accelerate import disk_offload

    return disk_offload(model, folder, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("move", [_dispatched, _offloaded, _on_disk])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_that_are_fetched_while_they_are_used(
    kind: str, move: Callable[[nn.Module, Path], nn.Module], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    task = causal(kind)
    moved = Causal(move(language_model(kind), tmp_path), byte_tokenizer())
    for _ in range(2):
        same(
            explain_generation(moved, PROMPT, continuation=ANSWER),
            explain_generation(task, PROMPT, continuation=ANSWER),
            1e-12,
        )
    assert [step.token for step in explain_generation(moved, PROMPT, tokens=2).steps] == [
        step.token for step in explain_generation(task, PROMPT, tokens=2).steps
    ]
    ours, theirs = (conserva.explain(one, [PROMPT, "Rome"]) for one in (moved, task))
    assert [one.scores for one in ours] == [one.scores for one in theirs]
    assert moved.fingerprint == task.fingerprint


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["", "model.layers.0", "model.layers.0.mlp", "lm_head"])
def test_layers_in_whole_numbers_are_refused(part: str) -> None:
    model = copy.deepcopy(language_model()).float()
    kinds = {nn.Linear} if part != "lm_head" else {"lm_head"}
    chosen = model if part in ("", "lm_head") else model.get_submodule(part)
    torch.ao.quantization.quantize_dynamic(chosen, kinds, dtype=torch.qint8, inplace=True)
    task = Causal(model.eval(), byte_tokenizer())
    with pytest.raises(conserva.Error, match="is quantised to integers"):
        explain_generation(task, PROMPT, continuation=ANSWER)
    with pytest.raises(conserva.Error, match="quantised"):
        conserva.explain(task, PROMPT)
