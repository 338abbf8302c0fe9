"""Which task a model is for, as its own configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Error
from .tasks import Blanks, Causal, Image, Question, Seq2Seq, Similarity, Speech, Task, Text, Tokens


@dataclass(frozen=True)
class Head:
    """A kind of model: transformers' class that loads it, and the task that is made of it."""

    noun: str
    auto: str
    """The auto class of transformers."""
    table: str
    """The table of transformers, type of model -> class, that has its architectures."""
    make: Callable[[Any, str, Mapping[str, Any], str], Task]
    """A model, where it came from, options of loading, its name -> the task."""


OWN_CLASSIFIERS = {"AttentionOnly"}
"""The text classifiers of this package, which transformers' tables do not have."""


def head_of(config: Any, source: str, name: str) -> Head:
    """Return the kind of a model; one that has no head which can be explained is refused."""
    architectures = [str(one) for one in getattr(config, "architectures", None) or ()]
    for head in HEADS:
        if set(architectures) & _classes(head.table) or head.auto in (getattr(config, "auto_map", None) or {}):
            return head
    if set(architectures) & OWN_CLASSIFIERS:
        return HEADS[0]
    if not architectures:
        return HEADS[0]  # as such files were written once; what is missing is said when the weights are there
    if (Path(source) / "modules.json").is_file():
        return SENTENCES
    known = ", ".join(head.noun for head in (*HEADS, SENTENCES))
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


def _from(auto: str, source: str, options: Mapping[str, Any]) -> Any:
    """Load what comes with a model by one of transformers' auto classes."""
    import transformers

    return getattr(transformers, auto).from_pretrained(source, **options)


def _with_tokenizer(task: Callable[..., Task]) -> Callable[[Any, str, Mapping[str, Any], str], Task]:
    def make(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
        return task(model, _from("AutoTokenizer", source, options), name=name)

    return make


def _image(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
    return Image(model, _from("AutoImageProcessor", source, options), name=name)


def _speech(model: Any, source: str, options: Mapping[str, Any], name: str) -> Task:
    extractor, tokenizer = (_from(auto, source, options) for auto in ("AutoFeatureExtractor", "AutoTokenizer"))
    return Speech(model, extractor, tokenizer, name)


LANGUAGE = Head("language model", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _with_tokenizer(Causal))

HEADS = (
    Head(
        "text classifier",
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        _with_tokenizer(Text),
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
    ),
    Head(
        "token classifier",
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        _with_tokenizer(Tokens),
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

SENTENCES = Head("sentence encoder", "AutoModel", "MODEL_MAPPING_NAMES", _with_tokenizer(Similarity))
