"""What a first reader of the tasks for words stumbled over."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import CLIPConfig, CLIPModel, LlamaConfig, LlamaForSequenceClassification

import conserva
import language
import tiny_heads
import writers
from conserva.attribution import find
from conserva.cli import main
from conserva.cli.input_options import target_for, target_of
from conserva.tasks.prompts import words_of
from made_up_prompts import PROMPT
from saved_models import SAVED


@pytest.fixture(scope="module")
def causal() -> conserva.Causal:
    return language.causal()


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"target": None, "contrast": None, "truncate": False, **given})


def test_a_number_is_a_class_but_a_word_where_classes_are_words(causal: conserva.Causal) -> None:
    assert target_of("1", conserva.load()) == 1
    assert target_of("1", causal) == "1"
    blanks = conserva.Blanks(tiny_heads.model("bert", "AutoModelForMaskedLM"), tiny_heads.tokenizer())
    assert target_of("4", blanks) == "4"
    named = tiny_heads.model("bert", "AutoModelForSequenceClassification", id2label={0: "1", 1: "2"})
    numbered = conserva.Text(named, tiny_heads.tokenizer())
    assert target_of("1", numbered) == "1"
    assert target_of("7", numbered) == 7


def test_numbers_in_a_file_are_words_for_a_model_that_writes(causal: conserva.Causal, tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("text,label\n2 + 2 =,4\n3 + 3 =,6\n", encoding="utf-8")
    for task in (causal, writers.writer("t5")):
        assert task.labelled(path).labels == ("4", "6")


def test_a_contrast_is_with_the_token_that_is_predicted(causal: conserva.Causal) -> None:
    bare = causal.vocabulary.pieces("Paris")[0]
    spaced = causal.vocabulary.pieces(" Paris")[0]
    found = target_for(causal, PROMPT, options(contrast="Paris"))
    predicted = conserva.explain(causal, PROMPT)
    assert found[1] == spaced != bare
    one = conserva.explain(causal, PROMPT, found)
    alone = conserva.explain(causal, PROMPT, found[0])
    assert alone.target == predicted.target
    assert one.output == pytest.approx(alone.output - conserva.explain(causal, PROMPT, spaced).output)
    assert one.target == f"{alone.target} -  Paris"


def test_the_end_that_a_tokenizer_adds_is_not_read() -> None:
    plain, ending = language.causal(), language.causal()
    tokenizer = ending.tokenizer
    end = tokenizer.convert_ids_to_tokens([tokenizer.eos_token_id])[0]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    assert tokenizer(PROMPT)["input_ids"][-1] == tokenizer.eos_token_id
    encoded = ending.encode(PROMPT)
    assert encoded.tokens == tuple(one for one in plain.encode(PROMPT).tokens if one != "<begin>")
    written = f"{PROMPT}{end}"  # by the user, who means it
    assert ending.encode(written).ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [({"pooling_mode_cls_token": True}, "cls"), ({"pooling_mode_mean_tokens": True}, "mean"), (None, "mean")],
)
def test_a_sentence_encoder_pools_as_its_files_say(tmp_path: Path, pooling: Any, expected: str) -> None:
    folder = SAVED["Similarity"](tmp_path)
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    if pooling is not None:
        modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))
    assert conserva.load(folder).model.pooling == expected


@pytest.mark.parametrize(
    ("kind", "pooling", "said"),
    [("Dense", {"pooling_mode_mean_tokens": True}, "Dense"), ("Normalize", {"pooling_mode_max_tokens": True}, "max")],
)
def test_vectors_that_are_made_otherwise_are_refused(tmp_path: Path, kind: str, pooling: Any, said: str) -> None:
    folder = SAVED["Similarity"](tmp_path)
    kinds = ["Transformer", "Pooling", kind]
    modules = [{"type": f"sentence_transformers.models.{one}", "path": f"{i}"} for i, one in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(conserva.Error, match=f"(uses the pooling|has the modules) {said}"):
        conserva.load(folder)


def test_an_answer_is_whole_words_of_the_context() -> None:
    network = tiny_heads.model("bert", "AutoModelForQuestionAnswering")
    task = conserva.Question(network, tiny_heads.tokenizer())
    encoded = task.encode(("what won?", "the start was slow but art won and he left."))
    for answer in ("art", "he"):
        assert encoded.words_of(*encoded.span_of(answer)) == answer
    assert encoded.span_of("tar") is None


def test_an_answer_that_was_cut_in_two_is_none() -> None:
    network = tiny_heads.model("bert", "AutoModelForQuestionAnswering")
    task = conserva.Question(network, tiny_heads.tokenizer())
    context = "one two three " * (task.longest // 3 - 2) + "a joy of a film and much more of it"
    encoded = task.encode(("what?", context), truncate=True)
    end = encoded.words_of(len(encoded) - 3, len(encoded) - 2)
    assert encoded.span_of(end) is not None
    assert encoded.span_of(context[context.rindex(end) :]) is None


def test_settings_of_a_models_own_do_not_change_what_is_likeliest() -> None:
    plain = conserva.explain_generation(language.causal(), PROMPT, tokens=8)
    task = language.causal()
    settings = {"repetition_penalty": 1.9, "num_return_sequences": 2, "return_dict_in_generate": True}
    for name, value in {**settings, "do_sample": True, "num_beams": 2}.items():
        setattr(task.network.generation_config, name, value)
    before = task.network.generation_config.to_dict()
    assert conserva.explain_generation(task, PROMPT, tokens=8).written == plain.written
    assert task.network.generation_config.to_dict() == before


def test_a_continuation_goes_on_where_the_beginning_ends() -> None:
    task = writers.writer("t5")
    whole = conserva.explain_generation(task, ("the cat sat", "the ca"), continuation="t sat")
    assert "".join(whole.features).endswith("cat sat")


def test_rows_and_spans_know_their_sink(causal: conserva.Causal) -> None:
    whole = conserva.explain_generation(causal, PROMPT, continuation=" Paris Rome")
    for one in (whole.row(0), whole.span(0, 1)):
        assert one.sink is not None
        assert one.sink.score == one.scores[0]
        assert len(one.without_sink().features) == len(one.features) - 1
    assert conserva.Generation.from_json(whole.to_json()) == whole


def test_a_number_as_text_is_a_class() -> None:
    one = conserva.explain(conserva.load(), "a joy.", "1")
    assert one.probability == conserva.explain(conserva.load(), "a joy.", 1).probability


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(SAVED["Causal"](tmp_path_factory.mktemp("Causal")))


USELESS: list[tuple[list[str], str]] = [
    (["--prompt", "The", "--generate", "0"], "tokens=0 is not a positive integer"),
    (["--prompt", "The", "--generate", "2", "--words"], "--words does not apply to a generation"),
    (["--prompt", "The", "--generate", "2", "--hide-sink"], "--hide-sink does not apply to a generation"),
    (["--prompt", "The", "--generate", "2", "--trace"], "--trace does not apply to a generation"),
    (["--prompt", "The", "--trace", "--words"], "--words does not apply to a trace"),
    (["--prompt", "The", "--score", "logit"], "--score logit applies to generated tokens only"),
    (["--file", "many.txt", "--generate", "2"], "many.txt does not work with --generate"),
    (["--file", "many.txt", "--trace"], "many.txt does not work with --generate"),
]


@pytest.mark.parametrize(("given", "message"), USELESS, ids=[" ".join(given) for given, _ in USELESS])
def test_no_option_is_passed_over(
    given: list[str],
    message: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("many.txt").write_text("The cat\nThe dog\n", encoding="utf-8")
    named = [] if given[0] == "a joy." else ["--model", model]
    assert main(["explain", *given, *named]) == 1
    assert message in capsys.readouterr().err


def test_a_long_prompt_of_a_generation_is_cut(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "--model", model, "--prompt", "Paris " * 100, "--continuation", " Rome", "--json"]
    assert main(command) == 1
    assert "--truncate" in capsys.readouterr().err
    assert main([*command, "--truncate"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 1


def test_an_audit_takes_the_targets_that_an_explanation_takes(causal: conserva.Causal) -> None:
    for target in (" Paris", "Paris - London", None, 5):
        found = conserva.audit(causal, [PROMPT, "The capital"], target, rules="exact")
        expected = [one.output for one in conserva.explain(causal, [PROMPT, "The capital"], target)]
        assert found.outputs == pytest.approx(expected)
        assert abs(found.ledger.gap) < 1e-5


def test_two_threads_ask_one_language_model() -> None:
    task = language.causal()
    texts = ("The capital of", "The capital is")
    assert len(task.encode(texts[0])) == len(task.encode(texts[1]))  # or one could be told from the other
    alone = [conserva.explain(task, text) for text in texts]
    beside: list[conserva.Explanation] = []
    own = threading.get_ident()

    def start(*_: Any) -> None:
        if threading.get_ident() == own:
            other = threading.Thread(target=lambda: beside.append(conserva.explain(task, texts[1])))
            other.start()
            other.join()

    handle = task.network.get_submodule("model.layers.1").register_forward_pre_hook(start)
    beside.insert(0, conserva.explain(task, texts[0]))
    handle.remove()
    assert [one.text for one in beside] == [one.text for one in alone]
    for found, expected in zip(beside, alone, strict=True):
        assert found.output == pytest.approx(expected.output, abs=1e-6)
        assert list(found.scores) == pytest.approx(list(expected.scores), abs=1e-5)


@pytest.mark.parametrize("one", [np.int64(1), torch.tensor(1), np.array(1)], ids=lambda one: type(one).__name__)
def test_numbers_of_numpy_and_torch_are_targets(one: Any) -> None:
    task = conserva.load("sentiment")
    expected = conserva.explain(task, "a joy.", 1)
    assert list(conserva.explain(task, "a joy.", one).scores) == pytest.approx(list(expected.scores), abs=1e-5)
    assert conserva.explain(task, ["a joy.", "a bore."], [one, np.int32(0)])[1].target == "negative"
    assert conserva.explain(task, ["a joy.", "a bore."], np.array([1, 0]))[0].target == "positive"
    assert conserva.trace(task, "a joy.", one).target == "positive"
    assert conserva.audit(task, "a joy.", one).target == "1"
    language_model = language.causal()
    assert conserva.explain(language_model, "The capital", one).output == pytest.approx(
        conserva.explain(language_model, "The capital", 1).output, abs=1e-6
    )
    found = conserva.relevance(task.model, task.batch([task.encode("a joy.")]), one)
    assert float(found.output[0]) == pytest.approx(expected.output, abs=1e-5)


def test_integrated_gradients_of_a_deep_model_are_numbers() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=40, num_hidden_layers=30, num_labels=2, pad_token_id=0, **shape)
    model = LlamaForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    found = find("ig:steps=5").apply(model, inputs, [1])
    assert torch.isfinite(found.scores["input_ids"]).all()
    assert found.ledger is not None
    assert torch.isfinite(found.ledger.gap).all()


def test_scores_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load("sentiment")
    method = find("a-last")

    def broken(*given: Any) -> Any:
        found = method.apply(*given)
        return dataclasses.replace(found, scores={name: one * math.nan for name, one in found.scores.items()})

    monkeypatch.setattr(
        sys.modules["conserva.explaining.explain"], "find", lambda _, **how: dataclasses.replace(method, apply=broken)
    )
    with pytest.raises(conserva.Error, match="method='a-last' gives nan or inf on this model"):
        conserva.explain(task, "a joy.", method="a-last")


def test_a_word_begins_where_a_space_is_part_of_a_broken_character() -> None:
    texts = ["I", " like", "Ġ\u00d7", "©", "לו", " and", "ĠðŁ", "ĺĢ", "▁x"]
    assert words_of(texts, [False] * len(texts)) == (0, 1, 2, 2, 2, 3, 4, 4, 5)


def test_a_function_is_no_target_of_explain() -> None:
    with pytest.raises(conserva.Error, match="is a function, which"):
        conserva.explain(conserva.load("sentiment"), "a joy.", lambda output: output.logits[:, 0])


def test_a_model_of_images_and_texts_says_that_it_wants_labels(tmp_path: Path) -> None:
    text = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
    config = CLIPConfig(text_config={**text, **heads}, vision_config={**vision, **heads}, projection_dim=8)
    CLIPModel(config).save_pretrained(tmp_path)
    with pytest.raises(conserva.Error, match=r"compares images with texts, give the texts as labels: .*labels="):
        conserva.load(tmp_path)
