"""Scores and ledgers of pipelines are those of `conserva.relevance` for what the pipeline gives to its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from PIL import Image as Pictures
from torch import Tensor
from transformers.pipelines import SUPPORTED_TASKS

import conserva
import tiny_images
import tiny_speech
from conserva.tasks.pipeline_objects import PIPELINES
from objects import bert
from pipelines import piped

EXACT = {"rel": 1e-6, "abs": 1e-6}
PICTURE = Pictures.fromarray(tiny_images.noise())
NAME = "My name is Sarah and I live in London"
PHONE = ("I have a problem with my iphone that needs to be resolved asap!!", "This example is urgent.")
MASKED = "The man worked as a [MASK] ."
SOUND = {"raw": tiny_speech.tone(), "sampling_rate": tiny_speech.RATE}

Parts = list[float]


def tokens(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: inputs[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in inputs}


def at(position: int, index: int) -> Callable[[Any], Tensor]:
    return lambda output: output.logits[:, position, index]


def of_text(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    return tokens(pipe.preprocess(given)), target


def of_pair(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    return tokens(pipe.preprocess({"text": given[0], "text_pair": given[1]})), target


def of_hypothesis(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    return tokens(next(iter(pipe.preprocess(given[0], [given[1]], "{}")))), target


def of_word(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    inputs = next(iter(pipe.preprocess(given[0], is_split_into_words=False)))
    starts = [start for start, _ in inputs["offset_mapping"][0].tolist()]
    return tokens(inputs), at(starts.index(given[0].index(given[1])), target)


def of_blank(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    inputs = pipe.preprocess(given)
    return tokens(inputs), at(inputs["input_ids"][0].tolist().index(pipe.tokenizer.mask_token_id), target)


def of_prompt(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    return tokens(pipe.preprocess(given)), at(-1, target)


def of_picture(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    return dict(pipe.preprocess(given)), target


def of_sound(pipe: Any, given: Any, target: int) -> tuple[dict[str, Any], Any]:
    features = next(iter(pipe.preprocess(dict(SOUND))))["input_features"]
    start = torch.tensor([[pipe.model.config.decoder_start_token_id]])
    return {"input_features": features.to(pipe.model.dtype), "decoder_input_ids": start}, at(-1, target)


def by_token(found: conserva.Relevance) -> Parts:
    return found.scores()[0].tolist()


def by_patch(found: conserva.Relevance) -> Parts:
    size = 8
    pixels = found.values["pixel_values"][0].sum(0)
    return pixels.unfold(0, size, size).unfold(1, size, size).sum((-1, -2)).flatten().tolist()


def by_window(found: conserva.Relevance) -> Parts:
    windows = found.values["input_features"][0].sum(0).reshape(-1, 10).sum(1)
    return [*windows.tolist(), *found.scores("decoder_input_ids")[0].tolist()]


CASES: list[tuple[str, Any, int, Callable[..., Any], Callable[..., Parts]]] = [
    ("text-classification", "This movie is disgustingly good !", 1, of_text, by_token),
    ("text-classification", ("I like you", "I love you"), 2, of_pair, by_token),
    ("zero-shot-classification", PHONE, 0, of_hypothesis, by_token),
    ("token-classification", (NAME, "London"), 2, of_word, by_token),
    ("fill-mask", MASKED, 700, of_blank, by_token),
    ("text-generation", "My tart needs some", 40, of_prompt, by_token),
    ("image-classification", PICTURE, 1, of_picture, by_patch),
    ("automatic-speech-recognition", (SOUND["raw"], SOUND["sampling_rate"]), 5, of_sound, by_window),
]


@pytest.mark.parametrize("method", ["exact", "ah+ln", "gi"])
@pytest.mark.parametrize(("kind", "given", "target", "asked", "split"), CASES, ids=[case[3].__name__ for case in CASES])
def test_scores_and_ledger(kind: str, given: Any, target: int, asked: Any, split: Any, method: str) -> None:
    pipe = piped(kind)
    one = conserva.explain(conserva.load(pipe), given, target, method=method)
    inputs, aim = asked(pipe, given, target)
    found = conserva.relevance(pipe.model, inputs, aim, rules=method)
    assert one.output == pytest.approx(float(found.output[0]), **EXACT)
    assert list(one.scores) == pytest.approx(split(found), **EXACT)
    assert one.ledger is not None
    assert found.ledger is not None
    for entry in ("inputs", "positions", "biases"):
        assert getattr(one.ledger, entry) == pytest.approx(float(getattr(found.ledger, entry)[0]), **EXACT)


OTHERS = [
    name for name, made in SUPPORTED_TASKS.items() if not any(base.__name__ in PIPELINES for base in made["impl"].mro())
]


@pytest.mark.parametrize("kind", OTHERS)
def test_every_other_pipeline_of_transformers_is_refused(kind: str) -> None:
    pipe = object.__new__(SUPPORTED_TASKS[kind]["impl"])
    pipe.task = kind
    instead = (
        r"To explain how similar two texts are, make conserva\.Similarity\(pipe\.model, pipe\.tokenizer\)\.$"
        if kind == "feature-extraction"
        else r"For another model, call conserva\.relevance\(pipe\.model, inputs, target\)\.$"
    )
    with pytest.raises(conserva.Error, match=f"a pipeline for '{kind}', which no task supports.*{instead}"):
        conserva.load(pipe)


def test_every_supported_pipeline_is_tested() -> None:
    assert {case[0] for case in CASES} | set(OTHERS) | {"zero-shot-image-classification"} == set(SUPPORTED_TASKS)


def test_the_advice_for_feature_extraction() -> None:
    pipe = piped("feature-extraction", model=bert("AutoModel"))
    assert conserva.explain(conserva.Similarity(pipe.model, pipe.tokenizer), ("a joy.", "a film")).ledger
