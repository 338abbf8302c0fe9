"""`conserva.audit`: run a model under the rules and measure conservation at every operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._util.versions import versions
from ..engine import graph_check, module_tree
from ..engine.constants import Constants, Unbatchable, joined_ledgers
from ..engine.context import Propagation, as_rule_set
from ..engine.coverage import CoverageEntry
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.ledger import ENTRIES, Ledger
from ..engine.module_tree import Modules
from ..engine.operations.tensors import in_float32
from ..engine.rules import DEFAULT, RuleSet
from ..engine.single_samples import check_outputs
from ..engine.sources import Sources
from ..engine.targets import of_sample, plain
from ..engine.untouched import untouched
from ..errors import Error
from ..tasks.task import Task
from ..tasks.user_inputs import inputs_of
from .auditor import Auditor
from .norms import NormRecord, watching
from .residuals import residuals_of
from .result import Audit
from .summary import Measured, heads_of, norms_of, summarise


def audit(
    task_or_model: Task | nn.Module,
    inputs: Any,
    target: Any = None,
    *,
    rules: str | RuleSet | Propagation = DEFAULT,
) -> Audit:
    """Measure conservation for every operation: the relevance of its output, its inputs and constants, and the leak.

    Parameters
    ----------
    task_or_model
        A task, such as the result of `conserva.load`, or any PyTorch Transformer in evaluation mode.
    inputs
        For a task, a single input, such as a text or a pair of texts, or a list of inputs. For a model, its arguments,
        as in `conserva.relevance`.
    target
        What to explain: for a task as in `conserva.explain`, for a model as in `conserva.relevance`.
    rules
        The name of a rule set, or the result of `conserva.rules(...)`.

    Returns
    -------
    Audit
        The ledger, averaged over the inputs, and the relevance entering, leaving and leaking at every operation.

    Examples
    --------
    >>> result = conserva.audit(conserva.load(), ["a joy.", "a bore."], "positive", rules="ah+ln")
    >>> result.samples, result.rules
    (2, 'ah+ln')
    """
    target = plain(target)
    if isinstance(task_or_model, Task):
        model, name = task_or_model.model, task_or_model.name
        many, _ = inputs_of(task_or_model, inputs)
        encoded = [task_or_model.encode(item) for item in many]
        inputs, label = task_or_model.batch(encoded), _label(target)
        if not callable(target):
            target = [task_or_model.resolve_target(of_sample(target, i), item) for i, item in enumerate(encoded)]
    elif isinstance(task_or_model, nn.Module):
        model, name, label = task_or_model, type(task_or_model).__name__, _label(target)
    else:
        raise Error(f"task_or_model={task_or_model!r} is neither a task nor a torch.nn.Module.")
    modules = Modules.of(model)
    module_tree.refuse_opaque_modules(modules)
    rule_set, call = as_rule_set(rules), Inputs.of(model, inputs)
    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad():
        try:
            parts = [_measure(model, modules, rule_set, call, target)]
        except Unbatchable:
            parts = [
                _measure(model, modules, rule_set, call.sample(i), of_sample(target, i)) for i in range(call.samples())
            ]
            check_outputs(model, call, [target], [torch.cat([part.output for part in parts])])
    ledger = joined_ledgers([part.ledger for part in parts])
    output = torch.cat([part.output for part in parts])
    return Audit(
        rules=rule_set.name,
        model=name,
        target=label,
        samples=len(output),
        output=float(output.mean()),
        ledger=Ledger(*(float(getattr(ledger, name).mean()) for name in ENTRIES)),
        components=summarise(modules, parts),
        heads=heads_of(modules, parts),
        residuals=residuals_of(modules, [part.residuals for part in parts]),
        norms=norms_of(modules, parts, rule_set),
        outputs=tuple(output.tolist()),
        ledgers=tuple(ledger.per_sample(output)),
        coverage=tuple(parts[0].coverage),
        provenance={
            **versions(),
            "rules": {key: value for key, value in rule_set.to_dict().items() if key != "name"},
        },
    )


def _measure(model: nn.Module, modules: Modules, rules: RuleSet, call: Inputs, target: Any) -> Measured:
    """Run one forward and one backward pass, and record every operation."""
    constants = Constants(call.samples(), 0)
    sources = Sources(modules, call.features(), True, ())
    auditor = Auditor(rules, constants, sources)
    try:
        return _measured(model, modules, call, target, auditor, constants, sources)
    finally:
        auditor.let_go()


def _measured(
    model: nn.Module,
    modules: Modules,
    call: Inputs,
    target: Any,
    auditor: Auditor,
    constants: Constants,
    sources: Sources,
) -> Measured:
    rules = auditor.rules
    norms: list[NormRecord] = []
    with watching(modules, norms):
        _, (number,) = forward(model, call, sources, auditor, [target])
    if constants.in_doubt:
        raise Unbatchable
    nodes = graph_check.check(model, [number], auditor)
    constants.cancel_unreached(nodes)
    if not rules.attention.freezes:
        graph_check.cancel_inside_softmax(nodes, auditor, constants)
    leaves = list(sources.leaves.values())
    scale = 256.0 if torch.float16 in (number.dtype, *(x.dtype for x in leaves)) else 1.0
    grads = auditor.gradient(in_float32(number).sum() * scale, [*leaves, *constants.edges])
    constants.weigh(grads[len(leaves) :])
    output = in_float32(number.detach())
    inputs = torch.zeros_like(output)
    for leaf, grad in zip(leaves, grads[: len(leaves)], strict=True):
        if grad is not None:
            relevance = in_float32(leaf.detach()) * in_float32(grad) / scale
            inputs = inputs + relevance.reshape(constants.samples, -1).sum(1)
    by_record = [_constants(record.entries, output) / scale for record in auditor.records]
    recorded = {id(entry) for record in auditor.records for entry in record.entries}
    unrecorded = [entry for entry in constants.entries if id(entry) not in recorded]
    rest: dict[nn.Module | None, Tensor] = {}
    for entry in unrecorded:
        if entry.relevance is not None and not entry.cancelled:
            rest[entry.module] = rest.get(entry.module, torch.zeros_like(output)) + _constants([entry], output) / scale
    ledger, _ = constants.close(output, inputs, scale)
    coverage: Sequence[CoverageEntry] = auditor.coverage.entries(modules)
    if not all(bool(torch.isfinite(entry).all()) for entry in (ledger.inputs, ledger.gap)):
        raise Error(
            f"The relevance has nan or inf under rules={rules.name!r}: run conserva.relevance on these inputs to see "
            "in which module it arises."
        )
    return Measured(output, ledger, auditor.records, by_record, rest, norms, coverage, scale, auditor.residuals)


def _constants(entries: Sequence[Any], like: Tensor) -> Tensor:
    """Return the relevance of constants, summed per sample."""
    rows = [cast(Tensor, entry.relevance) for entry in entries if entry.relevance is not None and not entry.cancelled]
    return torch.stack(rows).sum(0).to(like) if rows else torch.zeros_like(like)


def _label(target: Any) -> str:
    if target is None:
        return "the prediction"
    return getattr(target, "__name__", str(target))
