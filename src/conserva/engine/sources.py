"""The tensors that relevance is attributed to: a user's inputs, or outputs of modules."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import Error
from .hooks import hooked
from .module_tree import Modules
from .operations.elementwise import drop_trail
from .token_ids import Ids, Inputs

if TYPE_CHECKING:
    from .context import Propagation


class Sources:
    """The tensors whose relevance is requested, collected while the model runs.

    The first on each path from an input becomes a leaf of the graph: everything before it is a constant, so that the
    ledger can close. Those further on are intermediate tensors of the graph.
    """

    def __init__(
        self,
        modules: Modules,
        features: Mapping[str, Tensor],
        inputs: bool,
        sites: Sequence[str],
        candidates: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Prepare for one forward pass.

        Parameters
        ----------
        modules
            The model's modules by name.
        features
            The inputs to explain.
        inputs
            Whether relevance of the inputs is requested.
        sites
            Names and patterns of modules whose outputs' relevance is requested.
        candidates
            Integer inputs that are explained if the model looks them up in an embedding table.
        """
        self.leaves: dict[str, Tensor] = {}
        self.module_outputs: dict[str, Tensor] = {}
        self._reads_inputs = inputs
        self._features = features if inputs else {}
        self._candidates = (candidates or {}) if inputs else {}
        self._modules = _matching(modules, sites)
        self._named = set(sites)
        self.modules = modules
        self._storages: set[int] | None = None
        given = {**self._candidates, **self._features}
        self._ids = Inputs({name: x for name, x in given.items() if not x.is_floating_point()})
        self._lookups: dict[str, _Lookup] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the explained inputs."""
        used = {lookup.name for lookup in self._lookups.values()}
        return tuple(name for name in {**self._features, **self._candidates} if self._is_required(name) or name in used)

    def open_inputs(self) -> dict[str, Tensor]:
        """Return floating-point inputs as leaves, and integer inputs as `Ids`, which track their look-ups."""
        numbers = {name: x for name, x in self._features.items() if x.is_floating_point()}
        return {**{name: self._add_leaf(name, x) for name, x in numbers.items()}, **self._ids.opened()}

    def close(self) -> None:
        """Turn all `Ids` back into ordinary tensors."""
        self._ids.close()

    def keeps(self, table: Tensor) -> bool:
        """Return whether a tensor is a parameter or a buffer of the model, or a view of one."""
        if self._storages is None:
            tensors = [
                x for module in self.modules.values() for x in (*module._parameters.values(), *module._buffers.values())
            ]
            self._storages = {x.untyped_storage().data_ptr() for x in tensors if x is not None}
        return table.untyped_storage().data_ptr() in self._storages

    def explains(self, ids: Ids, table: Tensor | None = None) -> list[str]:
        """Return the names of the explained inputs that ids come from; candidates only if `table` embeds tokens."""
        names = ids.conserva_origin.names
        explained = [name for name in self._ids.given if name in names]
        return [name for name in explained if name in self._features or self._embeds_tokens(table)]

    def _embeds_tokens(self, table: Tensor | None) -> bool:
        """Return whether a table embeds tokens.

        Hugging Face models report theirs; their other tables are for boxes, languages and the like.
        """
        return table is not None and (not self._tables or table.data_ptr() in self._tables)

    @functools.cached_property
    def _tables(self) -> dict[int, int]:
        return word_tables(self.modules)

    def looked_up(
        self,
        context: Propagation,
        ids: Ids,
        table: Tensor,
        rows: Tensor,
        shadow: Callable[[Tensor, torch.Size], Tensor] | None,
    ) -> Tensor:
        """Return the rows of a table, with those of explained ids as leaves of the graph and all others as constants.

        Parameters
        ----------
        context
            The context of the forward pass.
        ids
            The index.
        table
            The embedding table.
        rows
            The result of the look-up.
        shadow
            Returns the shadow of `rows`, given that of the ids and the shape of `rows`; None if `rows` has one row for
            each of the ids, in their order.
        """
        names, origin = self.explains(ids, table), ids.conserva_origin
        if not names:
            return rows
        if origin.changed:
            raise Error(
                f"{' and '.join(names)}: the model changes the ids by {origin.changed} before it looks them up, so "
                "embeddings cannot be matched with input ids. Pass the name of the embedding module as at='...'."
            )
        if shadow is None and self._ids.is_whole(ids):
            return self._add_lookup(names[0], rows, None)
        with torch._C.DisableTorchFunction():
            own = self._ids.shadow(ids)
            # A copy, because the model may change the ids, and with them their shadow, in place afterwards.
            own = own.clone() if shadow is None else shadow(own, rows.shape).contiguous()
        if len(names) == len(origin.names) == 1 and not origin.mixed:
            return self._add_lookup(names[0], rows, own)
        out, constant = rows, torch.ones_like(own, dtype=torch.bool)
        for name in names:
            start = self._ids.start(name)
            chosen = (own >= start) & (own < start + self._ids.given[name].numel())
            constant = constant & ~chosen
            leaf = self._add_lookup(name, rows, own)
            out = torch.where(chosen.view(*own.shape, *[1] * (rows.dim() - own.dim())), leaf, out)
        where = constant.view(*own.shape, *[1] * (rows.dim() - own.dim()))
        context.record_constant(out, rows.detach(), of=table, where=where, joined=True)
        return out

    def _add_lookup(self, name: str, rows: Tensor, shadow: Tensor | None) -> Tensor:
        """Return rows as a leaf of an input, and record which row belongs to which element of the input."""
        leaf = self._add_leaf(name, rows)
        self._lookups[list(self.leaves)[-1]] = _Lookup(name, self._ids.given[name].shape, self._ids.start(name), shadow)
        return leaf

    def in_input_shape(self, site: str, relevance: Tensor) -> Tensor:
        """Return the relevance of looked-up rows in the shape of the input ids, with one dimension more."""
        lookup = self._lookups.get(site)
        return relevance if lookup is None else lookup.in_input_shape(relevance)

    @property
    def is_moved(self) -> bool:
        """Whether an input is looked up several times, in different orders."""
        names = [lookup.name for lookup in self._lookups.values()]
        return len(set(names)) < len(names) and any(lookup.shadow is not None for lookup in self._lookups.values())

    def _add_leaf(self, name: str, x: Tensor) -> Tensor:
        own = x.clone() if x.is_inference() else x.detach()
        leaf = self.leaves[_free_name(name, self.leaves)] = own.requires_grad_()
        return leaf.clone()  # a model may change it in place, which a leaf does not allow

    def missing(self) -> str:
        """Return the name of an explained input that the model did not use; "" if it used all."""
        used = {name.partition("#")[0] for name in self.leaves}
        missing = [name for name in self._features if name not in used]
        return next((name for name in missing if self._is_required(name) or not used), "")

    def _is_required(self, name: str) -> bool:
        return name in self._features and name not in self._candidates

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Collect the outputs of the requested modules during a forward pass."""
        with hooked(after=[(module, self._hook(name)) for name, module in self._modules.items()]):
            yield

    def _hook(self, name: str) -> Any:
        def collect(module: nn.Module, args: Any, output: Any) -> Any:
            x = output[0] if isinstance(output, (tuple, list)) and output else output
            if not isinstance(x, Tensor) or not x.is_floating_point():
                if name not in self._named:
                    return None  # matched by a pattern
                raise Error(
                    f"at={name!r}: the output of this module is {type(output).__name__}, not a floating-point tensor: "
                    "name one of its submodules."
                )
            if x.requires_grad:
                self.module_outputs[_free_name(name, self.module_outputs)] = x
                drop_trail(x)  # so that its gradient is complete: no later call may bypass it
                return None
            if self._reads_inputs and name not in self._named:
                return None  # matched by a pattern, and a constant: as a leaf it would change the rules for products
            leaf = self._add_leaf(name, x)
            return (leaf, *output[1:]) if isinstance(output, (tuple, list)) else leaf

        return collect


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, with a number if it is taken: `input_ids`, `input_ids#2`."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


@dataclass(frozen=True)
class _Lookup:
    """A look-up of an input's ids: its shadow maps rows to elements of the input; None for all elements in order."""

    name: str
    shape: torch.Size
    start: int
    shadow: Tensor | None

    def in_input_shape(self, relevance: Tensor) -> Tensor:
        count = self.shape.numel()
        if self.shadow is None:
            return relevance.reshape(*self.shape, relevance.numel() // max(count, 1))
        index = self.shadow.reshape(-1) - self.start
        index = torch.where((index >= 0) & (index < count), index, count)  # the last row collects all other elements
        rows = relevance.reshape(len(index), relevance.numel() // max(len(index), 1))
        return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, index, rows)[:count].view(*self.shape, -1)


def word_tables(modules: Modules) -> dict[int, int]:
    """Return the token embedding tables of a Hugging Face model: data pointer -> number of rows."""
    tables = {}
    models = tuple(kind for kind in modules.types if hasattr(kind, "get_input_embeddings"))
    for module in modules.of_types(models):
        with contextlib.suppress(NotImplementedError, AttributeError):
            weight = getattr(module.get_input_embeddings(), "weight", None)  # type: ignore[operator]
            if isinstance(weight, Tensor):
                tables[weight.data_ptr()] = weight.shape[0]
    return tables


def _matching(modules: Mapping[str, nn.Module], sites: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules that match names and patterns."""
    matching: dict[str, nn.Module] = {}
    for site in sites:
        matches = {name: module for name, module in modules.items() if name and fnmatch.fnmatchcase(name, site)}
        if not matches:
            near = [name for name in modules if site.rpartition(".")[2] in name][:5] or list(modules)[1:6]
            raise Error(
                f"at={site!r} matches no module of {type(modules['']).__name__}. Some of its modules: "
                f"{', '.join(near)}."
            )
        matching.update(matches)
    return matching
