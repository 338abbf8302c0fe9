"""A model that looks something up in every pass, and twelve ways to change that from outside of the model."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn
from transformers import LlamaForSequenceClassification
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama


class Reading(LlamaForSequenceClassification):
    """A model that multiplies its scores by a number that it looks up in every pass."""

    read: Callable[[], float] = staticmethod(lambda: 1.0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.logits = found.logits.mul(self.read())
        return found


SCALE = 1.0
SETTINGS = SimpleNamespace(scale=1.0)
CONTEXT = contextvars.ContextVar("CONTEXT", default=1.0)


class Imported:
    scale = 1.0


def by_default(scale: float = 1.0) -> float:
    return scale


def closure() -> Any:
    scale = 1.0

    def read() -> float:
        return scale

    return read


def _replace_rotary(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda query, key, *args, **kwargs: (query, key))


def _register_attention(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    def doubled(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        return sdpa_attention_forward(module, 2 * query, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS.register("sdpa", doubled)


def _replace_silu(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    plain = nn.functional.silu
    patch.setattr(nn.functional, "silu", lambda x, inplace=False: plain(2 * x))


def _set_global(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setitem(globals(), "SCALE", 2.0)


def _set_context(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    CONTEXT.set(2.0)


def _set_cell(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    model.read.__closure__[0].cell_contents = 2.0


def _set_environment(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setenv("CONSERVA_TEST_SCALE", "2.0")


def _set_class_attribute(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setattr(Imported, "scale", 2.0)


def _write_file(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    file.write_text("2.0")


def _replace_method(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    plain = Tensor.mul

    def mul(x: Tensor, y: Any) -> Tensor:
        return plain(x, 2 * y)

    patch.setattr(Tensor, "mul", mul)


def _set_default(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setattr(by_default, "__defaults__", (2.0,))


def _set_settings(patch: pytest.MonkeyPatch, model: Any, file: Path) -> None:
    patch.setattr(SETTINGS, "scale", 2.0)


def restore_attention() -> None:
    """Undo what the registration of an attention function changed."""
    ALL_ATTENTION_FUNCTIONS.register("sdpa", sdpa_attention_forward)


STALE: dict[str, tuple[Callable[..., None], Callable[[Path], Any]]] = {
    "a function of an imported module": (_replace_rotary, lambda file: lambda: 1.0),
    "a registered attention function": (_register_attention, lambda file: lambda: 1.0),
    "a function of torch": (_replace_silu, lambda file: lambda: 1.0),
    "a module global": (_set_global, lambda file: lambda: SCALE),
    "a context variable": (_set_context, lambda file: CONTEXT.get),
    "a closure cell": (_set_cell, lambda file: closure()),
    "an environment variable": (_set_environment, lambda file: lambda: float(os.environ.get("CONSERVA_TEST_SCALE", 1))),
    "a class attribute": (_set_class_attribute, lambda file: lambda: Imported.scale),
    "a file": (_write_file, lambda file: lambda: float(file.read_text())),
    "a method of torch.Tensor": (_replace_method, lambda file: lambda: 1.0),
    "a default argument": (_set_default, lambda file: by_default),
    "settings of another module": (_set_settings, lambda file: lambda: SETTINGS.scale),
}
"""What changes -> how it is changed, and what the model reads, given a file of its own."""
