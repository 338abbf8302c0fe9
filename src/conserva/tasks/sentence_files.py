"""The files in which sentence-transformers saves what a model does besides the network, read without that library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import Error
from ..models.pretrained import json_of, part_of

MODULES_FILE = "modules.json"
"""The file that lists the modules of a model."""

SETTINGS_FILE = "config_sentence_transformers.json"
"""The file with the prompts, the activation of a cross-encoder and the similarity of an encoder."""

_READING_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names of the file that tells how texts are tokenized: the first that exists."""

_HARMLESS = frozenset({"padding", "pad_to_multiple_of", "logits_to_keep"})
"""Options of a tokenizer that do not change the tokens of a text."""

_FOLDER = re.compile(r"(\w[\w.-]*)?")


class Truncation(nn.Module):
    """The first numbers of an embedding, as `truncate_dim` of a sentence encoder keeps them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.training = False

    def forward(self, embedding: Tensor) -> Tensor:
        """Return the first numbers."""
        return embedding[..., : self.size]

    def extra_repr(self) -> str:
        return str(self.size)


def settings_of(source: str) -> Mapping[str, Any]:
    """Return the settings of sentence-transformers; nothing for other models."""
    settings = json_of(source, SETTINGS_FILE)
    return settings if isinstance(settings, dict) else {}


def tokenizer_of(source: str, options: Mapping[str, Any], name: str) -> Any:
    """Return the tokenizer of a model, with the maximum length that sentence-transformers uses.

    Raises an `Error` if sentence-transformers would read other tokens: after a prompt, or with options.
    """
    tokenizer, settings = part_of("AutoTokenizer", source, options), settings_of(source)
    given = f"model={name!r}"
    refuse_prompt(given, settings.get("default_prompt_name"), settings.get("prompts"))
    if not settings and json_of(source, MODULES_FILE) is None:
        return tokenizer
    reading = next((found for file in _READING_FILES if isinstance(found := json_of(source, file), dict)), {})
    refuse_options(given, reading.get("processing_kwargs"))
    if reading.get("do_lower_case") and tokenizer("A B")["input_ids"] != tokenizer("a b")["input_ids"]:
        raise Error(f"{given} lowercases texts before its tokenizer: give conserva.load the model object itself.")
    longest = reading.get("max_seq_length")
    if longest is not None:
        if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
            raise Error(f"{given} has max_seq_length = {longest!r:.60}: give a number of tokens.")
        tokenizer.model_max_length = longest
    return tokenizer


def refuse_prompt(given: str, name: Any, prompts: Any) -> None:
    """Raise an `Error` if a model puts the prompt with this name before every text."""
    if name is not None and isinstance(prompts, Mapping) and (prompt := prompts.get(name)):
        raise Error(
            f"{given} puts the prompt {prompt!r:.60} before every text, which is not supported: give conserva.load the "
            "object after model.default_prompt_name = None, and write the prompt in the texts."
        )


def refuse_options(given: str, processing: Any) -> None:
    """Raise an `Error` if sentence-transformers calls the tokenizer with options that change the tokens of a text."""
    groups = processing if isinstance(processing, Mapping) else {}
    changing = {key for kind in ("text", "common") for key in groups.get(kind) or ()} - _HARMLESS
    if changing:
        raise Error(
            f"{given} tokenizes texts with processing_kwargs for {', '.join(sorted(changing))}, which is not "
            "supported: remove them. The maximum length can be set as model.max_seq_length."
        )


def modules_of(source: str, name: str) -> Mapping[str, str]:
    """Return the modules of a sentence encoder and their folders; those that are not supported raise an `Error`."""
    modules = json_of(source, MODULES_FILE)
    if not isinstance(modules, list) or not all(isinstance(module, dict) and "type" in module for module in modules):
        raise Error(f"model={name!r}: {MODULES_FILE} is not a list of modules with their types. Save the model again.")
    kinds = {str(module["type"]).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    if wrong := [path for path in kinds.values() if not _FOLDER.fullmatch(path)]:
        raise Error(f"model={name!r}: {MODULES_FILE} has the path {wrong[0]!r}: it must be a subfolder of the model.")
    return kinds


def poolings_of(source: str, modules: Mapping[str, str], name: str) -> list[str]:
    """Return the poolings of a sentence encoder, in the form of any version; without a module for it, the mean."""
    if "Pooling" not in modules:
        return ["mean"]
    settings = json_of(source, f"{modules['Pooling']}/config.json".lstrip("/"))
    if settings is not None and not isinstance(settings, dict):
        raise Error(f"model={name!r}: its pooling settings, {settings!r:.60}, are not a JSON object. Save it again.")
    named = (settings or {}).get("pooling_mode")
    if named is not None:
        return [str(one) for one in (named if isinstance(named, list) else [named])]
    flags = [key for key, value in (settings or {}).items() if key.startswith("pooling_mode_") and value is True]
    return [key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for key in flags]


def truncation_of(source: str, name: str) -> list[Truncation]:
    """Return the truncation that a sentence encoder was saved with: a list of at most one module."""
    size = settings_of(source).get("truncate_dim")
    if size is None:
        return []
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise Error(f"model={name!r} has truncate_dim = {size!r:.60}: give a number of dimensions.")
    return [Truncation(size)]
