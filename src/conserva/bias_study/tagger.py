"""Entities found by a token classifier, such as one trained on CoNLL-2003; each entity type is a group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .._util.files import expanded
from ..errors import Error
from ..models.pretrained import UNTRUSTED, config_of, model_of, part_of, reading
from ..tasks.tokenizing import call_tokenizer
from .mentions import Tagger

Word = tuple[int, int, str]
"""Start character, end character and label of a word."""


def tagger_of(name: str | Path) -> Tagger:
    """Return the tagger of a Hugging Face token classifier, in a folder or on the hub.

    Its labels are of the form "B-PER", "I-PER", "O". A word has the label of its first token. A text that is too long
    for the model is split.
    """
    import torch

    given, source = f"tagger={str(name)!r}", str(expanded(name)) if os.path.isdir(expanded(name)) else str(name)
    with reading(given, "give a folder with a token classifier and its tokenizer, or a name on the hub."):
        config = config_of(source, UNTRUSTED)
        model, missing = model_of("AutoModelForTokenClassification", source, UNTRUSTED, config)
        tokenizer = part_of("AutoTokenizer", source, UNTRUSTED)
    named = getattr(model.config, "architectures", None) or ["TokenClassification"]
    if missing or not any("TokenClassification" in architecture for architecture in named):
        raise Error(f"tagger={str(name)!r} is not a token classifier: choose a model that labels words.")
    if not tokenizer.is_fast:
        raise Error(f"tagger={str(name)!r} has a slow tokenizer, which does not return offsets: choose another model.")
    longest = min(int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", 512)))

    def tagger(text: str) -> list[tuple[int, int, str]]:
        parts = call_tokenizer(
            tokenizer, text, truncation=True, max_length=longest, return_overflowing_tokens=True, return_tensors=None
        )
        words: dict[int, Word] = {}
        for encoding in parts.encodings:
            with torch.no_grad():
                logits = model(
                    input_ids=torch.tensor([encoding.ids]), attention_mask=torch.tensor([encoding.attention_mask])
                ).logits[0]
            labels = [model.config.id2label[int(index)] for index in logits.argmax(-1)]
            for word, (start, end), label in zip(encoding.word_ids, encoding.offsets, labels, strict=True):
                if word is not None:
                    first = words.get(word, (start, end, label))
                    words[word] = (first[0], end, first[2])
        return entities(list(words.values()))

    tagger.name = str(name)  # type: ignore[attr-defined]
    return tagger


def entities(words: Sequence[Word]) -> list[tuple[int, int, str]]:
    """Return the entities of labelled words: an entity begins with "B-", or where the type changes."""
    spans: list[tuple[int, int, str]] = []
    current = ""
    for start, end, label in words:
        kind = label[2:] if label[:2] in ("B-", "I-") else label
        if label == "O":
            kind = ""
        elif kind == current and not label.startswith("B-"):
            spans[-1] = (spans[-1][0], end, kind)
        else:
            spans.append((start, end, kind))
        current = kind
    return spans
