"""The constants that enter a computation, such as biases and position embeddings, and their relevance."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..errors import Error
from .coverage import READING, calling_module
from .ledger import ENTRIES, Ledger
from .module_tree import Modules
from .operations.tensors import in_float32

CAPTURED_BYTES = {"cpu": 2**22, "cuda": 2**27}
"""Device -> the bytes of gradients at constants that are kept until the end of the backward pass, which saves a Python
hook for each. Hooks sum up the gradients of further constants as soon as they are complete: on a CPU, memory that is
reused while it is in the cache saves more time than hooks take."""


_SUMMED_BY_AUTOGRAD = (torch.float32, torch.float64)


class Unbatchable(Exception):  # noqa: N818 - not an error: the caller continues with one sample at a time
    """The rows of a tensor cannot be assigned to samples by its shape; the samples must be explained one at a time."""


@dataclass(slots=True, eq=False)
class Constant:
    """A constant that one tensor contains as a summand or as a part, and its relevance."""

    constant: Tensor | float
    parameter: nn.Parameter | None
    """The parameter that the constant was made from, if it is one."""
    module: nn.Module | None
    """The module that was running when the constant entered, unless the parameter has a known owner."""
    joined: bool
    """Whether the constant is a part of the tensor, as by `torch.cat`, rather than added to it."""
    where: Tensor | None
    """A mask of the elements that contain the constant; None for all."""
    axis: int | Unbatchable | None
    """The axis of the tensor that holds the samples, as returned by `Constants.sample_axis`."""
    samples: int
    shape: torch.Size
    number: int
    """The index of the tensor among the outputs of its autograd node."""
    relevance: Tensor | None = None
    """One number per sample; None before the backward pass, and if no relevance reaches the tensor."""
    sums: Tensor | None = None
    """Samples x width: for a vector, its gradient summed over all positions and not yet multiplied by the vector."""
    cancelled: bool = False
    """Whether the constant is excluded from the ledger."""
    of_layer: bool = False
    """Whether it is the bias of a linear layer."""
    version: int = 0
    """The constant's version counter when it entered."""
    leaf: Tensor | None = None
    """The leaf of the graph that the tensor was computed from instead of the constant, if there is one."""

    def hook(self, grads: Sequence[Tensor | None]) -> None:
        """Collect the gradient, as a hook of the autograd node."""
        with torch._C.DisableTorchFunction():  # the rules stay active for recomputed activations, but not for this
            self.collect(grads[self.number])

    def collect(self, grad: Tensor | None) -> None:
        """Add what relevance the gradient gives the constant; of a gradient of a vector, only its sums are kept."""
        if grad is None or self.cancelled:
            return
        if self.version != _version(self.constant):
            raise Error(
                "The model changes a tensor in place after it added it to others, so that its share of the output is "
                "not known any more: change a copy, or explain with ledger=False."
            )
        if self.leaf is not None:
            self.sums = grad.reshape(1, -1)
        elif self.is_vector:
            # Half types are accumulated in float32 without a float32 copy of the gradient.
            dtype = None if grad.dtype in (torch.float32, torch.float64) else torch.float32
            sums = grad.reshape(self.samples, -1, self.shape[-1]).sum(1, dtype=dtype)
            self.sums = sums if self.sums is None else self.sums + sums
        else:
            self.add(self.weighed(grad))

    def add(self, relevance: Tensor) -> None:
        """Add to the relevance."""
        self.relevance = relevance if self.relevance is None else self.relevance + relevance

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector that is added at every position, and the rows of every sample are contiguous."""
        is_vector = isinstance(self.constant, Tensor) and self.constant.shape == self.shape[-1:] and self.where is None
        return is_vector and not self.axis and (self.samples == 1 or len(self.shape) > 1)

    def weighed(self, grad: Tensor) -> Tensor:
        """Return the constant times the gradient, summed per sample: R_b = b * dF/db."""
        if isinstance(self.axis, Unbatchable):
            raise self.axis
        # An attention mask's -inf times a gradient of 0 must be 0, not nan.
        weighed = (in_float32(grad.reshape(self.shape)) * self.constant).nan_to_num_(0.0, math.inf, -math.inf)
        if self.where is not None:
            weighed = torch.where(self.where, weighed, 0.0)
        if self.axis:
            weighed = weighed.movedim(self.axis, 0)
        return weighed.reshape(self.samples, -1).sum(1)

    def is_bias(self, name: str) -> bool:
        """Return whether the constant is the same at every position: a scalar, a vector, or a parameter named bias.

        `name` is the name of the parameter in its module.
        """
        if self.joined:
            return False
        if self.parameter is not None:
            return "bias" in name or sum(n > 1 for n in self.parameter.shape) <= 1
        return not isinstance(self.constant, Tensor) or self.constant.dim() <= 1


class Constants:
    """All constants that enter a forward pass, each with the autograd node where it enters.

    Parameters
    ----------
    samples
        The batch size.
    batch_dim
        The axis of the model's inputs that holds the samples.
    modules
        Modules by name. Their parameters are attributed to the module that owns them, not to the one that uses them.
    """

    def __init__(self, samples: int, batch_dim: int, modules: Modules | None = None) -> None:
        self.samples, self.batch_dim = samples, batch_dim
        self._modules = Modules() if modules is None else modules
        self._owned = self._modules.owners
        self.samples_moved = batch_dim != 0
        self.rows_shuffled = False
        self.in_doubt = samples > 1 and batch_dim != 0  # whether the axis of the samples has to be verified
        self.entries: list[Constant] = []
        self.nodes: list[Any] = []
        """The autograd node of each entry, None for leaves. An entry itself must not hold it, because its hook does."""
        self._captured: list[int] = []  # the indices of the entries whose gradients the backward pass returns
        self._captured_bytes = 0
        self.leaves: list[Tensor] = []
        """Constants that are leaves of the graph, see `add_leaf`."""

    @property
    def follows_rows(self) -> bool:
        """Whether there are several samples, and they are known to be contiguous blocks of rows."""
        return self.samples > 1 and not self.in_doubt

    def add(
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
        """Record that `out` contains `constant * factor`.

        Parameters
        ----------
        out
            The tensor. Its gradient gives the relevance of the constant.
        parameter
            The parameter that the constant was made from, if it is one.
        where
            A mask of the elements of `out` that contain the constant; None for all.
        joined
            Whether the constant is a part of `out`, as by `torch.cat`, rather than added to it.
        of_layer
            Whether it is the bias of a linear layer.
        constant, factor
            The constant is their product.
        """
        if not isinstance(constant, Tensor):
            constant = float(constant) * factor
            if constant == 0:
                return
        elif not constant.is_floating_point():
            constant = constant.to(out.dtype) * factor
        elif factor != 1:
            constant = constant * factor
        module = None if id(parameter) in self._owned else calling_module(READING)
        axis, base = self.sample_axis(out), _base(out)
        entry = Constant(constant, parameter, module, joined, where, axis, self.samples, out.shape, base.output_nr)
        entry.of_layer, entry.version = of_layer, _version(constant)
        node: Any = base.grad_fn
        self._captured_bytes += out.nbytes
        if self._captured_bytes <= CAPTURED_BYTES.get(out.device.type, 0):
            self._captured.append(len(self.entries))
        else:
            node.register_prehook(entry.hook)  # twice as fast as a hook on the tensor
        self.entries.append(entry)
        self.nodes.append(node)

    def add_leaf(self, constant: Tensor, parameter: nn.Parameter | None, of_layer: bool) -> Tensor | None:
        """Record a constant that a call adds at every position, and return a leaf of the graph to call it with instead.

        The gradient of the leaf gives the relevance of the constant. Autograd sums it over all positions, and so over
        all samples: for several samples, and for half precision, to which it rounds the sum, the result is None and
        nothing is recorded. The same holds for constants that were created in inference mode: they cannot be leaves.

        Parameters
        ----------
        parameter
            The parameter that the constant was made from, if it is one.
        of_layer
            Whether it is the bias of a linear layer.
        """
        is_half = constant.dtype not in _SUMMED_BY_AUTOGRAD or torch.is_autocast_enabled(constant.device.type)
        if self.samples > 1 or is_half or constant.is_inference():
            return None
        leaf = constant.detach().requires_grad_()
        module = None if id(parameter) in self._owned else calling_module(READING)
        entry = Constant(constant, parameter, module, False, None, None, 1, constant.shape, 0)
        entry.of_layer, entry.version, entry.leaf = of_layer, _version(constant), leaf
        self._captured.append(len(self.entries))
        self.entries.append(entry)
        self.nodes.append(None)
        self.leaves.append(leaf)
        return leaf

    @property
    def edges(self) -> list[Tensor | GradientEdge]:
        """The leaves and edges of the graph whose gradients `weigh` needs: the backward pass is to return them, too."""
        found = ((self.entries[i], self.nodes[i]) for i in self._captured_entries())
        return [GradientEdge(node, entry.number) if entry.leaf is None else entry.leaf for entry, node in found]

    def _captured_entries(self) -> list[int]:
        return [i for i in self._captured if not self.entries[i].cancelled]

    def sample_axis(self, out: Tensor) -> int | Unbatchable | None:
        """Return the axis of `out` that holds the samples, or None if they are contiguous blocks of rows.

        If the shape is ambiguous, an `Unbatchable` is returned, which is raised only if relevance arrives at `out`.
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
        """Exclude the constants that enter at these autograd nodes from the ledger.

        With `layers=False` the biases of linear layers remain.
        """
        for node, entry in zip(self.nodes, self.entries, strict=True):
            if entry.leaf is not None:
                node = get_gradient_edge(entry.leaf).node
            entry.cancelled = entry.cancelled or (node in nodes and (layers or not entry.of_layer))

    def cancel_unreached(self, nodes: Collection[Any]) -> None:
        """Exclude the constants whose nodes are not among these, the nodes behind the explained outputs.

        They have no relevance, and their nodes may not exist any more: a node of an autograd function in Python belongs
        to the graph, so that an edge to it does not keep it alive.
        """
        reached = set(nodes)
        for node, entry in zip(self.nodes, self.entries, strict=True):
            entry.cancelled = entry.cancelled or (entry.leaf is None and node not in reached)

    def clear(self) -> None:
        """Discard the collected relevance and keep the entries."""
        for entry in self.entries:
            entry.relevance = entry.sums = None

    def weigh(self, grads: Sequence[Tensor | None]) -> None:
        """Compute the relevance of all constants from the gradients of `edges`, and from those that hooks collected.

        Vectors of the same shape are stacked: a few kernel launches for the whole model.
        """
        for i, grad in zip(self._captured_entries(), grads, strict=True):
            self.entries[i].collect(grad)
        by_shape: dict[object, list[Constant]] = {}
        for entry in self.entries:
            if entry.sums is not None:
                by_shape.setdefault((entry.sums.shape, entry.sums.dtype, entry.sums.device), []).append(entry)
        for entries in by_shape.values():
            sums = torch.stack([cast(Tensor, entry.sums) for entry in entries])
            constants = torch.stack([cast(Tensor, entry.constant).reshape(1, -1) for entry in entries]).to(sums)
            constants.nan_to_num_()  # a mask's -inf times a gradient of 0 must be 0, not nan
            shares = (sums * constants).sum(-1).unbind()
            for entry, share in zip(entries, shares, strict=True):
                entry.sums = None
                entry.add(share)

    def close(self, output: Tensor, inputs: Tensor, scale: float) -> tuple[Ledger[Tensor], dict[str, Tensor]]:
        """Return the ledger for the relevance that `weigh` computed, which is then discarded.

        Parameters
        ----------
        output, inputs
            The explained output and the relevance of the inputs, one number per sample.
        scale
            The factor by which the gradient was scaled, which is divided out.

        Returns
        -------
        tuple
            The ledger, and the relevance of the constants of each module, by its name.
        """
        names = self._modules.names
        reached = [
            (entry, *self._owned.get(id(entry.parameter), (names.get(entry.module, ""), "")))
            for entry in self.entries
            if entry.relevance is not None
        ]
        if not reached:
            return Ledger.of(output, inputs, torch.zeros_like(output), torch.zeros_like(output)), {}
        # All entries are stacked, biases first and then positions, so that few kernel launches sum them up.
        biases = [entry.is_bias(parameter) for entry, _, parameter in reached]
        order = sorted(range(len(reached)), key=lambda i: not biases[i])
        rows = torch.stack([cast(Tensor, reached[i][0].relevance).to(output) for i in order]) / scale
        self.clear()
        shares: dict[str, Tensor] = {owner: output for _, owner, _ in reached}  # in the order of the forward pass
        for owner, group in _grouped([reached[i][1] for i in order], rows.unbind()).items():
            shares[owner] = group[0] if len(group) == 1 else torch.stack(group).sum(0)
        return Ledger.of(output, inputs, rows[sum(biases) :].sum(0), rows[: sum(biases)].sum(0)), shares


def joined_ledgers(parts: Sequence[Ledger[Tensor]]) -> Ledger[Tensor]:
    """Concatenate ledgers along the batch dimension."""
    return Ledger(*(torch.cat([getattr(part, name) for part in parts]) for name in ENTRIES))


def powers_of_two(samples: int, like: Tensor) -> Tensor:
    """Return a power of two for each sample, a scaling without rounding; adjacent samples have different ones."""
    numbers = torch.arange(samples, device=like.device)
    return torch.exp2(-((numbers + numbers // 4) % 4).to(like))


def _grouped(owners: Sequence[str], rows: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    groups: dict[str, list[Tensor]] = {}
    for owner, row in zip(owners, rows, strict=True):
        groups.setdefault(owner, []).append(row)
    return groups


def _version(constant: Tensor | float) -> int:
    """Return how often a tensor was changed in place; tensors of inference mode do not count it."""
    return constant._version if isinstance(constant, Tensor) and not constant.is_inference() else 0


def _base(x: Tensor) -> Tensor:
    """Return the base of `x` if `x` is a reshaped view of all of it, as the output of a linear layer is; else `x`.

    After an in-place operation on a view, the gradient bypasses the view's node and goes to the base.
    """
    base = x._base
    whole = base is not None and base.numel() == x.numel() and base.is_contiguous() and x.is_contiguous()
    return base if whole and base is not None and base.requires_grad else x
