"""How transformers loads the models of a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: the auto class that loads it, and the architectures it has."""

    noun: str
    """Its name in error messages, such as "text classifier"."""
    auto: str
    """The name of the transformers auto class."""
    table: str = ""
    """The name of the transformers mapping, model type -> class, with its architectures; "" for models of our own."""
    classifies: bool = False
    """Whether the user can choose the output head."""

    def architectures(self) -> set[str]:
        """Return the names of the architectures."""
        from transformers.models.auto import modeling_auto

        if not self.table:
            return set()
        classes: set[str] = set()
        for names in getattr(modeling_auto, self.table).values():
            classes.update([names] if isinstance(names, str) else names)
        return classes
