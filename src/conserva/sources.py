"""Where relevance ends: the inputs that a user gave, or tensors inside the model."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .errors import Error
from .hooks import hooked
from .operations.elementwise import forget_trail


class Sources:
    """The tensors whose relevance is asked for, found while the model runs.

    The first on each path from the input becomes a leaf: everything else is then a constant, so the books close.
    Those further on are read off on the way.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], features: Mapping[str, Tensor], inputs: bool, places: Sequence[str]
    ) -> None:
        self.leaves: dict[str, Tensor] = {}
        self.passed: dict[str, Tensor] = {}
        self._features = features if inputs else {}
        self._tables = word_tables(modules) if inputs else {}
        self._modules = _chosen(modules, places)
        self._named = set(places)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the explained inputs."""
        return tuple(self._features)

    def open_inputs(self) -> dict[str, Tensor]:
        """Return the numbers among the explained inputs as leaves; ids become numbers when they are looked up."""
        numbers = {name: x for name, x in self._features.items() if x.is_floating_point()}
        return {name: self._add_leaf(name, x) for name, x in numbers.items()}

    def looked_up(self, ids: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
        """Return the rows of a table as a leaf if they stand for explained ids."""
        given = {name: x for name, x in self._features.items() if not x.is_floating_point()}
        found = [name for name, x in given.items() if _same_storage(ids, x)]
        if not found and weight.data_ptr() in self._tables:
            # The word table, asked for a copy of the ids, or for ids that the model padded or shifted.
            # What is shorter than they are is a prompt of the model's own: a constant.
            waiting = [name for name, x in given.items() if name not in self.leaves and ids.numel() >= x.numel()]
            # Where there is but one answer, the ids need not be compared: that would wait for the device.
            known = len(given) == len(waiting) == 1
            found = waiting if known else [name for name, x in given.items() if _equal(ids, x)] or waiting
        return self._add_leaf(found[0], rows) if found else rows

    def _add_leaf(self, name: str, x: Tensor) -> Tensor:
        own = x.clone() if x.is_inference() else x.detach()
        leaf = self.leaves[_free_name(name, self.leaves)] = own.requires_grad_()
        return leaf.clone()  # models may work on it in place, which a leaf does not allow

    def missing(self) -> str:
        """Return an explained input that the model made no use of, if there is one."""
        used = {name.partition("#")[0] for name in self.leaves}
        return next((name for name in self._features if name not in used), "")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Catch the outputs of the chosen modules."""
        with hooked(after=[(module, self._hook(name)) for name, module in self._modules.items()]):
            yield

    def _hook(self, name: str) -> Any:
        def catch(module: nn.Module, args: Any, output: Any) -> Any:
            x = output[0] if isinstance(output, (tuple, list)) and output else output
            if not isinstance(x, Tensor) or not x.is_floating_point():
                if name not in self._named:
                    return None  # one of many that a pattern matched
                raise Error(
                    f"at={name!r}: its output is {type(output).__name__}, not a tensor of numbers: name a module in it."
                )
            if x.requires_grad:
                self.passed[_free_name(name, self.passed)] = x
                forget_trail(x)  # no rule may link past it
                return None
            leaf = self._add_leaf(name, x)
            return (leaf, *output[1:]) if isinstance(output, (tuple, list)) else leaf

        return catch


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, numbered if it is taken: `input_ids`, `input_ids#2`."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.numel() == b.numel() and a.data_ptr() == b.data_ptr())


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(-1), b.reshape(-1))


def word_tables(modules: Mapping[str, nn.Module]) -> dict[int, int]:
    """Return the tables that a Hugging Face model calls its input embeddings: address -> number of rows."""
    tables, kinds = {}, {type(module) for module in modules.values()}
    models = tuple(kind for kind in kinds if hasattr(kind, "get_input_embeddings"))
    for module in modules.values():
        if not isinstance(module, models):
            continue
        with contextlib.suppress(NotImplementedError, AttributeError):
            weight = getattr(module.get_input_embeddings(), "weight", None)  # type: ignore[operator]
            if isinstance(weight, Tensor):
                tables[weight.data_ptr()] = weight.shape[0]
    return tables


def _chosen(modules: Mapping[str, nn.Module], places: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules that names and patterns choose."""
    chosen: dict[str, nn.Module] = {}
    for place in places:
        found = {name: module for name, module in modules.items() if name and fnmatch.fnmatchcase(name, place)}
        if not found:
            near = [name for name in modules if place.rpartition(".")[2] in name][:5] or list(modules)[1:6]
            raise Error(f"at={place!r} matches no module of {type(modules['']).__name__}. Some are: {', '.join(near)}.")
        chosen.update(found)
    return chosen
