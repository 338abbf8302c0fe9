"""Relevance as an explanation algorithm of PyTorch Geometric."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explanation  # type: ignore[import-untyped]
from torch_geometric.explain.algorithm import ExplainerAlgorithm  # type: ignore[import-untyped]
from torch_geometric.explain.config import MaskType  # type: ignore[import-untyped]

from ...engine import module_tree
from ...engine.context import Propagation, as_rule_set
from ...engine.inputs import Inputs
from ...engine.passes import INPUTS, Pass, Relevance
from ...engine.rules import RuleSet
from ...engine.untouched import untouched
from ...errors import Error, NotApplicable
from .graphormer import SparseGraphormer, sizes_of
from .scores import explained_number, raw_scores

_NODES = "x"
_KERNELS = ("PerformerAttention", "PolynormerAttention", "SGFormerAttention")
"""Attention of PyTorch Geometric without a softmax: there are no probabilities that a rule could speak of."""


class RelevanceExplainer(ExplainerAlgorithm):  # type: ignore[misc]
    """Relevance of nodes for a prediction, signed: what speaks for it is above 0, what speaks against it below.

    It is an algorithm for `torch_geometric.explain.Explainer`, for graph Transformers that are called as
    `model(x, edge_index, ...)`. Other inputs than `x` are constants. The explained number is the score of the target's
    class, whatever the model's `return_type`: of probabilities and their logarithms, the score that went into the last
    softmax, log_softmax or sigmoid. A binary model has one score, which speaks for class 1: for class 0 it is explained
    with its sign turned. A regression is explained as it is. Where several outputs are explained at once, it is their
    sum.

    The explanation has a `node_mask`, nodes x 1 or nodes x features, and as numbers without an axis
    `explained_output = node_mask.sum() + virtual_relevance + position_relevance + bias_relevance + gap`: what a virtual
    node got (SparseGraphormer alone has one), what the model adds at places whatever their nodes say, what it adds
    everywhere, and what the rules lose or count twice. `rules` has the name of the rule set.

    Parameters
    ----------
    rules
        A rule set's name, or what `conserva.rules(...)` returned.
    at
        Where relevance is read: "inputs", which is `x`, or its embeddings if it holds ids; or the name of the module
        whose output has a row for each node.
    trusted
        Names of foreign autograd functions that are linear in their input.
    """

    def __init__(
        self, rules: str | RuleSet | Propagation = "ah+ln", at: str = INPUTS, trusted: Collection[str] = ()
    ) -> None:
        super().__init__()
        if not isinstance(at, str):
            raise Error(f"at={at!r}: a node mask is read at one place: give 'inputs' or the name of a module.")
        self.rules, self.at, self.trusted = as_rule_set(rules), at, trusted

    def supports(self) -> bool:
        """Tell whether masks of the wanted kinds exist; if not, the log says why."""
        nodes, edges = self.explainer_config.node_mask_type, self.explainer_config.edge_mask_type
        reason = None
        if edges is not None:
            reason = "'edge_mask_type' to be 'None': relevance is of nodes, edges have none of their own"
        elif nodes not in (MaskType.object, MaskType.attributes):
            reason = f"'node_mask_type' to be 'object' or 'attributes' (got '{nodes and nodes.value}')"
        elif nodes == MaskType.attributes and self.at != INPUTS:
            reason = f"'node_mask_type' to be 'object' where relevance is read at {self.at!r}, behind the features"
        if reason is not None:
            logging.error(f"'{type(self).__name__}' expects {reason}")
        return reason is None

    def forward(
        self, model: nn.Module, x: Any, edge_index: Any, *, target: Tensor, index: Any = None, **kwargs: Any
    ) -> Explanation:
        """Return the relevance of each node, or of each of its features."""
        self._check(x, kwargs)
        arguments = {name: value.detach() if isinstance(value, Tensor) else value for name, value in kwargs.items()}
        return_type, mode = self.model_config.return_type.value, self.model_config.mode.value
        call = Call((x, edge_index), arguments, (_NODES, "edge_index"), 0, return_type=return_type)
        modules = dict(model.named_modules())
        module_tree.refuse_opaque_modules(modules)
        _refuse_kernels(modules, self.rules)
        explain = Pass(model, modules, self.rules, [self.at], True, self.trusted)
        with untouched(model), torch.inference_mode(False), torch.enable_grad():
            [result] = explain(call, [lambda output: explained_number(output, target, index, mode)])
        return self._explanation(model, x, kwargs.get("batch"), result)

    def _check(self, x: Any, kwargs: dict[str, Any]) -> None:
        if not isinstance(x, Tensor):
            raise Error(f"x is {type(x).__name__}: graphs with one kind of node are explained, whose x is a tensor.")
        if x.dim() != 2 or not x.numel():
            raise Error(f"x has shape {tuple(x.shape)}: give nodes x features.")
        if self.explainer_config.node_mask_type == MaskType.attributes and not x.is_floating_point():
            raise Error(
                f"node_mask_type='attributes' with x in {x.dtype}: ids have relevance at their embeddings, which are "
                "summed over. Take node_mask_type='object'."
            )
        if taken := {"node_mask", "edge_mask"} & set(kwargs):
            raise Error(
                f"The model takes an argument {taken.pop()!r}, and an Explanation keeps its masks under that name: "
                "call the argument otherwise."
            )

    def _explanation(self, model: nn.Module, x: Tensor, batch: Tensor | None, result: Relevance) -> Explanation:
        ledger = result.ledger
        assert ledger is not None
        if self.at != INPUTS and len(result.values) > 1:
            raise Error(
                f"at={self.at!r} is several places, whose relevance must not be added up: {', '.join(result.values)}. "
                "Name one."
            )
        virtual, positions = torch.zeros_like(result.output), ledger.positions
        if self.at == INPUTS and x.is_floating_point():
            nodes = result.values[_NODES]
        else:  # ids may have been looked up more than once
            shares = [_by_node(model, values, len(x), batch, self.at) for values in result.values.values()]
            nodes = torch.stack([share for share, _ in shares], 1)
            virtual = torch.stack([share for _, share in shares])
        if isinstance(model, SparseGraphormer) and self.at == INPUTS:
            # It is a constant then, and the books have it among those that stand at a place.
            virtual = result.modules.get(model.virtual_name, virtual)
            positions = positions - virtual
        if self.explainer_config.node_mask_type == MaskType.object:
            nodes = nodes.sum(1, keepdim=True)
        parts = {
            "explained_output": result.output,
            "position_relevance": positions,
            "bias_relevance": ledger.biases,
            "gap": ledger.gap,
        }
        if isinstance(model, SparseGraphormer):
            parts["virtual_relevance"] = virtual
        # Numbers without an axis: what has one may be taken for a row of nodes.
        numbers = {name: value.sum().detach() for name, value in parts.items()}
        return Explanation(node_mask=nodes.detach(), rules=result.rules.name, **numbers)


@dataclass(frozen=True)
class Call(Inputs):
    """One call of a graph model: its nodes are the features of one sample, however many graphs they make up."""

    return_type: str = "raw"

    def features(self) -> dict[str, Tensor]:
        """Return the nodes: all else is a constant."""
        return {self.first: self.args[0]}

    def candidates(self) -> dict[str, Tensor]:
        """Return nothing: edges and the like are not explained."""
        return {}

    def samples(self) -> int:
        """Return 1: rows are nodes, and a sample is what is called at once."""
        return 1

    def run(self, model: nn.Module) -> Any:
        """Call the model, and return its scores as they were before they became probabilities."""
        if self.return_type == "raw":
            return super().run(model)
        return raw_scores(lambda: super(Call, self).run(model), self.return_type)


def _refuse_kernels(modules: Mapping[str, nn.Module], rules: RuleSet) -> None:
    found = [name for name, module in modules.items() if type(module).__name__ in _KERNELS]
    if found and not rules.attention.differentiates:
        raise NotApplicable(
            f"{found[0]!r} is {type(modules[found[0]]).__name__}, attention without a softmax, for which "
            f"rules={rules.name!r} has no rule: take multi-head attention, or rules that differentiate attention."
        )


def _by_node(model: nn.Module, values: Tensor, count: int, batch: Tensor | None, at: str) -> tuple[Tensor, Tensor]:
    """Return the relevance of each node, and of the virtual node, from rows of nodes or from a padded batch."""
    sizes = sizes_of(count, batch).to(values.device)
    shape, none = (len(sizes), int(sizes.max())), values.new_zeros(())
    if isinstance(model, SparseGraphormer) and values.shape[:2] == (shape[0], 1 + shape[1]):
        virtual, values = values[:, 0].sum(), values[:, 1:]
    elif values.shape[0] == count:
        return values.flatten(1).sum(1), none
    else:
        virtual = none
    if values.dim() < 3 or values.shape[:2] != shape:
        raise Error(
            f"at={at!r} has shape {tuple(values.shape)} for {count} node(s) in {shape[0]} graph(s): it must have a row "
            f"for each node, or {shape[1]} for each graph."
        )
    there = torch.arange(shape[1], device=values.device) < sizes[:, None]
    return values.flatten(2).sum(2)[there], virtual
