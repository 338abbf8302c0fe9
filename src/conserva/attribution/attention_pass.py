"""A forward pass with its attention maps and their gradients: what the attention methods work on."""

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
"""A sequence of places, known by the inputs it is made of."""

Rows: TypeAlias = Literal["read", "all"]
"""`read`: the places that the target reads, as the class token. `all`: sums over all, as in Ali et al.'s code."""


@dataclass(frozen=True)
class AttentionPass:
    """The maps that a target depends on, in the order of the forward pass, with what the methods ask about them."""

    model: nn.Module
    call: Inputs
    output: Tensor
    logits: Tensor | None
    maps: Sequence[Map]
    gradients: Mapping[int, Tensor]
    """Number of a map -> the target's gradient for it, samples x heads x queries x keys."""
    read: Mapping[SequenceKey, Tensor]
    """Sequence that the target reads -> at which places, samples x places."""
    written: frozenset[int]
    """The numbers of the maps that were added to the sequences which the target reads."""
    narrow: Mapping[int, Tensor]
    """Number of a map with one query alone -> at which place of the sequence that stands, samples x places."""

    @cached_property
    def maps_by_number(self) -> dict[int, Map]:
        """Number of a map -> the map."""
        return {one.number: one for one in self.maps}

    @cached_property
    def sizes(self) -> dict[SequenceKey, int]:
        """Sequence -> how many places it has."""
        found: dict[SequenceKey, int] = {}
        for one in self.maps:
            queries, keys = self.probabilities(one).shape[2:]
            for sequence, size in ((one.query.sequence, queries), (one.key.sequence, keys)):
                if found.setdefault(sequence, size) != size:
                    raise NotApplicable(
                        f"A sequence of {type(self.model).__name__} has {found[sequence]} places in one layer and "
                        f"{size} in another: it cannot be followed from layer to layer."
                    )
        return found

    def probabilities(self, one: Map) -> Tensor:
        """Return a map as samples x heads x queries x keys, in float32 or wider."""
        return self.widened(one, in_float32(one.probabilities))

    def widened(self, one: Map, x: Tensor) -> Tensor:
        """Return what belongs to a map, samples x heads x queries x keys, with zeros for places that did not look."""
        return _widened(x, self.narrow.get(one.number))

    def stack(self, method: str, rows: Rows = "read") -> list[Map]:
        """Return the maps if they are layers in which one sequence looks at itself; else say why they are not.

        Where a method takes the rows of all places, all of them must have looked.
        """
        name = type(self.model).__name__
        if len({one.query.sequence for one in self.maps}) > 1 or not all(one.is_self for one in self.maps):
            raise NotApplicable(
                f"{method} is defined for one sequence that looks at itself; in {name} one sequence also looks at "
                "another. gae is defined there too."
            )
        sizes = {tuple(self.probabilities(one).shape[2:]) for one in self.maps}
        if len(sizes) > 1 or len(set(next(iter(sizes)))) > 1:
            raise NotApplicable(
                f"{method} needs every layer to look from all places at all places, or the last one from the one place "
                f"that the target reads; in {name} the maps have "
                f"{', '.join(f'{q} x {k}' for q, k in sorted(sizes))} places."
            )
        if rows == "all" and self.narrow:
            raise NotApplicable(
                f"{method} sums over the rows of all places, but the last layer of {name} looks from one place alone, "
                f"the one that the target reads. {method.partition(':')[0]} without this option takes that row."
            )
        for below, above in itertools.pairwise(self.maps):
            if below.number not in above.query.written:
                raise NotApplicable(
                    f"{method} needs one map after the other; a layer of {name} has several side by side."
                )
        return list(self.maps)

    def rows(self) -> Tensor:
        """Return at which places the one sequence is read, samples x places."""
        return next(iter(self.read.values()))

    def real(self, places: int) -> Tensor:
        """Return which positions are not padding, samples x places, as the inputs' own mask says."""
        mask = self.call.kwargs.get("attention_mask")
        shape = (self.call.samples(), places)
        if isinstance(mask, Tensor) and tuple(mask.shape) == shape:
            return mask.bool()
        return torch.ones(shape, dtype=torch.bool, device=self.output.device)

    def attribution(self, scores: Mapping[SequenceKey, Tensor]) -> Attribution:
        """Return scores under the names of the inputs that the sequences are made of."""
        named = {"+".join(sorted(sequence)): one for sequence, one in scores.items() if sequence}
        features = [name for name in self.call.features() if name in named]
        order = [*features, *(name for name in named if name not in features)]
        return Attribution({name: named[name] for name in order}, self.output, self.logits)


def attention_pass(model: nn.Module, inputs: Any, target: Any) -> AttentionPass:
    """Run a model once; return its attention maps, and the target's gradient for each."""
    with untouched(model):
        return _attention_pass(model, inputs, target)


def _attention_pass(model: nn.Module, inputs: Any, target: Any) -> AttentionPass:
    modules = dict(model.named_modules())
    module_tree.refuse_opaque_modules(modules)
    call = Inputs.of(model, inputs)
    samples = call.samples()
    with torch.inference_mode(False), torch.enable_grad():
        sources = Sources(modules, call.features(), True, ())
        recorder = MapRecorder(sources, samples)
        output, (number,) = forward(model, call, sources, recorder, [target])
        if sources.is_moved:
            raise NotApplicable(
                f"{type(model).__name__} looks its ids up twice, and moved the second time, as decoders do that shift "
                "them: attention maps do not tell the two apart. relevance does (gi, ah+ln, exact, ...)."
            )
        graph_check.check(model, [number], recorder)
        written = recorder.state(number.grad_fn).written
        maps = _behind(recorder.maps, written)
        _refuse_mingled(model, recorder.maps, maps)
        if not maps:
            raise NotApplicable(
                f"{type(model).__name__} gives no attention maps: no softmax of it is multiplied with values. Methods "
                "that need them do not apply to it; relevance does (gi, ah+ln, exact, ...)."
            )
        mixing = recorder.mixing()
        narrow = _narrow(recorder, number, maps, written)
        found = recorder.gradient(in_float32(number).sum(), [one.operand for one in maps], keep=bool(mixing))
    gradients = {
        one.number: _widened(in_float32(one.shaped(_or_zeros(grad, one.operand))), narrow.get(one.number))
        for one, grad in zip(maps, found, strict=True)
    }
    read = {}
    for one in maps:
        if one.number in written:  # the last one of each sequence stays
            read[one.query.sequence] = gradients[one.number].ne(0).any(-1).any(1)
    _refuse_windows(call, maps, gradients)
    for rows in read.values():
        if not rows.any(1).all():
            raise Error(
                f"The target does not depend on the attention of {type(model).__name__}: no gradient reaches it."
            )
    if mixing and (len(read) > 1 or recorder.leaks(number, next(iter(read.values())))):
        raise NotApplicable(
            f"{type(model).__name__} mixes its places by {' and '.join(mixing)} beside attention: its maps do not "
            "tell the whole. Methods that need them do not apply to it; relevance does (gi, ah+ln, exact, ...)."
        )
    logits = classes_of(output, samples)
    return AttentionPass(model, call, in_float32(number.detach()), logits, maps, gradients, read, written, narrow)


def _narrow(recorder: MapRecorder, number: Tensor, maps: Sequence[Map], written: frozenset[int]) -> dict[int, Tensor]:
    """Return the maps with one query alone whose place is known, and that place, samples x places.

    A model may leave out of its last layer what the output does not depend on. With all attention cut off, the target
    then reaches one place of the sequence by the skip connections, the one that the map was added to. Of several places
    it would not be known which query is whose, and under a further layer places that did not look would count.
    """
    below = {other for one in maps for other in one.query.written | one.key.written}
    found = {}
    for one in maps:
        samples, _, queries, keys = one.probabilities.shape
        if one.is_self and queries == 1 < keys and one.number in written - below:
            reached = recorder.reached(number)
            own = [places for name, places in reached.items() if name.partition("#")[0] in one.key.sequence]
            if own and all(places.shape == (samples, keys) for places in own):
                places = torch.stack(own).any(0)
                if bool((places.sum(1) == 1).all()):
                    found[one.number] = places
    return found


def _widened(x: Tensor, places: Tensor | None) -> Tensor:
    return x if places is None else torch.where(places[:, None, :, None], x, torch.zeros_like(x))


def _or_zeros(grad: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if grad is None else grad


def _refuse_windows(call: Inputs, maps: Sequence[Map], gradients: Mapping[int, Tensor]) -> None:
    """Raise if a map has fewer places than its sequence has tokens."""
    features = call.features()
    for one in maps:
        for state, places in zip((one.query, one.key), gradients[one.number].shape[2:], strict=True):
            ids = [features[name] for name in state.sequence if not features[name].is_floating_point()]
            if len(ids) == 1 and places < ids[0].shape[-1] and not (state is one.query and places == 1):
                raise NotApplicable(
                    f"An attention map has {places} places for {ids[0].shape[-1]} tokens: the model attends within "
                    "windows or shortens its sequence. Methods that need maps do not apply to it; relevance does."
                )


def _refuse_mingled(model: nn.Module, known: Sequence[Map], maps: Sequence[Map]) -> None:
    """Raise if a sequence was made of places that another sequence's attention had been written into."""
    for one in maps:
        for state in (one.query, one.key):
            if any(known[number].query.sequence != state.sequence for number in state.written):
                raise NotApplicable(
                    f"{type(model).__name__} puts what one sequence became among the places of another, as an image "
                    "among words: attention maps do not tell which place came from which. relevance does (gi, ...)."
                )


def _behind(maps: Sequence[Map], written: frozenset[int]) -> list[Map]:
    """Return the maps that had a part in what was written."""
    found: set[int] = set()
    waiting = set(written)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting |= maps[number].query.written | maps[number].key.written
    return [maps[number] for number in sorted(found)]


def row_means(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the rows that are read, samples x places."""
    weights = rows.to(matrix) / rows.sum(1, keepdim=True)
    return torch.einsum("bq,bqk->bk", weights, matrix)


def without_own(matrix: Tensor) -> Tensor:
    """Return a matrix of places with its diagonal 0: what a place that is read says about itself is dropped."""
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
