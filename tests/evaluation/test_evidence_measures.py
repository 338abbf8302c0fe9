"""How the benchmark of evidence reads items, what it removes of them, and its measures."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import conserva
from conserva.engine.rules import RULE_SETS
from conserva.tasks import Causal
from evidence_files import part
from language import TEMPLATE, causal


@pytest.fixture(scope="module")
def task() -> Causal:
    return causal(chat_template=TEMPLATE)


def _read(task: Causal, chat: bool, begin: str = "", answer: str = "Paris") -> Any:
    prompt = "Paris is in France.\n\nQuestion: name the capital"
    one = part("item").Item("squad", prompt, answer, ((0, 5),), (0, 19), group="", chat=chat)
    return part("reading").read(task, one, begin)


def _text(task: Causal, one: Any, places: np.ndarray) -> str:
    return task.tokenizer.decode([one.encoded.ids[i] for i in places]).strip()


@pytest.mark.parametrize("chat", [False, True])
def test_tokens_are_what_they_stand_for(task: Causal, chat: bool) -> None:
    one = _read(task, chat, "" if chat else "\n")
    assert _text(task, one, np.flatnonzero(one.evidence)) == "Paris"
    assert _text(task, one, one.places("document")) == "Paris is in France."
    assert _text(task, one, one.places("prompt")) == one.item.prompt
    assert len(one.places("whole")) == len(one) > len(one.places("prompt"))
    assert task.tokenizer.decode(one.answer) == " Paris"
    whole = task.tokenizer(one.encoded.text + task.tokenizer.decode(one.answer), add_special_tokens=not chat)
    assert whole["input_ids"] == [*one.encoded.ids, *one.answer]


def test_what_begins_a_prompt_is_the_sink(task: Causal) -> None:
    bare = causal(begins=False)
    assert _read(bare, False).evidence[0]
    begun = _read(bare, False, "\n")
    assert not begun.evidence[0]
    assert begun.encoded.tokens[0] == "\n"
    assert 0 not in begun.places("prompt")


def test_answers_are_those_of_greedy_decoding(task: Causal) -> None:
    one = _read(task, False, answer="abc")
    assert len(one.answer) > 1
    ids = [*one.encoded.ids, *one.answer]
    with torch.no_grad():
        said = task.network(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    expected = [said[len(one) - 1 + i] == token for i, token in enumerate(one.answer)]
    assert part("reading").answers(task, one) == expected
    own = dataclasses.replace(one, answer=(said[len(one) - 1], said[len(one) - 1]))
    assert part("reading").answers(task, own)[0]


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("scope", ["document", "prompt", "whole"])
def test_an_explanation_that_is_the_evidence_has_all_measures_full(task: Causal, scope: str, level: str) -> None:
    one = _read(task, False)
    found = part("run").measured(one, one.evidence.astype(float))[f"{scope} {level}"]
    assert [found[name] for name in ("top1", "pointing", "iou", "ap")] == [1, 1, 1, 1]
    found = part("run").measured(one, -1.0 * one.evidence)[f"{scope} {level}"]
    assert [found[name] for name in ("top1", "pointing", "iou")] == [0, 1, 0]


def test_scores_of_words_are_sums(task: Causal) -> None:
    one = _read(task, False)
    scores = np.arange(len(one)) + 0.5
    sums, evidence = one.features(scores, "document", "word")
    assert (len(sums), evidence.tolist()) == (4, [True, False, False, False])
    assert sums.sum() == pytest.approx(scores[one.places("document")].sum())
    shares = part("run").measured(one, scores)["shares"]
    assert shares == {"sink": round(0.5 / scores.sum(), 5), "template": 0}


def test_chance_is_the_share_of_the_evidence(task: Causal) -> None:
    one = _read(task, False)
    found = part("run").chance(one)
    assert found["document word"] == 1 / 4
    assert found["prompt token"] == round(one.evidence.sum() / (len(one) - 1), 5)
    assert found["whole token"] == round(one.evidence.sum() / len(one), 5)


#           evidence at places 1, 3 and 5 of the order
SCORES = np.array([9.0, 1.0, 7.0, 8.0, 6.0, 5.0])
EVIDENCE = np.array([True, False, True, False, False, True])


def test_measures_by_hand() -> None:
    found = part("measures").measures(SCORES, EVIDENCE)
    assert found == {
        "top1": 1,
        "pointing": 1,
        "iou": 2 / 4,
        "ap": pytest.approx((1 + 2 / 3 + 3 / 5) / 3),
        "recall": pytest.approx(1 / 3),
    }
    assert part("measures").recall(SCORES, EVIDENCE, 0.5) == pytest.approx(2 / 3)


def test_scores_without_order_are_not_flattered() -> None:
    found = part("measures").measures(np.zeros(6), EVIDENCE)
    assert (found["top1"], found["iou"], found["ap"]) == (0.5, 1.5 / 4.5, 0.5)


def test_lds_is_spearmans_correlation() -> None:
    rng = np.random.default_rng(0)
    kept, outputs = rng.random((20, 6)) < 0.5, rng.integers(0, 9, 20).astype(float)
    lds = part("measures").lds
    assert lds(SCORES, kept, outputs) == pytest.approx(spearmanr(kept @ SCORES, outputs).statistic)
    assert lds(SCORES, kept, np.exp(kept @ SCORES)) == pytest.approx(1)
    assert lds(np.zeros(6), kept, outputs) == 0


def test_parts_are_words_sentences_or_runs(task: Causal) -> None:
    text = " ".join(f"The capital of Italy is {name}." for name in ("Paris", "London", "Rome") * 3)
    item = part("item").Item("squad", f"{text}\n\nQuestion:", "Rome", ((0, 3),), (0, len(text)), group="")
    one, units = part("reading").read(task, item), part("ablation").units
    for most, count in ((54, 54), (53, 9), (8, 8)):
        parts = units(one, most)
        assert parts.max() + 1 == count
        assert (np.flatnonzero(parts >= 0) == one.places("document")).all()
        inside = parts[parts >= 0]
        assert (np.diff(inside) >= 0).all()
    assert _text(task, one, np.flatnonzero(units(one, 53) == 2)) == "The capital of Italy is Rome."


def test_the_last_token_is_always_kept(task: Causal) -> None:
    item = part("item").Item("known", "The capital of France", "Paris", ((4, 11),), (0, 21), group="")
    parts = part("ablation").units(part("reading").read(task, item), 32)
    assert parts[-1] == -1
    assert parts.max() > 1


@pytest.mark.parametrize("target", ["first", "sum"])
def test_ablated_prompts_are_read_without_the_rest(task: Causal, target: str) -> None:
    one, ablation = _read(task, False, answer="abc"), part("ablation")
    parts = ablation.units(one, 32)
    kept = ablation.drawn(one, parts, 5, 0)
    assert (kept == ablation.drawn(one, parts, 5, 0)).all()
    assert (kept != ablation.drawn(one, parts, 5, 1)).any()
    found = ablation.outputs(task, one, parts, kept, target)
    tokens = one.answer[:1] if target == "first" else one.answer
    for row, output in zip(kept, found, strict=True):
        ids = [token for token, part in zip(one.encoded.ids, parts, strict=True) if part < 0 or row[part]]
        with torch.no_grad():
            logits = task.network(torch.tensor([[*ids, *tokens[:-1]]])).logits[0, len(ids) - 1 :]
        assert output == pytest.approx(sum(float(logits[i, token]) for i, token in enumerate(tokens)))


def test_leaving_out_a_part_takes_its_sum_off(task: Causal) -> None:
    one, ablation = _read(task, False), part("ablation")
    parts = ablation.units(one, 32)
    scores = ablation.leave_one_out(task, one, parts, "first")
    all_but_the_second = np.ones((2, parts.max() + 1), dtype=bool)
    all_but_the_second[1, 1] = False
    whole, without = ablation.outputs(task, one, parts, all_but_the_second, "first")
    assert scores[parts == 1].sum() == pytest.approx(whole - without)
    assert not scores[parts < 0].any()
    assert ablation.sums(scores, parts)[1] == pytest.approx(whole - without)


def test_a_sum_of_logits_is_the_sum_of_their_explanations(task: Causal) -> None:
    one, methods = _read(task, False, answer="abc"), part("methods")
    parts = part("ablation").units(one, 32)
    found = methods.scores(task, one, "exact", parts, "sum")
    each = []
    for i, token in enumerate(one.answer):
        ids = torch.tensor([[*one.encoded.ids, *one.answer[:i]]])
        each.append(conserva.relevance(task.network, {"input_ids": ids}, (-1, token), rules="exact").scores()[0])
    assert found == pytest.approx(sum(scores[: len(one)] for scores in each).numpy(), 1e-4, 1e-6)  # type: ignore[union-attr]
    assert methods.scores(task, one, "exact", parts, "first") == pytest.approx(each[0].numpy(), 1e-4, 1e-6)


@pytest.mark.parametrize("target", ["first", "sum"])
def test_every_default_method_scores_every_token(task: Causal, target: str) -> None:
    one, methods = _read(task, False, answer="abc"), part("methods")
    assert {"random", *RULE_SETS, "a-last", "rollout", "gae"} < {*methods.default()}
    for name in methods.default():
        scores = methods.scores(task, one, name, part("ablation").units(one, 8), target)
        assert scores.shape == (len(one),)
        assert np.isfinite(scores).all()
        assert scores.any()
