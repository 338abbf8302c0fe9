"""Fused attention under the AH-rule: the same output and the same relevance as torch's own call, by less work."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conserva
import tiny
import zoo
from conserva.engine.operations import attention_masks as sight
from conserva.engine.operations import value_only
from conserva.engine.operations.attention_masks import Band, find_band
from conserva.engine.operations.value_only import attend
from zoo_types import MODEL_TYPES, WORKING, made, mixture, rules_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}


@pytest.fixture
def at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the value-only path however short the input."""
    monkeypatch.setattr(value_only, "SHORT", {})


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few probabilities at a time, so that short inputs have many blocks."""
    monkeypatch.setattr(value_only, "ELEMENTS_AT_ONCE", 256)


def mask_of(kind: str, samples: int, heads: int, queries: int, keys: int) -> Tensor | None:
    there = (torch.arange(keys) < torch.tensor([keys, keys - 3])[:samples, None])[:, None, None]
    return {
        "": None,
        "padding": there,
        "two axes": torch.rand(queries, keys) > 0.3,
        "additive": torch.randn(samples, heads, queries, keys),
        "additive for all": torch.randn(1, 1, 1, keys),
        "one for all keys": torch.randn(samples, 1, queries, 1),
        "all -inf": torch.randn(samples, 1, queries, keys).index_fill(2, torch.tensor([1]), -math.inf),
        "closed": torch.cat(
            [torch.zeros(samples, 1, 1, keys, dtype=torch.bool), there.expand(-1, 1, queries - 1, -1)], 2
        ),
    }[kind]


CASES: dict[str, tuple[dict[str, int], str, bool]] = {
    "full": ({}, "", False),
    "causal": ({}, "", True),
    "grouped": ({"heads": 6, "key_heads": 2}, "", True),
    "more keys": ({"queries": 5, "keys": 33}, "", False),
    "more queries": ({"queries": 33, "keys": 5}, "", False),
    "causal, more keys": ({"queries": 5, "keys": 33}, "", True),
    "causal, more queries": ({"queries": 33, "keys": 5}, "", True),
    **{
        kind: ({}, kind, False)
        for kind in ("padding", "two axes", "additive", "additive for all", "closed", "all -inf")
    },
    # Of a GPU torch's own kernels do not take it.
    **({"one for all keys": ({}, "one for all keys", False)} if DEVICE == "cpu" else {}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.usefixtures("at_any_length", "_small_blocks")
def test_equals_torch(case: tuple[dict[str, int], str, bool], dtype: torch.dtype) -> None:
    changes, kind, is_causal = case
    sizes = {"samples": 2, "heads": 4, "key_heads": 4, "queries": 40, "keys": 40, "size": 16} | changes
    samples, heads, queries, keys = (sizes[name] for name in ("samples", "heads", "queries", "keys"))
    if "key_heads" not in changes:
        sizes["key_heads"] = heads
    like: dict[str, Any] = {"dtype": dtype, "device": DEVICE}
    query = torch.randn(samples, queries, heads, sizes["size"], **like).transpose(1, 2)
    key, value = (torch.randn(samples, sizes["key_heads"], keys, sizes["size"], **like) for _ in range(2))
    mask = mask_of(kind, samples, heads, queries, keys)
    if mask is not None:
        mask = mask.to(DEVICE, mask.dtype if mask.dtype == torch.bool else dtype)
    grad, value = torch.randn_like(query), value.requires_grad_()
    grouped = heads != sizes["key_heads"]
    expected = F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, enable_gqa=grouped)
    out, path = attend(query, key, value, mask, is_causal)
    if out is None:
        assert path.startswith("plain: ")
        pytest.skip(path)
    assert path.startswith("value-only: ")
    size = float(expected.detach().float().norm())
    assert float((out - expected).detach().float().norm()) <= TOLERANCE[dtype] * size
    (found,), (wanted,) = (torch.autograd.grad(one, value, grad) for one in (out, expected))
    assert float((found - wanted).float().norm()) <= TOLERANCE[dtype] * float(wanted.float().norm())


def left_to_torch(model: Any, inputs: Any, rules: str) -> Any:
    """Explain with nothing fused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys.modules["conserva.engine.relevance"], "within_memory", lambda checkpoint, device, run: run(None)
        )
        return conserva.relevance(model, inputs, mixture, rules=rules)


def on_device(model: Any, inputs: Any) -> tuple[Any, Any]:
    """Return both where they are tested; a GPU's kernel is there for float32, not for float64."""

    def moved(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to(DEVICE, torch.float32) if DEVICE == "cuda" and x.is_floating_point() else x.to(DEVICE)

    model = copy.deepcopy(model).to(DEVICE, torch.float32) if DEVICE == "cuda" else model
    return model, {name: moved(x) for name, x in inputs.items()}


def paths(result: conserva.engine.passes.Relevance) -> set[str]:
    met = [one for one in result.coverage if one.function == "scaled_dot_product_attention" and one.rule != "constant"]
    return {one.path.partition(":")[0] for one in met}


@pytest.mark.usefixtures("at_any_length")
@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_every_architecture_gets_the_same_relevance(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    model, inputs = on_device(model, inputs)
    rules = rules_for(specimen, "exact")
    plain = left_to_torch(model, inputs, rules)
    if not paths(plain):
        pytest.skip("no fused attention")
    found = conserva.relevance(model, inputs, mixture, rules=rules)
    assert paths(plain) == {"plain"}
    tolerance = 1e-9 if next(model.parameters()).dtype == torch.float64 and DEVICE == "cpu" else 1e-3
    for place, expected in plain.values.items():
        torch.testing.assert_close(
            found.values[place], expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
        )
    for name in ("output", "inputs", "positions", "biases"):
        torch.testing.assert_close(getattr(found.ledger, name), getattr(plain.ledger, name), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("at_any_length")
def test_coverage_says_which_path_was_taken() -> None:
    ids = torch.randint(1, 90, (2, 9))
    fused = conserva.relevance(tiny.bert(attn_implementation="sdpa"), {"input_ids": ids}, 1)
    assert {met.path for met in fused.coverage if met.kind == "attention"} == {"value-only: cpu"}
    assert {met.path for met in fused.coverage if met.kind != "attention"} == {""}


def test_short_inputs_are_left_to_torch() -> None:
    ids = torch.randint(1, 90, (2, 9))
    short = conserva.relevance(tiny.bert(attn_implementation="sdpa"), {"input_ids": ids}, 1)
    assert {met.path for met in short.coverage if met.kind == "attention"} == {"plain: short"}


@pytest.mark.usefixtures("at_any_length")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, k, v: (q[0], k[0], v[0]), "not a batch of heads"),
        (lambda q, k, v: (q.half(), k.half(), v.half()), "no kernel for its dtype or size"),
        (lambda q, k, v: (q, k, v[..., :8]), "no kernel for its dtype or size"),
        (lambda q, k, v: (q, k.double(), v), "mixed dtypes"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3]), "numbers of heads that do not divide"),
        (
            lambda q, k, v: (q.mT, k.mT, v.mT),
            "torch's kernel for it does not return the log-sum-exp",
        ),  # places side by side
    ],
)
def test_what_is_not_supported_is_left_to_torch_and_says_why(change: Any, reason: str) -> None:
    out, path = attend(*change(*(torch.randn(2, 4, 8, 16) for _ in range(3))))
    assert out is None
    assert path.startswith(f"plain: {reason}")


@pytest.mark.usefixtures("at_any_length")
def test_values_alone_carry_relevance() -> None:
    query, key, value = (torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3))
    with conserva.rules("ah"):
        out = F.scaled_dot_product_attention(query, key, value)
    grads = torch.autograd.grad(out.sum(), (query, key, value), allow_unused=True)
    assert grads[0] is None
    assert grads[1] is None
    assert grads[2] is not None


@pytest.mark.usefixtures("at_any_length")
def test_values_are_not_kept() -> None:
    kept: list[Tensor] = []
    query, key, value = (torch.randn(1, 2, 8, 16) for _ in range(3))
    value.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        out, _ = attend(query, key, value)
    assert out is not None
    assert all(x.data_ptr() not in (value.data_ptr(), out.data_ptr()) for x in kept)
    assert sum(x.numel() for x in kept) == query.numel() + key.numel() + 2 * 8


@pytest.mark.usefixtures("at_any_length")
def test_autocast_casts_as_torch_does() -> None:
    query, key, value = (torch.randn(1, 2, 8, 16, device=DEVICE) for _ in range(3))
    with torch.autocast(DEVICE, torch.bfloat16):
        expected = F.scaled_dot_product_attention(query, key, value)
        with conserva.rules("ah"):
            out = F.scaled_dot_product_attention(query, key, value.requires_grad_())
    assert out.dtype == expected.dtype == torch.bfloat16
    assert torch.autograd.grad(out.float().sum(), value)[0].dtype == torch.float32


BAND = torch.ones(30, 30, dtype=torch.bool).tril()
BOTH_WAYS = torch.ones(30, 30, dtype=torch.bool).tril(6).triu(-6)
MASKS = {
    "causal": (BAND, Band(30, True)),
    "window": (BAND & ~BAND.tril(-7), Band(7, True)),
    "window of one": (torch.eye(30, dtype=torch.bool), Band(1, True)),
    "window both ways": (BOTH_WAYS, Band(7, False)),
    "full": (torch.ones(30, 30, dtype=torch.bool), Band(30, False)),
    "more ahead than back": (BOTH_WAYS.triu(-3), None),
    "closed": (torch.zeros(30, 30, dtype=torch.bool), None),
    "one hole": (BAND & ~(torch.eye(30) > 0).roll(-3, 1), None),
    "not square": (BAND[:, :20], None),
}


@pytest.mark.parametrize(("mask", "band"), MASKS.values(), ids=MASKS)
def test_a_band_is_known_for_what_it_is(mask: Tensor, band: Band | None) -> None:
    assert find_band(mask[None, None]) == band
    assert find_band(mask.expand(3, 2, -1, -1)) == band


def test_samples_that_differ_are_no_band() -> None:
    padded = torch.stack([BAND, BAND & (torch.arange(30) > 3)])[:, None]
    assert find_band(padded) is None


def test_a_mask_is_looked_at_once_for_all_layers_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Tensor] = []
    monkeypatch.setattr(sight, "find_band", lambda mask: looks.append(mask))
    mask = BAND[None, None].clone()
    for _ in range(3):
        sight._band(mask)
        sight._band(mask[:, :, :, :30])
    assert len(looks) == 1
    mask[0, 0, 5, 5] = False
    sight._band(mask)
    assert len(looks) == 2
    assert mask.__dict__ == {}


class Mutating(torch.nn.Module):
    """Two layers of attention over one mask, which is changed in place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x, mask = self.words(ids)[:, None], torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        x = x + F.scaled_dot_product_attention(x, x, x, mask)
        mask.triu_()
        return (x + F.scaled_dot_product_attention(x, x, x, mask)).sum((1, 2))


@pytest.mark.usefixtures("at_any_length")
def test_a_mask_that_is_changed_in_place_later_does_no_harm() -> None:
    model, ids = Mutating().double().eval(), torch.randint(0, 20, (2, 9))
    found = conserva.relevance(model, ids, 3, rules="exact")
    assert {met.path.partition(":")[0] for met in found.coverage} == {"plain"}
    assert float(found.ledger.gap.abs().max()) < 1e-12


@pytest.mark.usefixtures("at_any_length")
def test_under_a_users_autocast() -> None:
    ids = torch.randint(1, 90, (2, 9))
    model = tiny.bert(attn_implementation="sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        found = conserva.relevance(model, {"input_ids": ids}, 1)
    plain = conserva.relevance(model, {"input_ids": ids}, 1)
    assert paths(found) == {"value-only"}
    assert float((found.scores() - plain.scores()).norm() / plain.scores().norm()) < 0.1


@pytest.mark.parametrize("short", [0, 10**9])
def test_where_scores_drown_all_keys_count_alike(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of nothing but the lowest number, as padding on the left leaves it; torch's own gradient is wrong there."""
    monkeypatch.setattr(value_only, "SHORT", dict.fromkeys(("cpu", "cuda"), short))
    query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(3))
    mask = torch.zeros(1, 1, 6, 6).index_fill(2, torch.tensor([2]), torch.finfo(torch.float32).min)
    grad, value = torch.randn(1, 2, 6, 8), value.requires_grad_()
    with conserva.rules("ah"):
        out = F.scaled_dot_product_attention(query, key, value, mask)
    probabilities = (query @ key.mT / 8**0.5 + mask).softmax(-1)
    torch.testing.assert_close(torch.autograd.grad(out, value, grad)[0], probabilities.mT @ grad)


@pytest.mark.usefixtures("at_any_length")
def test_nothing_is_attended_to_nothing() -> None:
    empty = torch.randn(0, 2, 6, 8)
    assert attend(empty, empty, empty) == (None, "plain: empty")


def test_replica_of_the_rule() -> None:
    """R_j = v_j * sum_i p_ij g_i, with p from its definition, in float64 (Ali et al. 2022, equation 8)."""
    query, key, value = (torch.randn(1, 1, 7, 4, dtype=torch.float64) for _ in range(3))
    grad = torch.randn(1, 1, 7, 4, dtype=torch.float64)
    value_only_out = value_only.ValueOnly.apply(
        value.requires_grad_(), query, key, sight.Visibility(None, False, 0.5), "cpu", None
    )
    (found,) = torch.autograd.grad(value_only_out, value, grad)
    for j in range(7):
        expected = torch.zeros(4, dtype=torch.float64)
        for i in range(7):
            weights = [math.exp(0.5 * float(query[0, 0, i] @ key[0, 0, k])) for k in range(7)]
            expected += weights[j] / sum(weights) * grad[0, 0, i]
        torch.testing.assert_close(found[0, 0, j], expected)


def test_a_query_without_a_denominator_gives_nothing() -> None:
    query, key, grad = (torch.randn(1, 2, 5, 8) for _ in range(3))
    mask = torch.zeros(1, 1, 5, 5).index_fill(2, torch.tensor([3]), -math.inf)
    lse = (query @ key.mT / 8**0.5 + mask).logsumexp(-1)
    found = value_only.values_gradient_in_blocks(query, key, grad, lse, sight.Visibility(mask, False, 8**-0.5))
    assert torch.isfinite(found).all()
    grad[:, :, 3] = 0
    again = value_only.values_gradient_in_blocks(query, key, grad, lse, sight.Visibility(mask, False, 8**-0.5))
    torch.testing.assert_close(found, again)
