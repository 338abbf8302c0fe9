"""Where relevance ends: the inputs that a user gave, or tensors inside the model."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import Error
from .hooks import hooked
from .operations.elementwise import forget_trail
from .token_ids import Ids, Inputs

if TYPE_CHECKING:
    from .context import Propagation


class Sources:
    """The tensors whose relevance is asked for, found while the model runs.

    The first on each path from the input becomes a leaf: everything else is then a constant, so the books close.
    Those further on are read off on the way.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        features: Mapping[str, Tensor],
        inputs: bool,
        places: Sequence[str],
        candidates: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Look for features, for candidates, which are explained if they are looked up, and for modules' outputs."""
        self.leaves: dict[str, Tensor] = {}
        self.passed: dict[str, Tensor] = {}
        self._features = features if inputs else {}
        self._candidates = (candidates or {}) if inputs else {}
        self._tables = word_tables(modules) if inputs else {}
        self._modules = _chosen(modules, places)
        self._named = set(places)
        self._all, self._kept = modules, None  # type: Mapping[str, nn.Module], set[int] | None
        given = {**self._candidates, **self._features}
        self._ids = Inputs({name: x for name, x in given.items() if not x.is_floating_point()})
        self._landings: dict[str, _Landing] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the explained inputs."""
        used = {landing.name for landing in self._landings.values()}
        return tuple(name for name in {**self._features, **self._candidates} if self._is_required(name) or name in used)

    def open_inputs(self) -> dict[str, Tensor]:
        """Return the numbers among the explained inputs as leaves, and ids as what tells where they are looked up."""
        numbers = {name: x for name, x in self._features.items() if x.is_floating_point()}
        return {**{name: self._add_leaf(name, x) for name, x in numbers.items()}, **self._ids.opened()}

    def close(self) -> None:
        """Let nothing of the ids' tracking stay behind."""
        self._ids.close()

    def keeps(self, table: Tensor) -> bool:
        """Tell whether a tensor is a parameter or a buffer of the model, or a part of one."""
        if self._kept is None:
            held = [
                x for module in self._all.values() for x in (*module._parameters.values(), *module._buffers.values())
            ]
            self._kept = {x.untyped_storage().data_ptr() for x in held if x is not None}
        return table.untyped_storage().data_ptr() in self._kept

    def explains(self, ids: Ids, table: Tensor | None = None) -> list[str]:
        """Return the explained inputs that ids come from: of candidates, those that are looked up in such a table."""
        names = ids.conserva_origin.names
        # A Hugging Face model says which of its tables are of words: others are for boxes, languages and the like.
        fits = table is not None and (not self._tables or table.data_ptr() in self._tables)
        return [name for name in self._ids.given if name in names and (name in self._features or fits)]

    def looked_up(
        self,
        context: Propagation,
        ids: Ids,
        table: Tensor,
        rows: Tensor,
        shadow: Callable[[Tensor, torch.Size], Tensor] | None,
    ) -> Tensor:
        """Return the rows of a table, with those of explained ids as leaves; all others are constants."""
        names, origin = self.explains(ids, table), ids.conserva_origin
        if not names:
            return rows
        if origin.changed:
            raise Error(
                f"{' and '.join(names)}: its ids are changed by {origin.changed} before they are looked up, so it is "
                "not known which of them each row stands for. Name the module that turns ids into numbers: at='...'."
            )
        if shadow is None and self._ids.is_whole(ids):
            return self._land(names[0], rows, None)
        with torch._C.DisableTorchFunction():
            own = self._ids.shadow(ids)
            # Rows may be changed in place afterwards, as the ids may.
            own = own.clone() if shadow is None else shadow(own, rows.shape).contiguous()
        if len(names) == len(origin.names) == 1 and not origin.mixed:
            return self._land(names[0], rows, own)
        out, constant = rows, torch.ones_like(own, dtype=torch.bool)
        for name in names:
            start = self._ids.start(name)
            chosen = (own >= start) & (own < start + self._ids.given[name].numel())
            constant = constant & ~chosen
            leaf = self._land(name, rows, own)
            out = torch.where(chosen.view(*own.shape, *[1] * (rows.dim() - own.dim())), leaf, out)
        where = constant.view(*own.shape, *[1] * (rows.dim() - own.dim()))
        context.book(out, rows.detach(), of=table, where=where, joined=True)
        return out

    def _land(self, name: str, rows: Tensor, shadow: Tensor | None) -> Tensor:
        """Return rows as a leaf of an input, and remember which row stands for which element."""
        leaf = self._add_leaf(name, rows)
        self._landings[list(self.leaves)[-1]] = _Landing(
            name, self._ids.given[name].shape, self._ids.start(name), shadow
        )
        return leaf

    def placed(self, place: str, relevance: Tensor) -> Tensor:
        """Return relevance as it belongs to an input: for ids in the input's own shape, with one axis more."""
        landing = self._landings.get(place)
        return relevance if landing is None else landing.placed(relevance)

    @property
    def is_moved(self) -> bool:
        """Whether an input is looked up more than once, and not in the same order."""
        names = [landing.name for landing in self._landings.values()]
        return len(set(names)) < len(names) and any(one.shadow is not None for one in self._landings.values())

    def _add_leaf(self, name: str, x: Tensor) -> Tensor:
        own = x.clone() if x.is_inference() else x.detach()
        leaf = self.leaves[_free_name(name, self.leaves)] = own.requires_grad_()
        return leaf.clone()  # models may work on it in place, which a leaf does not allow

    def missing(self) -> str:
        """Return an explained input that the model made no use of, if there is one."""
        used = {name.partition("#")[0] for name in self.leaves}
        missing = [name for name in self._features if name not in used]
        return next((name for name in missing if self._is_required(name) or not used), "")

    def _is_required(self, name: str) -> bool:
        return name in self._features and name not in self._candidates

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


@dataclass(frozen=True)
class _Landing:
    """Rows that stand for elements of an input, and which: those of a shadow, or all of them in their order."""

    name: str
    shape: torch.Size
    start: int
    shadow: Tensor | None

    def placed(self, relevance: Tensor) -> Tensor:
        count = self.shape.numel()
        if self.shadow is None:
            return relevance.reshape(*self.shape, relevance.numel() // max(count, 1))
        index = self.shadow.reshape(-1) - self.start
        index = torch.where((index >= 0) & (index < count), index, count)  # one row more, for all others
        rows = relevance.reshape(len(index), relevance.numel() // max(len(index), 1))
        return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, index, rows)[:count].view(*self.shape, -1)


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
