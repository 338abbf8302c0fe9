"""From a model and inputs to an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._util.versions import versions
from ..engine import graph_check, module_tree
from ..engine.constants import Books, Unbatchable, joined_ledgers
from ..engine.context import Propagation, as_rule_set
from ..engine.coverage import CoverageEntry
from ..engine.forward import forward
from ..engine.inputs import Inputs
from ..engine.operations.tensors import in_float32
from ..engine.rules import DEFAULT, RuleSet
from ..engine.sources import Sources
from ..engine.targets import of_sample, plain
from ..engine.untouched import untouched
from ..errors import Error
from ..tasks.task import Task
from .auditor import Auditor
from .norms import NormRecord, watching
from .result import Audit
from .summary import Measured, heads_of, norms_of, summarise


def audit(
    task_or_model: Task | nn.Module,
    inputs: Any,
    target: Any = None,
    *,
    rules: str | RuleSet | Propagation = DEFAULT,
) -> Audit:
    """Test conservation operation by operation: what each takes in, gives on, gives to constants, and loses.

    Parameters
    ----------
    task_or_model
        What `conserva.load` returned, or any PyTorch Transformer in evaluation mode.
    inputs
        For a task one input, as a text or a pair of texts, or a list of them; for a model what it is called with.
    target
        What is explained: for a task as in `conserva.explain`, for a model as in `conserva.relevance`.
    rules
        The name of a rule set, or what `conserva.rules(...)` returned.

    Returns
    -------
    Audit
        The ledger, averaged over the inputs, and its entries for every operation of every module.

    Examples
    --------
    >>> found = conserva.audit(conserva.load(), ["a joy.", "a bore."], "positive", rules="ah+ln")
    >>> found.samples, found.rules
    (2, 'ah+ln')
    """
    target = plain(target)
    if isinstance(task_or_model, Task):
        model, name = task_or_model.model, task_or_model.name
        is_one = isinstance(inputs, tuple) or task_or_model.is_one(inputs)
        many = [inputs] if is_one else list(inputs)
        encoded = [task_or_model.encode(one) for one in many]
        inputs, said = task_or_model.batch(encoded), _said(target)
        if not callable(target):
            target = [task_or_model.aim(of_sample(target, i), one) for i, one in enumerate(encoded)]
    elif isinstance(task_or_model, nn.Module):
        model, name, said = task_or_model, type(task_or_model).__name__, _said(target)
    else:
        raise Error(f"{task_or_model!r} is neither a task nor a torch.nn.Module.")
    modules = dict(model.named_modules())
    module_tree.refuse_opaque_modules(modules)
    rule_set, call = as_rule_set(rules), Inputs.of(model, inputs)
    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad():
        try:
            parts = [_measure(model, modules, rule_set, call, target)]
        except Unbatchable:
            parts = [
                _measure(model, modules, rule_set, call.sample(i), of_sample(target, i)) for i in range(call.samples())
            ]
    ledger = joined_ledgers([part.ledger for part in parts])
    output = torch.cat([part.output for part in parts])
    return Audit(
        rules=rule_set.name,
        model=name,
        target=said,
        samples=len(output),
        output=float(output.mean()),
        inputs=float(ledger.inputs.mean()),
        positions=float(ledger.positions.mean()),
        biases=float(ledger.biases.mean()),
        gap=float(ledger.gap.mean()),
        components=summarise(modules, parts),
        heads=heads_of(modules, parts),
        norms=norms_of(modules, parts, rule_set),
        outputs=tuple(output.tolist()),
        sums=tuple(ledger.inputs.tolist()),
        gaps=tuple(ledger.gap.tolist()),
        coverage=tuple(parts[0].coverage),
        provenance={
            **versions(),
            "rules": {key: value for key, value in rule_set.to_dict().items() if key != "name"},
        },
    )


def _measure(model: nn.Module, modules: Mapping[str, nn.Module], rules: RuleSet, call: Inputs, target: Any) -> Measured:
    """Run the model once under watch, and take one gradient."""
    books = Books(call.samples(), 0)
    sources = Sources(modules, call.features(), True, ())
    auditor = Auditor(rules, books, sources)
    try:
        return _measured(model, modules, call, target, auditor, books, sources)
    finally:
        auditor.let_go()


def _measured(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    call: Inputs,
    target: Any,
    auditor: Auditor,
    books: Books,
    sources: Sources,
) -> Measured:
    rules = auditor.rules
    norms: list[NormRecord] = []
    with watching(modules, norms):
        _, (number,) = forward(model, call, sources, auditor, [target])
    if books.in_doubt:
        raise Unbatchable
    nodes = graph_check.check(model, [number], auditor)
    if not rules.attention.freezes:
        graph_check.cancel_inside_softmax(nodes, auditor, books)
    leaves = list(sources.leaves.values())
    scale = 256.0 if torch.float16 in (number.dtype, *(x.dtype for x in leaves)) else 1.0
    grads = auditor.gradient(in_float32(number).sum() * scale, leaves)
    output = in_float32(number.detach())
    carried = torch.zeros_like(output)
    for leaf, grad in zip(leaves, grads, strict=True):
        if grad is not None:
            relevance = in_float32(leaf.detach()) * in_float32(grad) / scale
            carried = carried + relevance.reshape(books.samples, -1).sum(1)
    books.weigh()
    constants = [_constants(record.entries, output) / scale for record in auditor.records]
    seen = {id(entry) for record in auditor.records for entry in record.entries}
    elsewhere = [entry for entry in books.entries if id(entry) not in seen]
    rest: dict[nn.Module | None, Tensor] = {}
    for entry in elsewhere:
        if entry.relevance is not None and not entry.cancelled:
            rest[entry.module] = rest.get(entry.module, torch.zeros_like(output)) + _constants([entry], output) / scale
    ledger, _ = books.close(modules, output, carried, scale)
    coverage: Sequence[CoverageEntry] = auditor.coverage.entries(modules)
    if not all(bool(torch.isfinite(one).all()) for one in (ledger.inputs, ledger.gap)):
        raise Error(
            f"The relevance has nan or inf under rules={rules.name!r}: conserva.relevance says where it arises."
        )
    return Measured(output, ledger, auditor.records, constants, rest, norms, coverage, scale)


def _constants(entries: Sequence[Any], like: Tensor) -> Tensor:
    """Return what constants took, for each sample."""
    found = [cast(Tensor, entry.relevance) for entry in entries if entry.relevance is not None and not entry.cancelled]
    return torch.stack(found).sum(0).to(like) if found else torch.zeros_like(like)


def _said(target: Any) -> str:
    if target is None:
        return "the highest score"
    return getattr(target, "__name__", str(target))
