"""The constants that join a computation, such as biases and position embeddings, and the relevance that each gets."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .coverage import READING, calling_module
from .ledger import ENTRIES, Ledger
from .operations.tensors import in_float32

MANY = 8
"""From how many places on a gradient is summed over them first: of fewer, the sums would take the memory of all."""


class Unbatchable(Exception):  # noqa: N818 - not an error: the caller goes on with one sample at a time
    """Shapes do not tell which rows belong to which sample: the samples must be explained one at a time."""


@dataclass(slots=True, eq=False)
class Entry:
    """One constant that one tensor contains, and the relevance it got."""

    constant: Tensor | float
    parameter: nn.Parameter | None
    module: nn.Module | None
    joined: bool
    where: Tensor | None
    axis: int | Unbatchable | None
    samples: int
    shape: torch.Size
    number: int
    """Which of its node's outputs the tensor is."""
    relevance: Tensor | None = None
    sums: Tensor | None = None
    """Samples x width: the gradient summed over all places, where the constant is the same at each: still unweighed."""
    cancelled: bool = False
    of_layer: bool = False
    """Whether it is the bias of a linear layer."""

    def collect(self, grads: Sequence[Tensor | None]) -> None:
        """Weigh the constant by the gradient that reaches it: R_b = b * dF/db, for each sample."""
        grad = grads[self.number]
        if grad is None or self.cancelled:
            return
        if isinstance(self.axis, Unbatchable):
            raise self.axis
        with torch._C.DisableTorchFunction():  # the context, which waits for checkpoints, has nothing to read here
            if grad.shape != self.shape:
                grad = grad.reshape(self.shape)
            last = self.shape[-1:]  # a constant of another shape is one number for all of them
            vector = self.where is None and isinstance(self.constant, Tensor) and self.constant.shape == last
            places = self.shape.numel() // (self.samples * self.shape[-1]) if vector and not self.axis else 0
            if places >= MANY:  # as at every linear layer and norm
                rows = grad.reshape(self.samples, -1, self.shape[-1])
                # Summed in float32, which here takes no copy of the gradient in it.
                sums = rows.sum(1, dtype=None if grad.dtype in (torch.float32, torch.float64) else torch.float32)
                self.sums = sums if self.sums is None else self.sums + sums
                return
            relevance = self._weighed(in_float32(grad), vector)
            self.relevance = relevance if self.relevance is None else self.relevance + relevance

    def _weighed(self, grad: Tensor, vector: bool) -> Tensor:
        """Return the relevance of each sample's part of a constant."""
        axis, constant = self.axis, self.constant
        if vector and axis != grad.dim() - 1:
            weighed = grad @ cast(Tensor, constant).to(grad.dtype)
        else:
            weighed = grad * constant
            # A mask's -inf times the gradient 0 is 0, not nan.
            keep = grad != 0 if self.where is None else (grad != 0) & self.where
            weighed = torch.where(keep, weighed, torch.zeros_like(weighed))
        if axis:
            weighed = weighed.movedim(cast(int, axis), 0)
        return weighed.reshape(self.samples, -1).sum(1)

    def is_bias(self, name: str) -> bool:
        """Tell whether the constant is the same at every place: a number, a vector, or called a bias by its model."""
        if self.joined:
            return False
        if self.parameter is not None:
            return "bias" in name or sum(n > 1 for n in self.parameter.shape) <= 1
        return not isinstance(self.constant, Tensor) or self.constant.dim() <= 1


class Books:
    """The constants that join the computation, each with the place where it joins."""

    def __init__(self, samples: int, batch_dim: int, owned: Container[int] = ()) -> None:
        self.samples, self.batch_dim = samples, batch_dim
        self._owned = owned  # ids of parameters whose module is known, whichever module uses them
        self.samples_moved = batch_dim != 0
        self.rows_shuffled = False
        self.in_doubt = samples > 1 and batch_dim != 0  # whether where the samples lie has to be checked
        self.entries: list[Entry] = []
        self.nodes: list[Any] = []  # where in the graph each entry stands; kept here, for an entry hangs on its node

    @property
    def follows_rows(self) -> bool:
        """Whether there are several samples, which so far surely lie one after the other."""
        return self.samples > 1 and not self.in_doubt

    def book(
        self,
        out: Tensor,
        constant: Any,
        parameter: nn.Parameter | None,
        *,
        factor: float,
        where: Tensor | None,
        joined: bool,
        of_layer: bool = False,
    ) -> None:
        """Book `constant * factor` as part of `out`."""
        if not isinstance(constant, Tensor):
            constant = float(constant) * factor
            if constant == 0:
                return
        elif not constant.is_floating_point():
            constant = constant.to(out.dtype) * factor
        elif factor != 1:
            constant = constant * factor
        axis, module = self.sample_axis(out), None if id(parameter) in self._owned else calling_module(READING)
        place = _base(out)
        entry = Entry(constant, parameter, module, joined, where, axis, self.samples, out.shape, place.output_nr)
        entry.of_layer = of_layer
        node: Any = place.grad_fn
        self.entries.append(entry)
        self.nodes.append(node)
        node.register_prehook(entry.collect)  # which takes half the time of a hook on the tensor

    def sample_axis(self, out: Tensor) -> int | Unbatchable | None:
        """Return the axis along which `out` holds the samples, or None if they lie one after the other in rows.

        Where that cannot be told, nothing is lost before relevance really arrives there: it is raised then.
        """
        if self.samples == 1:
            return None
        if self.samples_moved:
            axes = [axis for axis, size in enumerate(out.shape) if size == self.samples]
            if len(axes) == 1 and not self.rows_shuffled and (axes[0] < out.dim() - 1 or out.dim() == 1):
                return axes[0]
        elif out.shape[0] == self.samples and (out.dim() > 2 or not self.rows_shuffled):
            return 0
        elif out.shape[0] % self.samples == 0 and not self.rows_shuffled:
            return None
        return Unbatchable()

    def cancel(self, nodes: Collection[Any], *, layers: bool = True) -> None:
        """Take constants that join at these nodes of the graph off the books, with or without biases of layers."""
        for node, entry in zip(self.nodes, self.entries, strict=True):
            entry.cancelled = entry.cancelled or (node in nodes and (layers or not entry.of_layer))

    def cancel_inside(self, x: Tensor) -> None:
        """Take constants that `x` contains off the books: what is explained there holds them already."""
        self.cancel({_base(x).grad_fn, x.grad_fn})

    def clear(self) -> None:
        """Forget what was collected."""
        for entry in self.entries:
            entry.relevance = entry.sums = None

    def weigh(self) -> None:
        """Weigh the vectors that are still to be, so that every entry has its relevance.

        Those of one width together: a few calls for all of a model's.
        """
        alike: dict[object, list[Entry]] = {}
        for entry in self.entries:
            if entry.sums is not None:
                alike.setdefault((entry.sums.shape, entry.sums.dtype, entry.sums.device), []).append(entry)
        for entries in alike.values():
            sums = torch.stack([cast(Tensor, entry.sums) for entry in entries])
            constants = torch.stack([cast(Tensor, entry.constant) for entry in entries]).to(sums)
            for entry in entries:
                entry.sums = None
            for entry, found in zip(entries, torch.bmm(sums, constants.unsqueeze(-1)).squeeze(-1), strict=True):
                entry.relevance = found if entry.relevance is None else entry.relevance + found

    def close(
        self, modules: Mapping[str, nn.Module], output: Tensor, inputs: Tensor, scale: float
    ) -> tuple[Ledger[Tensor], dict[str, Tensor]]:
        """Sum up what was collected since the last call, divided by the gradient's scale, and start afresh.

        Returns the ledger, and what the constants of each module got.
        """
        self.weigh()
        names = {id(module): name for name, module in modules.items()}
        owners = owners_of(modules)
        met = [
            (entry, *owners.get(id(entry.parameter), (names.get(id(entry.module), ""), "")))
            for entry in self.entries
            if entry.relevance is not None
        ]
        if not met:
            return Ledger.of(output, inputs, torch.zeros_like(output), torch.zeros_like(output)), {}
        # All entries side by side, so that few calls sum them up: first those of biases, then those of positions.
        kinds = [entry.is_bias(parameter) for entry, _, parameter in met]
        order = sorted(range(len(met)), key=lambda i: not kinds[i])
        rows = torch.stack([cast(Tensor, met[i][0].relevance).to(output) for i in order]) / scale
        self.clear()
        shares: dict[str, Tensor] = {owner: output for _, owner, _ in met}  # in the order of the forward pass
        for owner, its in _grouped([met[i][1] for i in order], rows.unbind()).items():
            shares[owner] = its[0] if len(its) == 1 else torch.stack(its).sum(0)
        return Ledger.of(output, inputs, rows[sum(kinds) :].sum(0), rows[: sum(kinds)].sum(0)), shares


def joined_ledgers(parts: Sequence[Ledger[Tensor]]) -> Ledger[Tensor]:
    """Join the ledgers of samples that were explained one at a time."""
    return Ledger(*(torch.cat([getattr(part, name) for part in parts]) for name in ENTRIES))


def powers_of_two(samples: int, like: Tensor) -> Tensor:
    """Return a factor for each sample that rounds nothing; samples side by side have different ones."""
    numbers = torch.arange(samples, device=like.device)
    return torch.exp2(-((numbers + numbers // 4) % 4).to(like))


def owners_of(modules: Mapping[str, nn.Module]) -> dict[int, tuple[str, str]]:
    """Return for the id of each parameter the module that owns it, and its name there."""
    return {
        id(parameter): (name, own)
        for name, module in reversed(list(modules.items()))  # of tied parameters the first owner counts
        for own, parameter in module._parameters.items()
        if parameter is not None
    }


def _grouped(owners: Sequence[str], rows: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    groups: dict[str, list[Tensor]] = {}
    for owner, row in zip(owners, rows, strict=True):
        groups.setdefault(owner, []).append(row)
    return groups


def _base(x: Tensor) -> Tensor:
    """Return the tensor that `x` is another shape of, as what a linear layer returns is.

    A later call in place on a view leads the gradient past it, straight to the base.
    """
    base = x._base
    whole = base is not None and base.numel() == x.numel() and base.is_contiguous() and x.is_contiguous()
    return base if whole and base is not None and base.requires_grad else x
