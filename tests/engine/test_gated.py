"""Large activations and gates: the same relevance whatever is kept, and less of it kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
import zoo
from conserva.engine import memory
from conserva.engine.context import Propagation
from conserva.engine.operations import gated
from conserva.engine.rules import RuleSet, rule_set
from conserva.engine.sources import Sources
from gated_models import assert_same, explained
from gradient_state import state
from tiny import bert, llama, shake, tokens

RULES = {
    "gi": rule_set("gi"),
    "ah+ln": rule_set("ah+ln"),
    "exact": rule_set("exact"),
    "attnlrp": rule_set("attnlrp"),
    "ah+ln, half": rule_set("ah+ln", product="half"),
    "ah+ln, freeze-gate": rule_set("ah+ln", product="freeze-gate"),
    "exact, freeze-gate": rule_set("exact", product="freeze-gate"),
    "exact, product differentiated": rule_set("exact", product="gradient"),
}
PLANS = ("whole", "recompute", "offload")


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(memory, "SMALL_BYTES", 1)
    monkeypatch.setattr(memory, "OFFLOADED", ("cpu",))
    monkeypatch.setattr(gated, "PIECE_BYTES", 48 * 8 * 2)  # a few rows of the tiny models at a time


def of_type(model_type: str) -> nn.Module:
    specimen = next(one for one in zoo.SPECIMENS if one.model_type == model_type)
    return zoo.build(specimen, dtype=torch.float64)


def middle(output: Any) -> Tensor:
    """Some score of the middle of a sample's output."""
    scores = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return scores[:, 3, 5] if scores.dim() == 3 else scores[:, 1]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: bert().double(),
    "llama": lambda: llama().double(),
    "llama with biases": lambda: shake(llama(mlp_bias=True).double()),
    **{name: (lambda name=name: of_type(name)) for name in ("qwen2", "phi3", "gemma2", "gpt2")},
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_every_plan_gives_the_same_relevance(name: str, rules: str) -> None:
    model, inputs = MODELS[name](), tokens()
    for ledger in (True, False):
        how = {"rules": RULES[rules], "ledger": ledger}
        plain = explained(model, inputs, middle, "plain", **how)
        for plan in PLANS:
            result = explained(model, inputs, middle, plan, **how)
            assert_same(result, plain)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_the_books_close(name: str, plan: str) -> None:
    result = explained(MODELS[name](), tokens(), middle, plan, rules="exact")
    torch.testing.assert_close(result.ledger.gap, torch.zeros_like(result.ledger.gap), rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_several_targets_use_what_was_kept_several_times(plan: str) -> None:
    model, targets = llama().double(), [0, 1, 0]
    results = conserva.relevance(model, tokens(), targets=targets, rules="exact", checkpoint=plan)
    for target, result in zip(targets, results, strict=True):
        assert_same(result, explained(model, tokens(), target, "plain", rules="exact"))


@pytest.mark.parametrize("rules", ["ah+ln", "exact"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plans_differ_by_rounding_only(dtype: torch.dtype, rules: str) -> None:
    model, inputs = llama().to(dtype), tokens()
    plain = explained(model, inputs, 1, "plain", rules=rules).scores()
    for plan in PLANS:
        error = (explained(model, inputs, 1, plan, rules=rules).scores() - plain).abs().max()
        assert error <= 4 * torch.finfo(dtype).eps * plain.abs().max()


# What is kept


def nodes(number: Tensor) -> set[Any]:
    """Return every node of the graph behind a number."""
    seen: set[Any] = set()
    waiting = [number.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(before for before, _ in node.next_functions)
    return seen


def kept(number: Tensor, constants: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that the graph keeps for the backward pass, once, without the model's own."""
    seen = set(constants)
    for node in nodes(number):
        found = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        found += getattr(node, "saved_tensors", ())
        for x in found:
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in seen:
                seen.add(x.untyped_storage()._cdata)
                yield x


def wide(model: nn.Module, rules: RuleSet, plan: str, width: int, ledger: bool = False) -> int:
    """Return how many kept tensors are as wide as the MLP."""
    constants = {p.untyped_storage()._cdata for p in model.parameters()}
    counts = []

    def target(output: Any) -> Tensor:
        number = middle(output)
        counts.append(sum(x.untyped_storage().nbytes() == 3 * 7 * width * 8 for x in kept(number, constants)))
        return number

    explained(model, tokens(), target, plan, rules=rules, ledger=ledger)
    return counts[0]


@pytest.mark.parametrize(
    ("name", "rules", "plain", "whole", "recompute"),
    [
        ("llama", "ah+ln", 3, 2, 0),
        ("llama", "exact", 3, 2, 0),
        ("llama", "ah+ln, half", 3, 2, 0),
        ("llama", "ah+ln, freeze-gate", 1, 1, 0),
        ("llama", "exact, freeze-gate", 1, 1, 0),
        ("llama with biases", "exact", 3, 2, 0),
        ("qwen2", "ah+ln", 3, 2, 0),
        ("gemma2", "exact", 3, 2, 0),
        ("bert", "ah+ln", 1, 1, 0),
        ("bert", "exact", 1, 1, 0),
    ],
)
@pytest.mark.parametrize("ledger", [True, False])
def test_less_is_kept(name: str, rules: str, plain: int, whole: int, recompute: int, ledger: bool) -> None:
    """Counted for each of the two layers."""
    counts = [wide(MODELS[name](), RULES[rules], plan, 48, ledger) for plan in ("plain", "whole", "recompute")]
    assert counts == [2 * plain, 2 * whole, 2 * recompute]


@pytest.mark.parametrize(("plan", "expected"), [("whole", 2), ("recompute", 0)])
def test_a_projection_to_gate_and_up_at_once_is_made_anew_too(plan: str, expected: int) -> None:
    assert wide(of_type("phi3"), RULES["exact"], plan, 2 * 48) == expected


@pytest.mark.parametrize("plan", ["whole", "recompute"])
@pytest.mark.parametrize(
    ("name", "rules", "ledger", "links"),
    [
        ("llama", "ah+ln", True, 1), ("llama", "gi", False, 1), ("phi3", "exact", True, 1),
        ("llama with biases", "ah+ln", False, 1),
        ("llama with biases", "ah+ln", True, 2),  # which the biases are booked on
        ("llama", "gi", True, 2),  # what lies inside a softmax is found by its matrix products
        ("llama", "exact, freeze-gate", True, 1),
    ],
)  # fmt: skip
def test_the_gradient_goes_straight_to_the_input_of_gate_and_up(
    name: str, rules: str, ledger: bool, links: int, plan: str
) -> None:
    found: list[int] = []

    def target(output: Any) -> Tensor:
        fused = [node for node in nodes(middle(output)) if node.name() == "FusedBackward"]
        found.extend(sum(before is not None for before, _ in node.next_functions) for node in fused)
        return middle(output)

    explained(MODELS[name](), tokens(), target, plan, rules=RULES[rules], ledger=ledger)
    assert found == [links] * 2


# What a plan must not pass by


@pytest.mark.parametrize("rules", ["ah+ln", "exact", "exact, freeze-gate"])
@pytest.mark.parametrize("plan", PLANS)
def test_relevance_inside_the_mlp_can_still_be_read(rules: str, plan: str) -> None:
    for model, places in (
        (llama().double(), ["*.act_fn", "*.gate_proj", "*.up_proj", "*.mlp", "*.act_fn"]),
        (bert().double(), ["*.intermediate", "*.intermediate.dense", "*.intermediate_act_fn"]),
        (of_type("phi3"), ["*.gate_up_proj", "*.activation_fn"]),
    ):
        for place in places:
            how = {"rules": RULES[rules], "at": ["inputs", place]}
            plain = explained(model, tokens(), middle, "plain", **how)
            assert len(plain.values) > 1
            assert_same(explained(model, tokens(), middle, plan, **how), plain)


class Reporting(nn.Module):
    """A model that reports as its first hidden states what a plan would pass by."""

    def __init__(self, reports: str) -> None:
        super().__init__()
        self.reports = reports
        self.words, self.project, self.out = nn.Embedding(50, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, output_hidden_states: bool = False) -> Any:
        x = self.words(input_ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        projected = self.project(x)
        activated = F.gelu(projected)
        output = type("Output", (), {})()
        output.hidden_states = (projected if self.reports == "a projection" else activated,)
        output.logits = self.out(activated * self.project(x)).mean(1)
        return output


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("reports", ["a projection", "an activation"])
def test_relevance_at_embeddings_is_not_passed_by(reports: str, plan: str) -> None:
    torch.manual_seed(0)
    model, ids = Reporting(reports).double().eval(), {"input_ids": torch.randint(0, 50, (2, 5))}
    how = {"rules": "ah+ln", "at": "embeddings", "ledger": False}
    assert_same(explained(model, ids, 1, plan, **how), explained(model, ids, 1, "plain", **how))


@pytest.mark.parametrize("rules", ["ah+ln", "exact"])
def test_what_is_made_anew_meets_no_rule_again(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    meet = Propagation.rule_for

    def spy(self: Propagation, kind: str, *of: Any) -> str:
        if self.coverage.is_paused:
            met.append(kind)
        return meet(self, kind, *of)

    monkeypatch.setattr(Propagation, "rule_for", spy)
    assert explained(llama(), tokens(), 1, "recompute", rules=rules).plan != "whole"
    assert not met


@pytest.mark.parametrize("plan", PLANS)
def test_the_model_is_untouched(plan: str) -> None:
    model = llama()
    before, output = state(model), model(**tokens()).logits
    explained(model, tokens(), 1, plan, rules="exact")
    assert state(model) == before
    assert torch.equal(model(**tokens()).logits, output)


# Products of every form


class Skeleton(nn.Module):
    """Live tokens, one attention, and a product to try."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(50, 6), body
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(6, 8, bias=False), nn.Linear(8, 6)
        self.both, self.square = nn.Linear(6, 16, bias=False), nn.Linear(6, 6, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.body(self, x).sum((1, 2))[:, None]


def changed(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    change(x)
    return x


def cut_in_place(m: Any, x: Tensor) -> Tensor:
    whole = m.both(x)
    whole[..., :3].add_(1)
    gate, up = whole.chunk(2, -1)
    return F.silu(gate) * up


def input_changed(m: Any, x: Tensor) -> Tensor:
    given = 1.0 * x
    gate = m.b(given)
    given.mul_(3)
    return F.silu(gate) * m.a(x)


def changed_afterwards(m: Any, x: Tensor) -> Tensor:
    y = F.silu(m.b(x))
    y[..., 0] = 0
    return y * m.a(x)


def changed_through_a_view(m: Any, x: Tensor) -> Tensor:
    y = F.silu(m.b(x))
    y[..., :3].mul_(2)
    return y * m.a(x)


PRODUCTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "gate first": lambda m, x: F.silu(m.b(x)) * m.a(x),
    "gate last": lambda m, x: m.a(x) * F.silu(m.b(x)),
    "no bias": lambda m, x: F.silu(m.b(x)) * m.b(2 * x),
    "two inputs": lambda m, x: F.silu(m.b(x)) * m.b(x.flip(1)),
    "both activated": lambda m, x: F.silu(m.b(x)) * torch.tanh(m.a(x)),
    "a square": lambda m, x: (lambda y: y * y)(F.silu(m.b(x))),
    "silu by hand": lambda m, x: (lambda y: y * torch.sigmoid(y))(m.b(x)),
    "a gate that is not 0 at 0": lambda m, x: torch.sigmoid(m.b(x)) * m.a(x),
    "a gate of the input itself": lambda m, x: F.silu(m.square(x)) * x,
    "no linear layers": lambda m, x: F.gelu(x, approximate="tanh") * x.flip(1),
    "broadcast": lambda m, x: F.silu(m.b(x))[..., :1] * m.a(x),
    "broadcast activation": lambda m, x: F.silu(m.b(x).mean(-1, keepdim=True)) * m.a(x),
    "chunked": lambda m, x: (lambda gate, up: F.silu(gate) * up)(*m.both(x).chunk(2, -1)),
    "split": lambda m, x: (lambda gate, up: up * F.gelu(gate))(*m.both(x).split([8, 8], -1)),
    "split along the tokens into nothing and all": lambda m, x: F.silu(m.b(x).split([0, 4], 1)[1]) * m.a(x),
    "chunked along the tokens": lambda m, x: (lambda gate, up: F.silu(gate) * up)(*m.b(x).chunk(2, 1)),
    "changed in place, then chunked": cut_in_place,
    "changed in place after the activation": changed_afterwards,
    "the layer's input changed in place": input_changed,
    "changed through a view after the activation": changed_through_a_view,
    "changed in place before the activation": lambda m, x: F.silu(changed(m.b(x), lambda y: y.mul_(2))) * m.a(x),
    "multiplied in place": lambda m, x: changed(m.a(x), lambda y: y.mul_(F.silu(m.b(x)))),
    "activated in place": lambda m, x: F.silu(m.b(x), inplace=True) * m.a(x),
    "a gate used twice": lambda m, x: (lambda y: y * m.a(x) + y)(F.silu(m.b(x))),
    "bounds that are tensors": lambda m, x: torch.clamp(m.b(x), torch.zeros(8).to(x), torch.ones(8).to(x)) * m.a(x),
    "an activation alone": lambda m, x: m.c(F.gelu(m.a(x))),
    "an activation alone, not 0 at 0": lambda m, x: m.c(F.softplus(m.a(x))),
    "an activation of an activation": lambda m, x: m.c(torch.tanh(F.gelu(m.a(x)))),
    "fewer rows than a piece": lambda m, x: m.c(F.gelu(m.a(x[:, :1]))),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_every_form(name: str, rules: str) -> None:
    torch.manual_seed(0)
    model, ids = Skeleton(PRODUCTS[name]).double().eval(), torch.randint(0, 50, (3, 4))
    for ledger in (True, False):
        how = {"rules": RULES[rules], "ledger": ledger}
        plain = explained(model, ids, 0, "plain", **how)
        for plan in PLANS:
            assert_same(explained(model, ids, 0, plan, **how), plain)


def test_without_a_keeper_everything_stays_as_torch_keeps_it() -> None:
    x = torch.randn(2, 3, 6, requires_grad=True)
    layer = nn.Linear(6, 6)
    for context in (conserva.rules("exact"), Propagation(rule_set("ah+ln"), None, Sources({"": layer}, {}, False, []))):
        with context:
            y = F.silu(layer(x)) * layer(x)
        assert context.keeper is None
        assert not any("Fused" in node.name() for node in nodes(y))
