"""Which task a model is for, as its own configuration says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Error
from ..models.pretrained import json_of, part_of
from . import Blanks, Causal, Image, Question, Seq2Seq, Similarity, Speech, Task, Text, Tokens
from .pixels import pillow


@dataclass(frozen=True)
class Head:
    """A kind of model: transformers' class that loads it, and the task that is made of it."""

    noun: str
    auto: str
    """The auto class of transformers."""
    table: str
    """The table of transformers, type of model -> class, that has its architectures."""
    make: Callable[..., Task]
    """A model, where it came from, options of loading, its name, options of the task -> the task."""
    classifies: bool = False
    """Whether the task has an output head that the user may name."""


MODULES = "modules.json"
"""The file in which a sentence encoder says what it is made of."""

_FOLDER = re.compile(r"(\w[\w.-]*)?")

OWN_CLASSIFIERS = {"AttentionOnly"}
"""The text classifiers of this package, which transformers' tables do not have."""


def head_of(config: Any, source: str, name: str) -> Head:
    """Return the kind of a model; one that has no head which can be explained is refused."""
    architectures = [str(one) for one in getattr(config, "architectures", None) or ()]
    if not any(one.endswith("ForSequenceClassification") for one in architectures) and (
        json_of(source, MODULES) is not None
    ):
        return SENTENCES
    for head in HEADS:
        if set(architectures) & _classes(head.table) or head.auto in (getattr(config, "auto_map", None) or {}):
            return head
    if set(architectures) & OWN_CLASSIFIERS:
        return HEADS[0]
    if not architectures:
        return HEADS[0]  # as such files were written once; what is missing is said when the weights are there
    known = ", ".join(head.noun for head in (*HEADS, SENTENCES))
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        raise Error(
            f"model={name!r} is {' and '.join(architectures)}. If it compares images with texts, say with which: "
            "conserva.load(..., labels=['a cat', 'a dog'])."
        )
    raise Error(
        f"model={name!r} is {' and '.join(architectures)}, for which there is no task. It must be one of: {known}. "
        "Fine-tune it for one of these, or call conserva.relevance with the model itself."
    )


def _classes(table: str) -> set[str]:
    """Return the architectures of one of transformers' tables."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for one in getattr(modeling_auto, table).values():
        found.update([one] if isinstance(one, str) else one)
    return found


def _with_tokenizer(task: Callable[..., Task]) -> Callable[..., Task]:
    def make(model: Any, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Task:
        return task(model, part_of("AutoTokenizer", source, options), name=name, **how)

    return make


def _sentences(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
    """Return a sentence encoder with the pooling that its own files ask for; others are refused."""
    modules = json_of(source, MODULES)
    if not isinstance(modules, list) or not all(isinstance(one, dict) and "type" in one for one in modules):
        raise Error(f"model={name!r}: {MODULES} is not a list of modules with their types. Save the model again.")
    kinds = {str(one["type"]).rpartition(".")[2]: str(one.get("path", "")) for one in modules}
    if wrong := [path for path in kinds.values() if not _FOLDER.fullmatch(path)]:
        raise Error(f"model={name!r}: {MODULES} has the path {wrong[0]!r}: it must be a folder of the model's own.")
    asked = (
        json_of(source, f"{kinds['Pooling']}/config.json".lstrip("/"))
        if "Pooling" in kinds
        else {"pooling_mode_mean_tokens": True}
    )
    if asked is not None and not isinstance(asked, dict):
        raise Error(f"model={name!r}: the settings of its pooling are {asked!r:.60}, no JSON object. Save it again.")
    poolings = [key for key, value in (asked or {}).items() if key.startswith("pooling_mode_") and value is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if others or len(poolings) != 1 or poolings[0] not in known:
        raise Error(
            f"model={name!r} makes its vectors by {', '.join([*others, *poolings])}: only the mean of all tokens and "
            "the first token are known. conserva.relevance explains it through a module that does the same."
        )
    return Similarity(model, part_of("AutoTokenizer", source, options), name, pooling=known[poolings[0]])


def _image(model: Any, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Task:
    pillow()  # first: without it transformers does not say which extra to install
    return Image(model, part_of("AutoImageProcessor", source, options), name=name, **how)


def _speech(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
    extractor, tokenizer = (part_of(auto, source, options) for auto in ("AutoFeatureExtractor", "AutoTokenizer"))
    return Speech(model, extractor, tokenizer, name)


LANGUAGE = Head("language model", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _with_tokenizer(Causal))

HEADS = (
    Head(
        "text classifier",
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        _with_tokenizer(Text),
        classifies=True,
    ),
    LANGUAGE,
    Head("speech model", "AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", _speech),
    Head(
        "sequence-to-sequence model",
        "AutoModelForSeq2SeqLM",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        _with_tokenizer(Seq2Seq),
    ),
    Head(
        "image classifier",
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        _image,
        classifies=True,
    ),
    Head(
        "token classifier",
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        _with_tokenizer(Tokens),
        classifies=True,
    ),
    Head(
        "question answering model",
        "AutoModelForQuestionAnswering",
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        _with_tokenizer(Question),
    ),
    Head(
        "masked language model",
        "AutoModelForMaskedLM",
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        _with_tokenizer(Blanks),
    ),
)

SENTENCES = Head("sentence encoder", "AutoModel", "MODEL_MAPPING_NAMES", _sentences)
