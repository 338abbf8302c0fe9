"""Inputs with features removed, and the tokens that replace removed tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ..errors import Error

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Self

MASKS = ("unk", "mask", "pad", "drop")
"""How tokens are removed: replaced by the tokenizer's unknown, mask or pad token, or ("drop") masked in attention."""


def mask_of(tokenizer: PreTrainedTokenizerBase, given: str | None, preferred: Sequence[str]) -> str:
    """Return the given mask, or else the first preferred one that the tokenizer supports."""
    if given is not None and given not in MASKS:
        raise Error(f"mask={given!r} is unknown: choose one of {', '.join(MASKS)}.")
    supported = [mask for mask in MASKS if mask == "drop" or _id_of(tokenizer, mask) is not None]
    for mask in [given] if given is not None else preferred:
        if mask in supported:
            return mask
    wanted = given or ", ".join(preferred)
    raise Error(f"mask={wanted!r}: the tokenizer has no such token. Choose one of {', '.join(supported)}.")


@dataclass(frozen=True)
class TextRows:
    """A text with different tokens removed in each row: ids and attention mask, rows x tokens."""

    ids: np.ndarray
    attention: np.ndarray
    types: np.ndarray | None = field(default=None, kw_only=True)
    """The token type ids, which do not change; None if the model gets none."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | np.ndarray) -> Self:
        return replace(self, **{name: array[rows] for name, array in vars(self).items() if array is not None})

    @property
    def width(self) -> int:
        """The number of tokens of the text."""
        return int(self.ids.shape[1])

    def keys(self) -> np.ndarray:
        """Return the bytes of all inputs of each row; rows of different texts can be equal."""
        arrays = [array.reshape(len(self), -1) for array in vars(self).values() if array is not None]
        return np.ascontiguousarray(np.concatenate(arrays, axis=1)).view(np.uint8)


E = TypeVar("E", bound=Sized)


@dataclass(frozen=True, eq=False)
class KeptRows(Generic[E]):
    """An input with different features removed in each row, stored as the features that are kept."""

    encoded: E
    kept: np.ndarray
    """Rows x features."""
    mask: str

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, rows: slice | np.ndarray) -> Self:
        return replace(self, kept=self.kept[rows])

    @property
    def width(self) -> int:
        """The number of features of the input."""
        return len(self.encoded)

    def keys(self) -> np.ndarray:
        """Return the identity of the input and the features that are kept."""
        owner = np.frombuffer(id(self.encoded).to_bytes(8, "little"), np.uint8)
        return np.concatenate([np.broadcast_to(owner, (len(self), 8)), self.kept.astype(np.uint8)], axis=1)


def masked(
    tokenizer: PreTrainedTokenizerBase,
    ids: np.ndarray,
    kept: np.ndarray,
    mask: str,
    types: Sequence[int] | None = None,
) -> TextRows:
    """Return a text in which each row keeps the tokens given by `kept`, rows x tokens; `types` are token type ids."""
    whole = None if types is None else np.broadcast_to(np.array(types, np.int64), kept.shape)
    if mask == "drop":
        return TextRows(np.broadcast_to(ids, kept.shape), kept.astype(np.int64), types=whole)
    ids = np.where(kept, ids, _id_of(tokenizer, mask) or 0)
    return TextRows(ids, np.ones(kept.shape, dtype=np.int64), types=whole)


def _id_of(tokenizer: PreTrainedTokenizerBase, mask: str) -> int | None:
    return getattr(tokenizer, f"{mask}_token_id", None)
