"""The study of planted facts: its documents, its measures, its statistics, and going on where it was."""

import json
import string
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import conserva
from script_files import loaded
from tiny import shake

loaded("benchmarks/timing.py")
facts = loaded("benchmarks/planted_facts.py")
planted = loaded("benchmarks/planted.py")

TOKENS = 120
NUMBERS = range(40)


def _texts() -> list[str]:
    """Return texts that hold every word of every document, at the beginning of a sentence and inside."""
    plain = [*facts.FILLER, *(text for slot in facts.SLOTS.values() for text in slot)]
    plain += [f"{kind.sentence} {kind.question} {kind.cloze}" for kind in facts.KINDS.values()]
    plain += [word for kind in facts.KINDS.values() for word in (*kind.subjects, *kind.answers)]
    more = ["Question: Answer:", *planted.EXAMPLE, *facts.DIGITS]
    return [*plain, *more, *(f" {text}" for text in plain), *(text[0].upper() + text[1:] for text in plain)]


def _tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words, or one of pieces that hold the space before them."""
    if kind == "words":
        known = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        known.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
        trainer: Any = trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"])
    else:
        known = Tokenizer(models.BPE())
        known.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        known.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=900, special_tokens=["[PAD]"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    letters = [f" {letter}" for letter in string.ascii_letters]  # a space goes with its word, as in larger tokenizers
    known.train_from_iterator([*_texts(), *1000 * letters], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=known, pad_token="[PAD]")


@pytest.fixture(scope="module", params=["words", "pieces"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return _tokenizer(request.param)


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return _tokenizer("words")


@pytest.fixture(scope="module")
def model(words: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    )
    return shake(LlamaForCausalLM(config), 0.1)  # type: ignore[return-value]


def _tight(text: str) -> str:
    return "".join(text.split())


def test_no_filler_sentence_has_an_answer() -> None:
    filler = facts.filler_words()
    answers = {word.lower() for kind in facts.KINDS.values() for word in kind.answers}
    assert len(filler) > 200
    assert len(answers) > 60
    assert not filler & answers
    assert not any(set(word) & set(facts.DIGITS) for word in filler)


def test_the_answer_stands_once_and_no_other_answer_does(words: PreTrainedTokenizerFast) -> None:
    drawn = [facts.document(words, TOKENS, 0, number) for number in NUMBERS]
    for one in drawn:
        asked = facts.words(f"{one.question} {one.cloze}")
        assert facts.words(one.body).count(one.answer.lower()) == 1
        assert one.answer.lower() not in asked
        assert one.others
        assert not {other.lower() for other in one.others} & {*facts.words(one.body), *asked}
        assert one.body.count(one.fact) == 1
        assert one.answer in one.fact
    assert {one.kind for one in drawn} == set(facts.KINDS)
    assert min(one.depth for one in drawn) < 0.2
    assert max(one.depth for one in drawn) > 0.8


def test_a_document_is_that_of_its_seed_and_number(words: PreTrainedTokenizerFast) -> None:
    one = facts.document(words, TOKENS, 3, 5)
    assert one == facts.document(words, TOKENS, 3, 5)
    assert one.prompt != facts.document(words, TOKENS, 3, 6).prompt
    assert one.prompt != facts.document(words, TOKENS, 4, 5).prompt


def test_planted_words_are_found_among_the_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    for number in NUMBERS:
        one = facts.document(tokenizer, 2 * TOKENS, 0, number)
        encoded = facts.encode(one, tokenizer)

        def said(places: list[int], ids: list[int] = encoded.ids) -> str:
            return _tight(tokenizer.decode([ids[i] for i in places]))

        assert said(encoded.answer) == one.answer
        assert said(encoded.sentence) == _tight(one.fact)
        assert set(encoded.answer) < set(encoded.sentence)
        assert said(list(range(encoded.question))) == _tight(one.body)
        assert said(list(range(len(encoded.ids)))) == _tight(one.prompt)
        begins = _tight(tokenizer.decode([encoded.target]))
        assert begins
        assert one.answer.startswith(begins)
        assert any(other.startswith(_tight(tokenizer.decode([encoded.other]))) for other in one.others)
        assert encoded.other != encoded.target
        assert 2 * TOKENS - 40 < len(encoded.ids) <= 2 * TOKENS


def test_a_document_too_short_for_its_fact_is_refused(words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(conserva.Error, match="tokens=9 is too short"):
        facts.document(words, 9, 0, 0)


#              0    1    2    3    4     5    6 and 7: the question
SCORES = [9.0, 1.0, 4.0, 3.0, -2.0, 0.0, 5.0, -1.0]
ENCODED = facts.Encoded(ids=list(range(8)), answer=[3, 4], sentence=[2, 3, 4], question=6, target=0, other=1)
MEASURED = {
    "document": [0, 1, 0, 3 / 8, 5 / 10, 2],
    "prompt": [0, 0, 0, 3 / 13, 5 / 16, 3],
    "whole": [0, 0, 0, 3 / 22, 5 / 25, 4],
}


@pytest.mark.parametrize("scope", MEASURED)
def test_measures_of_scores_by_hand(scope: str) -> None:
    found = planted.measured(np.array(SCORES), ENCODED)
    assert found[scope] == pytest.approx(MEASURED[scope], rel=1e-4)
    assert found["sink"] == pytest.approx(9 / 25)


@pytest.mark.parametrize(
    ("score", "hits", "ranks"), [(7.0, [1, 1, 1], [1, 1, 2]), (-7.0, [0, 0, 1], [2, 3, 4])], ids=["highest", "lowest"]
)
def test_an_extreme_score_on_the_answer_is_a_hit(score: float, hits: list[int], ranks: list[int]) -> None:
    scores = np.array(SCORES)
    scores[4] = score
    found = planted.measured(scores, ENCODED)
    assert found["prompt"][:3] == hits
    assert found["whole"][:3] == [0, 0, 0]
    assert [found[scope][-1] for scope in planted.SCOPES] == ranks


def test_scores_without_relevance_have_no_share() -> None:
    assert planted.measured(np.zeros(8), ENCODED)["document"][3:5] == [0, 0]


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (87, 100), (1, 3)])
def test_wilson(hits: int, trials: int) -> None:
    known = binomtest(hits, trials).proportion_ci(method="wilson")
    assert planted.wilson(hits, trials) == pytest.approx([hits / trials, known.low, known.high], abs=1e-12)


@pytest.mark.parametrize(("only_a", "only_b", "both"), [(0, 0, 4), (6, 0, 2), (1, 8, 0), (5, 5, 3), (12, 3, 9)])
def test_mcnemar(only_a: int, only_b: int, both: int) -> None:
    a = [1.0] * only_a + [0.0] * only_b + [1.0] * both
    b = [0.0] * only_a + [1.0] * only_b + [1.0] * both
    known = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert planted.mcnemar(a, b) == pytest.approx(known)


def test_bootstrap_intervals_are_those_of_their_seed() -> None:
    values = [0.1, 0.5, 0.2, 0.9, 0.4, 0.3]
    mean, low, high = planted.interval(values, 1)
    assert [mean, low, high] == planted.interval(values, 1)
    assert [mean, low, high] != planted.interval(values, 2)
    assert mean == pytest.approx(0.4)
    assert min(values) < low < mean < high < max(values)
    assert planted.interval([0.25] * 5, 0) == pytest.approx([0.25] * 3)


def _row(hits: dict[str, int]) -> dict[str, Any]:
    one = {
        name: {**{scope: [hit, hit, hit, 0.5 * hit, 0.25, 1] for scope in planted.SCOPES}, "sink": 0.1, "gap": 0.0}
        for name, hit in hits.items()
    }
    return dict.fromkeys(planted.TARGETS, one)


def test_differences_are_paired_and_corrected() -> None:
    rows = [_row({"gi": 0, "exact": 1, "ah+ln": i % 2}) for i in range(12)]
    found = planted.summarise(rows, ["gi", "exact", "ah+ln"], 0)
    assert found["means"]["answer"]["exact"]["document"]["hit"] == planted.wilson(12, 12)
    assert found["means"]["answer"]["ah+ln"]["document"]["positive"][0] == 0.25
    pairs = {
        (one["a"], one["b"]): one
        for one in found["pairs"]["answer"]
        if (one["scope"], one["measure"]) == ("document", "hit")
    }
    assert pairs["gi", "exact"]["difference"] == pytest.approx([-1, -1, -1])
    assert pairs["gi", "exact"]["p"] == pytest.approx(3 * 2 / 2**12)  # the least of three is held three times as high
    assert pairs["gi", "ah+ln"]["difference"][0] == -0.5
    assert pairs["gi", "ah+ln"]["p"] == pytest.approx(2 * 2 / 2**6)


def test_a_batch_of_prompts_is_answered_as_each_alone(model: LlamaForCausalLM, words: PreTrainedTokenizerFast) -> None:
    settings = {"tokens": TOKENS, "seed": 0}
    found = planted.predictions(model, words, settings, 3)
    assert list(found) == list(range(3, 3 + planted.AT_ONCE))
    prompts = [facts.encode(facts.document(words, TOKENS, 0, number), words).ids for number in found]
    assert len(set(map(len, prompts))) > 3
    with torch.no_grad():
        alone = [int(model(torch.tensor([ids])).logits[0, -1].argmax()) for ids in prompts]
    assert list(found.values()) == alone


def test_a_logit_and_a_contrast_are_what_is_split(model: LlamaForCausalLM) -> None:
    inputs = planted.inputs_of(range(5, 17), model)
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
    found = planted.split(model, inputs, 7, 9, "exact")
    assert [float(one.ledger.output) for one in found] == pytest.approx(
        [float(logits[7]), float(logits[7] - logits[9])]
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let documents of odd numbers be answered; return the numbers at which a batch was asked for."""
    asked: list[int] = []

    def predictions(_: Any, tokenizer: Any, settings: Any, first: int) -> dict[int, int]:
        asked.append(first)
        drawn = islice(facts.drawn(tokenizer, settings["tokens"], settings["seed"], first), 4)
        return {one.number: encoded.target if one.number % 2 else -1 for one, encoded in drawn}

    monkeypatch.setattr(planted, "predictions", predictions)
    return asked


def test_a_study_goes_on_where_it_was(
    model: LlamaForCausalLM,
    words: PreTrainedTokenizerFast,
    answers: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    explained: list[int] = []
    really = planted.explained

    def stops_at_the_third(model: Any, one: Any, *rest: Any) -> Any:
        explained.append(one.number)
        if len(explained) == 3:
            raise KeyboardInterrupt
        return really(model, one, *rest)

    monkeypatch.setattr(planted, "explained", stops_at_the_third)
    settings = {"tokens": TOKENS, "seed": 0, "rules": ["exact"]}
    with pytest.raises(KeyboardInterrupt):
        planted.study(model, words, settings, 3, tmp_path / "some.jsonl")
    assert (explained, answers) == ([1, 3, 5], [0, 4])
    tried, rows = planted.study(model, words, settings, 3, tmp_path / "some.jsonl")
    assert (explained, answers) == ([1, 3, 5, 5], [0, 4])
    assert tried == 6
    assert rows == planted.study(model, words, settings, 3, tmp_path / "anew.jsonl")[1]
    fewer = planted.study(model, words, settings, 2, tmp_path / "some.jsonl")
    assert fewer == (4, rows[:2])
    with pytest.raises(conserva.Error, match="differs in seed"):
        planted.study(model, words, {**settings, "seed": 1}, 3, tmp_path / "some.jsonl")


def test_a_model_that_cannot_answer_is_refused(
    model: LlamaForCausalLM, words: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(planted, "predictions", lambda *given: dict.fromkeys(range(100), -1))
    with pytest.raises(conserva.Error, match="answered 0 of 20 documents of 120 tokens, too few to find 1"):
        planted.study(model, words, {"tokens": TOKENS, "seed": 0, "rules": []}, 1, tmp_path / "some.jsonl")


def test_the_command_writes_what_it_found(
    model: LlamaForCausalLM,
    words: PreTrainedTokenizerFast,
    answers: list[int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    model.save_pretrained(tmp_path / "tiny")
    words.save_pretrained(tmp_path / "tiny")
    chosen = ["--count", "2", "--tokens", str(TOKENS), "--device", "cpu", "--rules", "gi,exact", "--examples"]
    planted.main(["--model", str(tmp_path / "tiny"), *chosen, "--out", str(tmp_path)])
    found = json.loads((tmp_path / "planted.json").read_text(encoding="utf-8"))
    assert (found["tried"], found["count"], found["model"], found["dtype"]) == (4, 2, "tiny", "float32")
    assert found["sha256"] == planted.digest([tmp_path / "tiny" / "model.safetensors"])
    assert [row["number"] for row in found["rows"]] == [1, 3]
    assert found["rows"][0]["planted"] == facts.document(words, TOKENS, 0, 1).answer
    assert list(found["rows"][0]["answer"]) == ["gi", "exact", *planted.BESIDE]
    for target in planted.TARGETS:
        assert found["means"][target]["exact"]["gap"][0] < 1e-3 < found["means"][target]["gi"]["gap"][0]
    assert {(one["rules"], one["target"]) for one in found["examples"]} > {("exact", " Paris -  London")}
    for one in found["examples"]:
        parts = sum(score for _, score in one["scores"]) + one["biases"] + one["gap"]
        assert parts == pytest.approx(one["output"], abs=1e-3)
    printed = capsys.readouterr().out
    assert "2 answered documents of 120 tokens, of 4 tried" in printed
    assert "contrast, document: differences in pairs" in printed


def test_a_rule_set_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match="exakt"):
        planted.main(["--model", str(tmp_path), "--rules", "gi,exakt"])
