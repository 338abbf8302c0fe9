"""Results in which every free text is hostile, and their harmless twins, which differ in nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from attacking import hostile_text

TEXTS = frozenset({
    "check", "data", "features", "label", "labels", "layers", "left_out", "model", "others", "provenance", "refused",
    "score", "sections", "sentences", "target", "text", "token", "written",
})  # fmt: skip
"""Fields that hold anything: each string in them is replaced by a text of its own."""

NAMES = frozenset({
    "a", "b", "dataset", "entity", "function", "group", "kind", "method", "module", "name", "path", "rule", "rules",
    "title",
})  # fmt: skip
"""Fields that hold names: the same name gets the same text everywhere, and no two get the same."""

BARE = ("", " ", "\n", "\r\n", "\t", "\x00", "\x1b", "\u2028", "\ud800", "[/]", ":smile:", "$", "\\")

Change = Callable[[str, str], str]


def poisoned(value: Any, rng: random.Random, keep: frozenset[str] = frozenset()) -> tuple[Any, Any, list[str]]:
    """Return a hostile result, its harmless twin, and the texts in it; fields that are kept stay as they are."""
    texts: list[str] = []
    names: dict[str, str] = {}
    by_harmless: dict[str, str] = {}

    def change(kind: str, old: str) -> str:
        if kind == "name" and old in names:
            return names[old]
        new = rng.choice(BARE) if rng.random() < 0.15 else hostile_text(rng, surrogates=True)
        if kind == "name":
            new = names[old] = f"{new}#{len(names)}"
        elif by_harmless.setdefault(harmless(new), new) != new:  # views leave out a sentence that they have shown
            new = f"{new}{len(texts)}"
        texts.append(new)
        return new

    hostile = _changed(value, change, keep)
    tame = iter([harmless(text) for text in texts])
    names.clear()

    def undo(kind: str, old: str) -> str:
        if kind == "name":
            if old not in names:
                names[old] = next(tame)
            return names[old]
        return next(tame)

    return hostile, _changed(value, undo, keep), texts


def harmless(text: str) -> str:
    """Return a text in which nothing is left that anything could take for a command, as long as it was."""
    return "".join(one if one.isalnum() or one in " _.:#-" else "x" for one in text)


def _changed(value: Any, change: Change, keep: frozenset[str], kind: str = "") -> Any:
    if isinstance(value, str):
        return change(kind, value) if kind else value
    if isinstance(value, (tuple, list)):
        return type(value)(_changed(one, change, keep, kind) for one in value)
    if isinstance(value, Mapping):
        named = "name" if kind else ""  # two keys must not become one
        return {_changed(key, change, keep, named): _changed(one, change, keep, kind) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{
                field.name: _changed(getattr(value, field.name), change, keep, _kind(field.name, keep))
                for field in dataclasses.fields(value)
            },
        )
    return value


def _kind(field: str, keep: frozenset[str]) -> str:
    return "" if field in keep else "text" if field in TEXTS else "name" if field in NAMES else ""
