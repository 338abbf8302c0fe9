"""Options that a pipeline was created with are refused if they change what it computes, and else without effect."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import conserva
import tiny_images
import tiny_speech
from pipelines import piped

EXACT = {"rel": 1e-6, "abs": 1e-6}
TEXT = "This movie is disgustingly good !"


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("text-classification", {"truncation": True, "max_length": 6}, "created with max_length, which changes its"),
        ("text-classification", {"add_special_tokens": False}, "created with add_special_tokens"),
        ("text-classification", {"text_pair": "it is"}, "created with text_pair"),
        ("token-classification", {"is_split_into_words": True}, "created with is_split_into_words"),
        ("token-classification", {"aggregation_strategy": "max"}, "aggregation_strategy 'max', which reads the label"),
        ("token-classification", {"aggregation_strategy": "average"}, "choose 'first', which reads it from the first"),
        ("fill-mask", {"targets": ["good"]}, "created with targets, which exclude other words: leave them out"),
        ("fill-mask", {"tokenizer_kwargs": {"add_special_tokens": False}}, "created with add_special_tokens"),
        ("fill-mask", {"tokenizer_kwargs": {"truncation": True, "max_length": 5}}, "created with max_length"),
        ("text-generation", {"prefix": "hello "}, "created with prefix"),
        ("text-generation", {"add_special_tokens": False}, "created with add_special_tokens"),
        ("text-generation", {"continue_final_message": False}, "created with continue_final_message"),
        ("text-generation", {"tokenizer_encode_kwargs": {"padding_side": "left"}}, "created with padding_side"),
        ("text-generation", {"tools": [{"type": "function"}]}, "created with tools"),
        ("automatic-speech-recognition", {"chunk_length_s": 0.5}, "chunk_length_s=0.5, which cuts recordings"),
        ("automatic-speech-recognition", {"generate_kwargs": {"language": "de"}}, "created with language, which"),
        ("automatic-speech-recognition", {"generate_kwargs": {"task": "translate"}}, "created with task, which"),
    ],
)
def test_options_that_change_what_is_computed_are_refused(kind: str, options: dict[str, Any], says: str) -> None:
    pipe = piped(kind, **options)
    with pytest.raises(conserva.Error, match=rf"model is a pipeline for '{kind}'.*{re.escape(says)}"):
        conserva.load(pipe)


@pytest.mark.parametrize(
    ("kind", "options", "given"),
    [
        ("text-classification", {"truncation": True, "max_length": 128, "padding": True}, TEXT),
        ("text-classification", {"padding": "max_length", "max_length": 40}, TEXT),
        ("text-classification", {"top_k": None, "batch_size": 2, "add_special_tokens": True}, TEXT),
        ("token-classification", {"stride": 3, "aggregation_strategy": "simple"}, (TEXT, "movie")),
        ("token-classification", {"aggregation_strategy": "first", "ignore_labels": []}, (TEXT, "movie")),
        ("fill-mask", {"top_k": 3, "tokenizer_kwargs": {"truncation": True}}, "a [MASK] movie"),
        ("text-generation", {"max_new_tokens": 3, "do_sample": True, "temperature": 0.3, "prefix": ""}, "Paris is"),
        ("text-generation", {"truncation": True, "return_full_text": False, "repetition_penalty": 9.0}, "Paris is"),
        ("image-classification", {"top_k": 1}, tiny_images.noise()),
        (
            "automatic-speech-recognition",
            {"chunk_length_s": 1, "generate_kwargs": {"num_beams": 2}},
            (tiny_speech.tone(), tiny_speech.RATE),
        ),
    ],
)
def test_options_that_do_not_change_it_are_accepted(kind: str, options: dict[str, Any], given: Any) -> None:
    one, plain = (conserva.explain(conserva.load(piped(kind, **changes)), given) for changes in (options, {}))
    assert (one.scores, one.output, one.target) == (plain.scores, plain.output, plain.target)


@pytest.mark.parametrize(("labels", "head"), [(1, "binary"), (3, "single_label")])
def test_the_pipeline_for_images_has_probabilities_for_regressions_too(labels: int, head: str) -> None:
    pipe = piped("image-classification")
    pipe.model.classifier = torch.nn.Linear(pipe.model.classifier.in_features, labels).eval()
    pipe.model.config.problem_type, pipe.model.config.num_labels = "regression", labels
    task, picture = conserva.load(pipe), tiny_images.noise()
    assert task.head.name == head
    best = pipe(picture)[0]
    assert conserva.explain(task, picture).probability == pytest.approx(best["score"], **EXACT)


def test_the_pipeline_for_tokens_has_a_softmax_whatever_the_problem() -> None:
    pipe = piped("token-classification")
    pipe.model.config.problem_type = "multi_label_classification"
    found = pipe(TEXT, ignore_labels=[])[1]
    one = conserva.explain(conserva.load(pipe), (TEXT, "movie"))
    assert (one.target, one.probability) == (found["entity"], pytest.approx(float(found["score"]), **EXACT))


def test_a_hypothesis_is_needed() -> None:
    task = conserva.load(piped("zero-shot-classification"))
    for given in (TEXT, [TEXT, TEXT]):
        with pytest.raises(conserva.Error, match=r"is one text, but .* compares two: give"):
            conserva.explain(task, given)
    assert conserva.explain(task, (TEXT, "This example is fun.")).sections[1][0] == "second text"


def test_the_language_of_a_transcription_must_be_chosen() -> None:
    pipe = piped("automatic-speech-recognition")
    given, languages = (tiny_speech.tone(), tiny_speech.RATE), {"<|en|>": 3}
    plain = conserva.explain(conserva.load(pipe), given)
    known = pipe.model.generation_config
    pipe.model.generation_config = SimpleNamespace(**known.to_dict(), lang_to_id=languages)
    try:
        with pytest.raises(conserva.Error, match=r"detects the language of every recording: choose .*set_prefix_tok"):
            conserva.load(pipe)
        pipe.tokenizer.language = "english"
        assert conserva.explain(conserva.load(pipe), given).output == plain.output
    finally:
        pipe.model.generation_config = known
        if hasattr(pipe.tokenizer, "language"):
            del pipe.tokenizer.language


CHATS = [
    [{"role": "user", "content": "Paris is in"}],
    [{"role": "user", "content": "Where is Paris?"}, {"role": "assistant", "content": " Paris is in"}],
    [{"role": "system", "content": "capitals"}, {"role": "user", "content": "Rome"}],
]


@pytest.mark.parametrize("chat", CHATS, ids=["user", "assistant", "system"])
def test_a_chat_is_read_as_the_pipeline_reads_it(chat: list[dict[str, str]]) -> None:
    pipe, seen = piped("text-generation"), dict[str, Tensor]()

    def note(model: Any, args: Any, kwargs: Any, output: Any) -> None:
        seen.setdefault("ids", kwargs["input_ids"][0])
        seen.setdefault("logits", output.logits[0, -1])

    handle = pipe.model.register_forward_hook(note, with_kwargs=True)
    pipe(chat, max_new_tokens=1, do_sample=False, return_tensors=True)
    handle.remove()
    task = conserva.load(pipe)
    assert list(task.encode(chat).ids) == seen["ids"].tolist()
    assert conserva.explain(task, chat).output == pytest.approx(float(seen["logits"].max()), **EXACT)
