"""Relevance as an explanation algorithm of PyTorch Geometric."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explanation  # type: ignore[import-untyped]
from torch_geometric.explain.algorithm import ExplainerAlgorithm  # type: ignore[import-untyped]
from torch_geometric.explain.config import MaskType, ModelTaskLevel  # type: ignore[import-untyped]

from ...engine import module_tree
from ...engine.context import Propagation, as_rule_set
from ...engine.inputs import Inputs
from ...engine.passes import INPUTS, Pass, Relevance
from ...engine.rules import DEFAULT, RuleSet
from ...engine.untouched import untouched
from ...errors import Error, NotApplicable
from .explanation import ENTRIES, explanation_of
from .graphormer import SparseGraphormer, sizes_of
from .scores import conversions, explained_number, explained_rows, raw_scores

_NODES = "x"

OUTPUTS_AT_ONCE = 16
"""The number of outputs that are explained from one forward pass: for each, the relevance of all nodes is kept."""

LARGEST_LEAK = 1e-6
"""The largest share of an output's relevance at nodes of other graphs that is attributed to rounding."""

_KERNELS = ("PerformerAttention", "PolynormerAttention", "SGFormerAttention")
"""Attention layers of PyTorch Geometric without a softmax, for which there are no attention rules."""


class RelevanceExplainer(ExplainerAlgorithm):  # type: ignore[misc]
    """Signed relevance of nodes: positive for nodes that support a prediction, negative for nodes that oppose it.

    It is an algorithm for `torch_geometric.explain.Explainer`, for graph Transformers that are called as
    `model(x, edge_index, ...)`. Inputs other than `x` are constants. What is explained is the logit of the target
    class, whatever the model's `return_type`: for probabilities and log-probabilities, the input of the last softmax,
    log_softmax or sigmoid. A binary model has one logit, that of class 1; for class 0 its negative is explained. The
    output of a regression is explained as it is.

    The explanation has a `node_mask`, nodes x 1 or nodes x features, which is a sum over the explained outputs, and
    tensors with one number for each of them: `explained_output = input_relevance + virtual_relevance +
    position_relevance + bias_relevance + gap`. These are the relevance of all nodes, of the virtual node
    (SparseGraphormer only), of constants that belong to a position, of other constants, and the relevance that the
    rules lose or count twice. The nodes of each graph of a batch add up to its `input_relevance`; graphs that are
    mixed, by edges between them or by a layer, raise an `Error`. `rules` is the name of the rule set.

    Parameters
    ----------
    rules
        The name of a rule set, or the result of `conserva.rules(...)`.
    at
        Where relevance is computed: "inputs", which is `x`, or its embeddings if `x` contains ids; or the name of a
        module whose output has a row for each node.
    trusted
        Names of custom autograd functions that are linear in their input.

    Examples
    --------
    >>> explainer = Explainer(model, RelevanceExplainer("exact"), explanation_type="model", node_mask_type="object",
    ...     model_config={"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"})
    >>> explanation = explainer(x, edge_index, batch=batch)
    >>> explanation.node_mask.shape, explanation.gap.shape
    (torch.Size([7, 1]), torch.Size([2]))
    """

    def __init__(
        self, rules: str | RuleSet | Propagation = DEFAULT, at: str = INPUTS, trusted: Collection[str] = ()
    ) -> None:
        super().__init__()
        if not isinstance(at, str):
            raise Error(f"at={at!r}: a node mask has a single site: give 'inputs' or the name of a module.")
        self.rules, self.at, self.trusted = as_rule_set(rules), at, trusted

    def supports(self) -> bool:
        """Return whether the requested kinds of masks are supported; if not, the reason is logged."""
        nodes, edges = self.explainer_config.node_mask_type, self.explainer_config.edge_mask_type
        reason = None
        if edges is not None:
            reason = "'edge_mask_type' to be 'None': only nodes have relevance"
        elif nodes not in (MaskType.object, MaskType.attributes):
            reason = f"'node_mask_type' to be 'object' or 'attributes' (got '{nodes and nodes.value}')"
        elif nodes == MaskType.attributes and self.at != INPUTS:
            reason = (
                f"'node_mask_type' to be 'object' with at={self.at!r}, since features have relevance at the inputs only"
            )
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
        call = Call((x, edge_index), arguments, (_NODES, "edge_index"), 0)
        modules = module_tree.Modules.of(model)
        module_tree.refuse_opaque_modules(modules)
        _refuse_kernels(modules, self.rules)
        explain = Pass(model, modules, self.rules, [self.at], True, self.trusted)
        batch, nodes, ledgers = kwargs.get("batch"), torch.zeros(()), []
        with untouched(model), torch.inference_mode(False), torch.enable_grad():
            if return_type != "raw":
                call = replace(call, conversions=conversions(partial(call.run, model), return_type))
            # A regression has no use for targets, so they do not tell the number of outputs.
            outputs = _outputs(model, call) if mode == "regression" else target.numel()
            rows = explained_rows(outputs, index)
            graphs = self._graphs(batch, x, outputs) if len(rows) > 1 else None
            for start in range(0, len(rows), OUTPUTS_AT_ONCE):
                some = rows[start : start + OUTPUTS_AT_ONCE]
                targets = [partial(explained_number, target=target, row=row, mode=mode) for row in some]
                for row, result in zip(some, explain(call, targets), strict=True):
                    scores, ledger = self._split(model, x, batch, result)
                    if graphs is not None:
                        _refuse_mixed_graphs(scores, graphs, row)
                    nodes = nodes.to(scores) + scores
                    ledgers.append(ledger)
        return explanation_of(nodes, ledgers, self.rules.name)

    def _check(self, x: Any, kwargs: dict[str, Any]) -> None:
        if not isinstance(x, Tensor):
            raise Error(f"x is {type(x).__name__}: give a tensor. Graphs with several node types are not supported.")
        if x.dim() != 2 or not x.numel():
            raise Error(f"x has shape {tuple(x.shape)}: give nodes x features.")
        if self.explainer_config.node_mask_type == MaskType.attributes and not x.is_floating_point():
            raise Error(
                f"node_mask_type='attributes' with x in {x.dtype}: the relevance of ids is a sum over their "
                "embeddings. Use node_mask_type='object'."
            )
        if taken := {"node_mask", "edge_mask", "rules", *ENTRIES} & set(kwargs):
            raise Error(
                f"The model takes an argument {min(taken)!r}, which is the name of an attribute of the explanation: "
                "rename the argument."
            )

    def _graphs(self, batch: Any, x: Tensor, outputs: int) -> Tensor | None:
        """Return the graph of each node if there is one output for each graph; None for other models."""
        if self.model_config.task_level != ModelTaskLevel.graph or not isinstance(batch, Tensor):
            return None
        return batch if batch.shape == x.shape[:1] and int(batch.max()) + 1 == outputs else None

    def _split(
        self, model: nn.Module, x: Tensor, batch: Tensor | None, result: Relevance
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the relevance of the nodes for one output, and the output's ledger."""
        ledger = result.ledger
        assert ledger is not None
        if self.at != INPUTS and len(result.values) > 1:
            raise Error(
                f"at={self.at!r} has several sites, whose relevance must not be added: {', '.join(result.values)}. "
                "Choose one."
            )
        virtual, positions = torch.zeros_like(result.output), ledger.positions
        if self.at == INPUTS and x.is_floating_point():
            nodes = result.values[_NODES]
        else:  # ids can be looked up more than once
            shares = [_by_node(model, values, len(x), batch, self.at) for values in result.values.values()]
            nodes = torch.stack([share for share, _ in shares], 1)
            virtual = torch.stack([share for _, share in shares])
        if isinstance(model, SparseGraphormer) and self.at == INPUTS:
            # The virtual node is then a constant, which the ledger counts among the positions.
            virtual = result.modules.get(model.virtual_name, virtual)
            positions = positions - virtual
        entries = {
            "explained_output": result.output,
            "input_relevance": nodes.sum(),
            "virtual_relevance": virtual,
            "position_relevance": positions,
            "bias_relevance": ledger.biases,
            "gap": ledger.gap,
        }
        if not isinstance(model, SparseGraphormer):
            del entries["virtual_relevance"]
        if self.explainer_config.node_mask_type == MaskType.object:
            nodes = nodes.sum(1, keepdim=True)
        return nodes, entries


@dataclass(frozen=True)
class Call(Inputs):
    """One call of a graph model, as a single sample whose features are all nodes, of one or several graphs."""

    conversions: int = 0
    """How many softmax, log_softmax and sigmoid calls the model makes, if the last makes its output; 0 for logits."""

    def features(self) -> dict[str, Tensor]:
        """Return the nodes; other inputs are constants."""
        return {self.first: self.args[0]}

    def candidates(self) -> dict[str, Tensor]:
        """Return nothing: edges and other inputs are not explained."""
        return {}

    def samples(self) -> int:
        """Return 1: rows are nodes, not samples."""
        return 1

    def run(self, model: nn.Module) -> Any:
        """Call the model, and return its logits, also if it returns probabilities."""
        if not self.conversions:
            return super().run(model)
        return raw_scores(lambda: super(Call, self).run(model), self.conversions)


def _refuse_kernels(modules: Mapping[str, nn.Module], rules: RuleSet) -> None:
    names = [name for name, module in modules.items() if type(module).__name__ in _KERNELS]
    if names and not rules.attention.differentiates:
        raise NotApplicable(
            f"{names[0]!r} is {type(modules[names[0]]).__name__}, attention without a softmax, for which "
            f"rules={rules.name!r} has no rule: use multi-head attention, or rules that differentiate attention."
        )


def _outputs(model: nn.Module, call: Inputs) -> int:
    with torch.no_grad():
        output = call.run(model)
    return len(output) if isinstance(output, Tensor) and output.dim() else 1


def _refuse_mixed_graphs(scores: Tensor, graphs: Tensor, row: int) -> None:
    """Raise if an output has relevance at the nodes of other graphs of its batch."""
    sizes = scores.abs().sum(1)
    if sizes[graphs.to(sizes.device) != row].sum() > LARGEST_LEAK * sizes.sum():
        raise Error(
            f"The output of graph {row} depends on nodes of other graphs, so it is not a sum over its own nodes: edges "
            "connect the graphs, or a layer mixes them, such as a norm that is called without `batch`. Correct this, "
            f"or explain one output at a time, with index={row}."
        )


def _by_node(model: nn.Module, values: Tensor, count: int, batch: Tensor | None, at: str) -> tuple[Tensor, Tensor]:
    """Return the relevance of each node, and of the virtual node, given values by node or as a padded batch."""
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
    real = torch.arange(shape[1], device=values.device) < sizes[:, None]
    return values.flatten(2).sum(2)[real], virtual
