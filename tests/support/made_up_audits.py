"""What tests share: made up audits."""

import math

from conserva.auditing.result import Audit, Component, Head, Norm
from conserva.engine.coverage import CoverageEntry
from conserva.engine.ledger import Ledger
from conserva.engine.rules import RULE_SETS

OUTPUT = 3.6


BOOKS = {"gi": (0.06, -0.02, 0.01), "ah+ln": (1.5, -0.6, -0.15), "exact": (4.15, -0.4, -0.1500005)}


WEIGHTS = {"gi": {"attention": -0.9, "norm": 1.0, "activation": 0.2}}


REST = {"activation": 1.0}


def wave(i: int) -> float:
    """A number between -1 and 1 that looks like chance and is not."""
    return math.sin(12.9898 * i + 0.7)


def operations(layers: int) -> list[tuple[str, str, str]]:
    found = [("bert.embeddings", "add", "linear"), ("bert.embeddings.LayerNorm", "layer_norm", "norm")]
    for i in range(layers):
        start = f"bert.encoder.layer.{i}"
        found += [
            (f"{start}.attention.self", "scaled_dot_product_attention", "attention"),
            (f"{start}.attention.output.dense", "linear", "linear"),
            (f"{start}.attention.output.LayerNorm", "layer_norm", "norm"),
            (f"{start}.intermediate.intermediate_act_fn", "gelu", "activation"),
            (f"{start}.output.dense", "linear", "linear"),
            (f"{start}.output.LayerNorm", "layer_norm", "norm"),
        ]
    return [*found, ("bert.pooler.activation", "tanh", "activation"), ("classifier", "linear", "linear")]


def leaks(rules: str, calls: list[tuple[str, str, str]], gap: float) -> list[float]:
    """Leaks as each rule set has them, that add up to the gap: norms fill it under gi, else activations."""
    free = "norm" if rules == "gi" else "activation"
    found = [WEIGHTS.get(rules, REST).get(kind, 0.0) * (1 + 0.8 * wave(i)) for i, (*_, kind) in enumerate(calls)]
    pooler = next(i for i, (module, *_) in enumerate(calls) if "pooler" in module)
    found[pooler] = 0.3 if rules == "gi" else gap / 2
    filling = [i for i, (*_, kind) in enumerate(calls) if kind == free and i != pooler]
    rest, weight = gap - sum(found) + sum(found[i] for i in filling), sum(found[i] for i in filling)
    return [one * rest / weight if i in filling else one for i, one in enumerate(found)]


def audit(rules: str = "gi", layers: int = 4, **changes: object) -> Audit:
    inputs, positions, biases = BOOKS[rules]
    gap = OUTPUT - inputs - positions - biases
    calls = operations(layers)
    linear = [i for i, (*_, kind) in enumerate(calls) if kind == "linear" and i]
    components = []
    for i, ((module, function, kind), leak) in enumerate(zip(calls, leaks(rules, calls, gap), strict=True)):
        constants = positions if i == 0 else biases / len(linear) if i in linear else 0.0
        leaving, rule = 2.5 * wave(3 * i), getattr(RULE_SETS[rules], kind).name if function != "add" else ""
        books = (leaving + constants + leak, leaving, constants, leak, abs(leak) * 1.1)
        components.append(Component(module, function, kind, rule, *books))
    plain, heads, norms = rules == "gi", [], []
    for i, one in enumerate(components):
        if one.kind == "attention":
            for head in range(4):
                broke = 0.4 * wave(7 * i + head)
                values = one.entering / 4 + (broke / 2 if plain else 0.0)
                rest = (broke / 4, broke / 4) if plain else (0.0, 0.0)
                heads.append(Head(one.module, head, one.entering / 4, values, *rest, broke))
        if one.kind == "norm":
            after = tuple(wave(i + 3 * j) + 0.25 for j in range(14))
            predicted = 1e-6 * one.entering
            before = tuple(value - sum(after) / 14 for value in after) if plain else after
            norms.append(Norm(one.module, one.entering, predicted if plain else one.entering, predicted, before, after))
    outputs = tuple(OUTPUT + 2 * wave(i) for i in range(24))
    gaps = tuple(gap * y / OUTPUT * (1 + 0.2 * wave(5 * i)) for i, y in enumerate(outputs))
    settings = {
        **{"rules": rules, "model": "sentiment", "target": "positive", "samples": 24, "output": OUTPUT},
        "ledger": Ledger(inputs, positions, biases, gap),
        "components": tuple(components),
        "heads": tuple(heads),
        "norms": tuple(norms),
        "outputs": outputs,
        "ledgers": tuple(
            Ledger(y - positions - biases - gap, positions, biases, gap) for y, gap in zip(outputs, gaps, strict=True)
        ),
        "coverage": tuple(
            CoverageEntry(one.module, one.kind, one.function, one.rule, 2) for one in components if one.rule
        ),
        "provenance": {"torch": "2.11", "weights": "sha256:0123"},
        **changes,
    }
    return Audit(**settings)  # type: ignore[arg-type]
