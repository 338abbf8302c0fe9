"""What all results have in common: they show themselves, and are saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .renderers import FRAMED, RENDERERS, TEXT_FORMATS, Renderer
from .saving import loaded, saved
from .schema import read, written

Self = TypeVar("Self", bound="Stored")  # typing has it from Python 3.11 on


class Stored:
    """What is saved as JSON, with the name and version of its schema, and checked when it is read."""

    _schema: ClassVar[str]
    """The name and version of its JSON, such as "conserva/explanation/1"."""
    _noun: ClassVar[str]
    """What error messages call it, such as "explanation"."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers: what `to_json` writes."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def to_json(self) -> str:
        """Return the result as JSON."""
        return written(self, self._schema)

    @classmethod
    def from_json(cls: type[Self], text: str) -> Self:
        """Return the result that `to_json` wrote. Raise `conserva.Error` if the text is damaged."""
        return read(cls, text, cls._schema, cls._noun)

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """Return the result that was saved as JSON. Raise `conserva.Error` if the file is damaged."""
        return read(cls, loaded(path), cls._schema, cls._noun, f"path={str(path)!r}")


class Result(Stored):
    """The base class of all results. Each is a frozen dataclass, whose fields are what is saved."""

    _in_repr: ClassVar[tuple[str, ...]]
    """The fields that its `repr` shows."""

    def save(self, path: str | Path) -> Path:
        """Write the result to a file and return its path.

        Parameters
        ----------
        path
            The ending chooses the format: .json, which `load` reads; .html, a page; or .png, .svg and .pdf, a picture,
            for all results but generations.
        """
        renderers = self._renderers
        texts: dict[str, Callable[[], str]] = {".json": lambda: self.to_json() + "\n"}
        for ending, name in TEXT_FORMATS.items():
            if name in renderers:
                texts[ending] = partial(renderers[name], self)
        picture = renderers.get("picture")
        return saved(path, texts, picture and (lambda half: picture(self, half)))

    def show(self) -> None:
        """Print the result to the terminal."""
        self._renderers["terminal"](self)

    def _repr_html_(self) -> str:
        if "notebook" in self._renderers:
            return str(self._renderers["notebook"](self))
        return str(FRAMED(self._renderers["page"](self)))

    @property
    def _renderers(self) -> Mapping[str, Renderer]:
        return RENDERERS[type(self).__name__]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._in_repr)
        return f"{type(self).__name__}({fields})"
