"""Pipelines of transformers: which task they are, their output head, and options that change what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Error
from .detection import task_class_of_object
from .task import Task

PIPELINES = {
    "TextClassificationPipeline": "Text",
    "ZeroShotClassificationPipeline": "Text",
    "TokenClassificationPipeline": "Tokens",
    "FillMaskPipeline": "Blanks",
    "TextGenerationPipeline": "Causal",
    "ImageClassificationPipeline": "Image",
    "ZeroShotImageClassificationPipeline": "Image",
    "AutomaticSpeechRecognitionPipeline": "Speech",
}
"""The classes of pipelines of transformers, and the tasks of their models."""

ZERO_SHOT = "ZeroShotClassificationPipeline"
"""The class of pipelines that compare a text with hypotheses."""

_HEADS = {"none": "regression", "softmax": "single_label", "sigmoid": "multi_label"}
"""What the pipelines of classifiers apply to the logits, and the output head that does the same."""

_DEFAULTS: Mapping[str, Any] = {"add_special_tokens": True, "is_split_into_words": False, "prefix": ""}
"""Options of tokenization, and their values without an effect."""

_WITHOUT_EFFECT = frozenset({"padding", "pad_to_multiple_of", "truncation", "verbose"})
"""Options of tokenization that do not change the tokens of a text which is not too long."""

_STEPS = ("__call__", "preprocess", "forward", "_forward", "postprocess")
"""What a pipeline calls between its input and its answer."""

_OF_PROMPTS = ("prefix", "add_special_tokens", "max_length", "tools", "documents", "continue_final_message")
"""Options of tokenization in a pipeline for text generation; its others are for the generation."""

_OF_TRANSCRIPTION = ("language", "task", "prompt_ids", "return_timestamps")
"""Options of a pipeline for speech recognition that change the first tokens of a transcription."""


def pipeline_class(pipe: Any) -> str:
    """Return the name of the class of a supported pipeline; raise an `Error` for another."""
    names = [base.__name__ for base in type(pipe).__mro__]
    if (found := next((name for name in names if name in PIPELINES), None)) is not None:
        return found
    known = ", ".join(name.removesuffix("Pipeline") for name in PIPELINES)
    instead = (
        "To explain how similar two texts are, make conserva.Similarity(pipe.model, pipe.tokenizer)."
        if "FeatureExtractionPipeline" in names
        else "For another model, call conserva.relevance(pipe.model, inputs, target)."
    )
    raise Error(f"{_shown(pipe)}, which no task supports. Supported are the pipelines {known}. {instead}")


def check_model(pipe: Any, has_labels: bool) -> None:
    """Raise an `Error` unless the model of a supported pipeline is of its task; `has_labels` are texts for images."""
    wanted = PIPELINES[pipeline_class(pipe)]
    for name in _STEPS:
        if name in vars(pipe) or not getattr(type(pipe), name).__module__.startswith("transformers."):
            raise Error(
                f"{_shown(pipe)} with a {name}() of its own, which is not explained: its task calls the tokenizer and "
                f"the model. Explain these, as conserva.load(pipe.model, ...), with what {name}() returns."
            )
    found = "Image" if has_labels else task_class_of_object(pipe.model).__name__
    if found != wanted:
        raise Error(
            f"{_shown(pipe)} with a {type(pipe.model).__name__}, which no task supports: the model of such a "
            f"pipeline must be one that conserva.{wanted} accepts."
        )


def head_of(pipe: Any) -> str | None:
    """Return the output head of a pipeline that classifies: by default, one logit has a sigmoid. None for others."""
    name = pipeline_class(pipe)
    if name == "TokenClassificationPipeline":
        return "single_label"
    if PIPELINES[name] not in ("Text", "Image") or name == "ZeroShotImageClassificationPipeline":
        return None
    config = pipe.model.config
    chosen = _options(pipe, "postprocess").get("function_to_apply")
    if chosen is not None:
        applied = str(getattr(chosen, "value", chosen))
    elif config.problem_type == "regression" and PIPELINES[name] == "Text":  # those of images have a probability
        applied = "none"
    else:
        applied = (
            "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"
        )
    return "binary" if applied == "sigmoid" and config.num_labels == 1 else _HEADS[applied]


def refuse_options(pipe: Any, task: Task) -> None:
    """Raise an `Error` if a pipeline was created with options by which it computes something else than the task."""
    name = pipeline_class(pipe)
    if changing := sorted(set(_of_tokens(pipe, name, task))):
        raise Error(
            f"{_shown(pipe)} that was created with {', '.join(changing)}, which changes its tokens and is not "
            "supported: leave it out. The maximum length can be set as pipe.tokenizer.model_max_length."
        )
    after = _options(pipe, "postprocess")
    if after.get("target_ids") is not None:
        raise Error(
            f"{_shown(pipe)} that was created with targets, which exclude other words: leave them out, and give the "
            "word as the target of conserva.explain."
        )
    strategy = getattr(after.get("aggregation_strategy"), "value", None)
    if strategy in ("average", "max"):
        raise Error(
            f"{_shown(pipe)} with the aggregation_strategy {strategy!r}, which reads the label of a word from all its "
            "tokens, but one logit is explained: choose 'first', which reads it from the first."
        )
    if name == "AutomaticSpeechRecognitionPipeline":
        _refuse_transcription(pipe)


def _of_tokens(pipe: Any, name: str, task: Task) -> Iterator[str]:
    """Yield the options by which a pipeline reads other tokens than its tokenizer returns by default."""
    given = _options(pipe, "preprocess")
    if name == "TextClassificationPipeline":
        options = given
    elif name == "FillMaskPipeline":
        options = given.get("tokenizer_kwargs") or {}
    elif name == "TokenClassificationPipeline":
        options = {key: given.get(key) for key in ("is_split_into_words", "offset_mapping")}
    elif name == "TextGenerationPipeline":
        options = {key: given.get(key) for key in (*_OF_PROMPTS, "truncation")}
        options |= given.get("tokenizer_encode_kwargs") or {}
    else:
        options = {}
    for key, value in options.items():
        if key == "max_length" and (not options.get("truncation") or (value or task.longest) >= task.longest):
            continue
        if value is not None and key not in _WITHOUT_EFFECT and value != _DEFAULTS.get(key):
            yield key


def _refuse_transcription(pipe: Any) -> None:
    """Raise an `Error` if a pipeline cuts recordings, or begins to transcribe with other tokens than its tokenizer."""
    extractor, seconds = pipe.feature_extractor, _options(pipe, "preprocess").get("chunk_length_s")
    if seconds and seconds * extractor.sampling_rate < extractor.n_samples:
        raise Error(
            f"{_shown(pipe)} that was created with chunk_length_s={seconds}, which cuts recordings that the "
            "model takes whole: leave it out."
        )
    set_them = "pipe.tokenizer.set_prefix_tokens(language='english', task='transcribe')"
    options = _options(pipe, "forward")
    if given := [key for key in _OF_TRANSCRIPTION if options.get(key)]:
        raise Error(
            f"{_shown(pipe)} that was created with {', '.join(given)}, which changes the first tokens of a "
            f"transcription: leave it out, and set them with {set_them}."
        )
    languages = getattr(getattr(pipe.model, "generation_config", None), "lang_to_id", None)
    if languages and getattr(pipe.tokenizer, "language", None) is None:
        raise Error(
            f"{_shown(pipe)} that detects the language of every recording: choose the language that is explained, with "
            f"{set_them}."
        )


def _options(pipe: Any, step: str) -> Mapping[str, Any]:
    """Return the options that the constructor of a pipeline was given for one of its steps."""
    found: Mapping[str, Any] = getattr(pipe, f"_{step}_params", {})
    return found


def _shown(pipe: Any) -> str:
    return f"model is a pipeline for {pipe.task or type(pipe).__name__!r}"
