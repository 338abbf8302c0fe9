"""The kinds of models that can be loaded, and how a configuration determines the kind."""

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
    """A kind of model: the auto class that loads it, and the task for it."""

    noun: str
    auto: str
    """The name of the transformers auto class."""
    table: str
    """The name of the transformers mapping, model type -> class, with its architectures."""
    make: Callable[..., Task]
    """Model, source, loading options, name, task options -> task."""
    classifies: bool = False
    """Whether the user can choose the output head."""


MODULES = "modules.json"
"""The file that lists the modules of a sentence encoder."""

_FOLDER = re.compile(r"(\w[\w.-]*)?")

OWN_CLASSIFIERS = {"AttentionOnly"}
"""The text classifiers of this package, which are not in the mappings of transformers."""


def head_of(config: Any, source: str, name: str) -> Head:
    """Return the kind of a model; raise an `Error` if there is no task for it."""
    architectures = [str(architecture) for architecture in getattr(config, "architectures", None) or ()]
    if not any(architecture.endswith("ForSequenceClassification") for architecture in architectures) and (
        json_of(source, MODULES) is not None
    ):
        return SENTENCES
    for head in HEADS:
        if set(architectures) & _classes(head.table) or head.auto in (getattr(config, "auto_map", None) or {}):
            return head
    if set(architectures) & OWN_CLASSIFIERS:
        return HEADS[0]
    if not architectures:
        return HEADS[0]  # configurations of old classifiers have none; missing weights are an error later
    known = ", ".join(head.noun for head in (*HEADS, SENTENCES))
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        raise Error(
            f"model={name!r} is {' and '.join(architectures)}. If it compares images with texts, give the texts as "
            "labels: conserva.load(..., labels=['a cat', 'a dog'])."
        )
    raise Error(
        f"model={name!r} is {' and '.join(architectures)}, for which there is no task. It must be one of: {known}. "
        "Fine-tune it for one of these, or call conserva.relevance with the model itself."
    )


def _classes(table: str) -> set[str]:
    """Return the architectures in a transformers mapping."""
    from transformers.models.auto import modeling_auto

    classes: set[str] = set()
    for names in getattr(modeling_auto, table).values():
        classes.update([names] if isinstance(names, str) else names)
    return classes


def _with_tokenizer(task: Callable[..., Task]) -> Callable[..., Task]:
    def make(model: Any, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Task:
        return task(model, part_of("AutoTokenizer", source, options), name=name, **how)

    return make


def _sentences(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
    """Return the task of a sentence encoder, with the pooling in its files; raise an `Error` for unknown poolings."""
    modules = json_of(source, MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) and "type" in module for module in modules):
        raise Error(f"model={name!r}: {MODULES} is not a list of modules with their types. Save the model again.")
    kinds = {str(module["type"]).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    if wrong := [path for path in kinds.values() if not _FOLDER.fullmatch(path)]:
        raise Error(f"model={name!r}: {MODULES} has the path {wrong[0]!r}: it must be a subfolder of the model.")
    pooling = (
        json_of(source, f"{kinds['Pooling']}/config.json".lstrip("/"))
        if "Pooling" in kinds
        else {"pooling_mode_mean_tokens": True}
    )
    if pooling is not None and not isinstance(pooling, dict):
        raise Error(f"model={name!r}: its pooling settings, {pooling!r:.60}, are not a JSON object. Save it again.")
    poolings = [key for key, value in (pooling or {}).items() if key.startswith("pooling_mode_") and value is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if others or len(poolings) != 1 or poolings[0] not in known:
        raise Error(
            f"model={name!r} uses {', '.join([*others, *poolings])}: only mean pooling and pooling of the first token "
            "are supported. Wrap it in a module and use conserva.relevance instead."
        )
    return Similarity(model, part_of("AutoTokenizer", source, options), name, pooling=known[poolings[0]])


def _image(model: Any, source: str, options: Mapping[str, Any], name: str, **how: Any) -> Task:
    pillow()  # first, since the error of transformers does not name the extra to install
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
