"""A forward pass with its attention maps and their gradients, as the attention methods need it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..engine import graph_check, module_tree
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.operations.tensors import in_float32
from ..engine.sources import Sources
from ..engine.targets import classes_of
from ..engine.untouched import untouched
from ..errors import Error, NotApplicable
from .attention_maps import Map, MapRecorder
from .attribution import Attribution

SequenceKey: TypeAlias = frozenset[str]
"""A sequence of positions, identified by the names of the inputs that it was computed from."""

Rows: TypeAlias = Literal["read", "all"]
"""The rows of a map that are used. `read`: those of the positions that the target reads, such as the class token;
`all`: the sum of all rows, as in Ali et al.'s code."""


@dataclass(frozen=True)
class AttentionPass:
    """The attention maps that a target depends on, in the order of the forward pass, and their gradients."""

    model: nn.Module
    call: Inputs
    output: Tensor
    logits: Tensor | None
    maps: Sequence[Map]
    gradients: Mapping[int, Tensor]
    """Number of a map -> the gradient of the target for it, samples x heads x queries x keys."""
    read: Mapping[SequenceKey, Tensor]
    """Sequence that the target reads -> a mask of the positions it reads, samples x positions."""
    written: frozenset[int]
    """The numbers of the maps whose results were added to the sequences that the target reads."""
    narrow: Mapping[int, Tensor]
    """Number of a map with a single query -> a mask of the query's position in the sequence, samples x positions."""

    @cached_property
    def maps_by_number(self) -> dict[int, Map]:
        """Number of a map -> the map."""
        return {attention.number: attention for attention in self.maps}

    @cached_property
    def sizes(self) -> dict[SequenceKey, int]:
        """Sequence -> its number of positions."""
        sizes: dict[SequenceKey, int] = {}
        for attention in self.maps:
            queries, keys = self.probabilities(attention).shape[2:]
            for sequence, size in ((attention.query.sequence, queries), (attention.key.sequence, keys)):
                if sizes.setdefault(sequence, size) != size:
                    raise NotApplicable(
                        f"A sequence of {type(self.model).__name__} has {sizes[sequence]} positions in one layer and "
                        f"{size} in another, so that attention maps cannot be combined across layers."
                    )
        return sizes

    def probabilities(self, attention: Map) -> Tensor:
        """Return the probabilities of a map, samples x heads x queries x keys, in float32 or wider."""
        return self.widened(attention, in_float32(attention.probabilities))

    def widened(self, attention: Map, x: Tensor) -> Tensor:
        """Return a tensor of a map, samples x heads x queries x keys, with zeros for queries that were not computed."""
        return _widened(x, self.narrow.get(attention.number))

    def stack(self, method: str, rows: Rows = "read") -> list[Map]:
        """Return the maps if they are consecutive self-attention layers of one sequence; raise if they are not.

        Parameters
        ----------
        method
            The name of the method, for error messages.
        rows
            The rows that the method uses. For `all`, all of them must have been computed.
        """
        name = type(self.model).__name__
        if len({each.query.sequence for each in self.maps}) > 1 or not all(each.is_self for each in self.maps):
            raise NotApplicable(
                f"{method} is defined for self-attention of one sequence only; {name} has cross-attention between "
                "sequences. Use gae, which is defined for it."
            )
        sizes = {tuple(self.probabilities(each).shape[2:]) for each in self.maps}
        if len(sizes) > 1 or len(set(next(iter(sizes)))) > 1:
            raise NotApplicable(
                f"{method} needs attention from all positions to all positions in every layer, or in the last layer "
                "from the position that the target reads; the maps of "
                f"{name} have {', '.join(f'{q} x {k}' for q, k in sorted(sizes))} positions."
            )
        if rows == "all" and self.narrow:
            raise NotApplicable(
                f"{method} sums over the rows of all positions, but the last layer of {name} has a single query, at "
                f"the position that the target reads. Use {method.partition(':')[0]} without this option."
            )
        for below, above in itertools.pairwise(self.maps):
            if below.number not in above.query.written:
                raise NotApplicable(
                    f"{method} needs one attention map for each layer; a layer of {name} has several in parallel."
                )
        return list(self.maps)

    def rows(self) -> Tensor:
        """Return a mask of the positions that the target reads of its only sequence, samples x positions."""
        return next(iter(self.read.values()))

    def real(self, positions: int) -> Tensor:
        """Return a mask of the positions that are not padding, samples x positions, by the inputs' attention mask."""
        mask = self.call.kwargs.get("attention_mask")
        shape = (self.call.samples(), positions)
        if isinstance(mask, Tensor) and tuple(mask.shape) == shape:
            return mask.bool()
        return torch.ones(shape, dtype=torch.bool, device=self.output.device)

    def attribution(self, scores: Mapping[SequenceKey, Tensor]) -> Attribution:
        """Return the result, with the scores of each sequence under the names of its inputs."""
        named = {"+".join(sorted(sequence)): each for sequence, each in scores.items() if sequence}
        features = [name for name in self.call.features() if name in named]
        order = [*features, *(name for name in named if name not in features)]
        return Attribution({name: named[name] for name in order}, self.output, self.logits)


def attention_pass(model: nn.Module, inputs: Any, target: Any) -> AttentionPass:
    """Run a model; return its attention maps, and the gradient of the target for each.

    Parameters
    ----------
    model
        The model.
    inputs
        Its arguments: see `engine.inputs.Inputs.of`.
    target
        What to explain: see `engine.targets`.
    """
    with untouched(model):
        return _attention_pass(model, inputs, target)


def _attention_pass(model: nn.Module, inputs: Any, target: Any) -> AttentionPass:
    modules = module_tree.Modules.of(model)
    module_tree.refuse_opaque_modules(modules)
    call = Inputs.of(model, inputs)
    samples = call.samples()
    with torch.inference_mode(False), torch.enable_grad():
        sources = Sources(modules, call.features(), True, ())
        recorder = MapRecorder(sources, samples)
        output, (number,) = forward(model, call, sources, recorder, [target])
        if sources.is_moved:
            raise NotApplicable(
                f"{type(model).__name__} looks up its ids twice, in different orders, as decoders do that shift them: "
                f"attention maps do not distinguish the two. {_ALTERNATIVES}"
            )
        graph_check.check(model, [number], recorder)
        written = recorder.state(number.grad_fn).written
        maps = _behind(recorder.maps, written)
        _refuse_mixed_sequences(model, recorder.maps, maps)
        if not maps:
            raise NotApplicable(
                f"{type(model).__name__} has no attention maps: no softmax of it is multiplied by values. "
                f"{_ALTERNATIVES}"
            )
        mixing = recorder.mixing()
        narrow = _narrow(recorder, number, maps, written)
        grads = recorder.gradient(in_float32(number).sum(), [each.operand for each in maps], keep=bool(mixing))
    gradients = {
        each.number: _widened(in_float32(each.shaped(_or_zeros(grad, each.operand))), narrow.get(each.number))
        for each, grad in zip(maps, grads, strict=True)
    }
    read = {}
    for each in maps:
        if each.number in written:  # the last map of each sequence overwrites earlier ones
            read[each.query.sequence] = gradients[each.number].ne(0).any(-1).any(1)
    _refuse_windows(call, maps, gradients)
    for rows in read.values():
        if not rows.any(1).all():
            raise Error(
                f"The target does not depend on the attention of {type(model).__name__}: no gradient reaches it."
            )
    if mixing and (len(read) > 1 or recorder.leaks(number, next(iter(read.values())))):
        raise NotApplicable(
            f"{type(model).__name__} mixes positions by {' and '.join(mixing)} besides attention, which its attention "
            f"maps do not show. {_ALTERNATIVES}"
        )
    logits = classes_of(output, samples)
    return AttentionPass(model, call, in_float32(number.detach()), logits, maps, gradients, read, written, narrow)


def _narrow(recorder: MapRecorder, number: Tensor, maps: Sequence[Map], written: frozenset[int]) -> dict[int, Tensor]:
    """Return the maps with a single query whose position is known: number -> mask of the position, samples x positions.

    In its last layer a model may compute only the queries that the output depends on. With all attention blocked, the
    target then depends on a single position of the sequence, by the residual connections: that of the query. Several
    queries could not be matched with their positions; and below another layer, positions without a query would count.
    """
    below = {lower for each in maps for lower in each.query.written | each.key.written}
    narrow = {}
    for each in maps:
        samples, _, queries, keys = each.probabilities.shape
        if each.is_self and queries == 1 < keys and each.number in written - below:
            reached = recorder.reached(number)
            own = [mask for name, mask in reached.items() if name.partition("#")[0] in each.key.sequence]
            if own and all(mask.shape == (samples, keys) for mask in own):
                positions = torch.stack(own).any(0)
                if bool((positions.sum(1) == 1).all()):
                    narrow[each.number] = positions
    return narrow


def _widened(x: Tensor, positions: Tensor | None) -> Tensor:
    return x if positions is None else torch.where(positions[:, None, :, None], x, torch.zeros_like(x))


def _or_zeros(grad: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if grad is None else grad


def _refuse_windows(call: Inputs, maps: Sequence[Map], gradients: Mapping[int, Tensor]) -> None:
    """Raise if a map has fewer positions than its sequence has tokens."""
    features = call.features()
    for each in maps:
        for state, positions in zip((each.query, each.key), gradients[each.number].shape[2:], strict=True):
            ids = [features[name] for name in state.sequence if not features[name].is_floating_point()]
            if len(ids) == 1 and positions < ids[0].shape[-1] and not (state is each.query and positions == 1):
                raise NotApplicable(
                    f"An attention map has {positions} positions for {ids[0].shape[-1]} tokens: the model attends "
                    f"within windows or shortens its sequence. {_ALTERNATIVES}"
                )


def _refuse_mixed_sequences(model: nn.Module, known: Sequence[Map], maps: Sequence[Map]) -> None:
    """Raise if a sequence contains positions that were computed by the attention of another sequence."""
    for each in maps:
        for state in (each.query, each.key):
            if any(known[number].query.sequence != state.sequence for number in state.written):
                raise NotApplicable(
                    f"{type(model).__name__} inserts the output of one sequence into another, as an image among words: "
                    f"attention maps do not show which position comes from which. {_ALTERNATIVES}"
                )


_ALTERNATIVES = "Attention methods do not apply to it; use a method by rules (gi, ah+ln, exact, ...)."


def _behind(maps: Sequence[Map], written: frozenset[int]) -> list[Map]:
    """Return the maps that some written maps depend on, and these maps."""
    needed: set[int] = set()
    waiting = set(written)
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting |= maps[number].query.written | maps[number].key.written
    return [maps[number] for number in sorted(needed)]


def row_means(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the rows in a mask, samples x positions."""
    weights = rows.to(matrix) / rows.sum(1, keepdim=True)
    return torch.einsum("bq,bqk->bk", weights, matrix)


def without_own(matrix: Tensor) -> Tensor:
    """Return a matrix with its diagonal set to 0, which drops what a position contributes to itself."""
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
