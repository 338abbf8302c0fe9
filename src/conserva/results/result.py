"""The base classes of all results: saving, loading and rendering."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .renderers import FRAMED, RENDERERS, TEXT_FORMATS, Renderer
from .saving import loaded, saved
from .schema import read, written
from .table import Row

Self = TypeVar("Self", bound="Stored")  # typing.Self needs Python 3.11


class Stored:
    """A dataclass that is saved as JSON with a schema version, and validated when it is loaded."""

    _schema: ClassVar[str]
    """The name and version of its JSON schema, such as "conserva/explanation/1"."""
    _noun: ClassVar[str]
    """Its name in error messages, such as "explanation"."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers, as in `to_json`."""
        fields: dict[str, Any] = json.loads(self.to_json())
        return fields

    def to_json(self) -> str:
        """Return the result as JSON."""
        return written(self, self._schema)

    @classmethod
    def from_json(cls: type[Self], text: str) -> Self:
        """Load a result from the JSON of `to_json`. Raise `conserva.Error` if the JSON is invalid."""
        return read(cls, text, cls._schema, cls._noun)

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """Load a result from a .json file written by `save`. Raise `conserva.Error` if the file is invalid."""
        return read(cls, loaded(path), cls._schema, cls._noun, f"path={str(path)!r}")


class Result(Stored):
    """The base class of all results: frozen dataclasses, whose fields are saved."""

    _in_repr: ClassVar[tuple[str, ...]]
    """The fields shown by `repr`."""

    def save(self, path: str | Path) -> Path:
        """Write the result to a file and return its path.

        Parameters
        ----------
        path
            The suffix chooses the format: .json, which `load` reads; .html, a page; .png, .svg or .pdf, a picture
            (not available for generations); for `Explanations` also .csv, .jsonl or .parquet, a table.
        """
        renderers = self._renderers
        texts: dict[str, Callable[[], str]] = {".json": lambda: self.to_json() + "\n"}
        for ending, name in TEXT_FORMATS.items():
            if name in renderers:
                texts[ending] = partial(renderers[name], self)
        picture = renderers.get("picture")
        return saved(path, texts, picture and (lambda file: picture(self, file)), self._rows())

    def show(self) -> None:
        """Print the result to the terminal."""
        self._renderers["terminal"](self)

    def _repr_html_(self) -> str:
        if "notebook" in self._renderers:
            return str(self._renderers["notebook"](self))
        return str(FRAMED(self._renderers["page"](self)))

    def _rows(self) -> Iterable[Row] | None:
        """Return the rows of the table that the result is saved as; None if it is not saved as a table."""
        return None

    @property
    def _renderers(self) -> Mapping[str, Renderer]:
        return RENDERERS[type(self).__name__]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._in_repr)
        return f"{type(self).__name__}({fields})"
