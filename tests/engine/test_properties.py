"""Properties that hold for whatever a model is written like."""

import math

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import conserva

FEW = settings(max_examples=60, deadline=None)

UNARY = [
    torch.tanh, torch.sigmoid, torch.erf, F.silu, F.gelu, F.relu, F.softplus, torch.sin, torch.abs,
    lambda x: x**2, lambda x: x**3, lambda x: -x, lambda x: 0.5 * x, lambda x: x * 3, lambda x: x / 2,
    lambda x: 1 + x, lambda x: x - 0.25, lambda x: 2 - x, lambda x: torch.exp(x * 0.1),
]  # fmt: skip
BINARY = [torch.add, torch.sub, torch.mul, lambda a, b: a * b, lambda a, b: a / (1 + b * b)]


@st.composite
def elementwise_programs(draw):
    """A short program of elementwise calls on one tensor, results used again."""
    steps = []
    for i in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(UNARY)), draw(st.integers(0, i))))
        else:
            steps.append((draw(st.sampled_from(BINARY)), draw(st.integers(0, i)), draw(st.integers(0, i))))

    def run(x: Tensor) -> Tensor:
        values = [x]
        for call, *operands in steps:
            values.append(call(*(values[i] for i in operands)))
        return values[-1]

    return run


class Body(nn.Module):
    """One attention, then a function of its output."""

    def __init__(self, function) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        return self.function(x + F.scaled_dot_product_attention(x, x, x)).sum((1, 2))[:, None]


@FEW
@given(elementwise_programs(), st.integers(0, 2**31))
def test_books_close_on_any_elementwise_program(program, seed: int) -> None:
    torch.manual_seed(seed)
    model = Body(program).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    result = conserva.relevance(model, x, 0, rules="exact", at="inputs") if program_lives(model, x) else None
    if result is not None:
        entries = (result.output, result.ledger.inputs, result.ledger.biases)
        scale = max(1.0, *(float(entry.abs().max()) for entry in entries))
        assert result.ledger.gap.abs().max() <= 1e-9 * scale
        assert torch.equal(result.output, model(x)[:, 0].detach())


def program_lives(model: nn.Module, x: Tensor) -> bool:
    """Some programs cancel (x - x) or overflow; they are no matter of bookkeeping."""
    y = model(x.clone().requires_grad_())
    return bool(torch.isfinite(y).all()) and y.requires_grad and float(y.detach().abs().max()) < 1e6


@FEW
@given(
    heads=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    mask=st.sampled_from(["none", "bool", "float", "causal"]),
    scale=st.sampled_from([None, 0.3]),
    rules=st.sampled_from(["ah", "ln", "attnlrp", "gi"]),
    seed=st.integers(0, 2**31),
)
def test_fused_attention_equals_its_definition(heads, groups, queries, keys, mask, scale, rules, seed) -> None:
    torch.manual_seed(seed)
    kv_heads = heads // groups if heads % groups == 0 else heads
    q, k, v = (
        torch.randn(2, n, t, 3, dtype=torch.float64, requires_grad=True)
        for n, t in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    )
    upper = torch.randn(2, heads, queries, 3, dtype=torch.float64)
    bias = torch.zeros(queries, keys, dtype=torch.float64)
    given_mask = None
    if mask == "bool":
        given_mask = torch.rand(queries, keys) > 0.3
        given_mask[:, 0] = True
        bias = bias.masked_fill(~given_mask, -math.inf)
    elif mask == "float":
        given_mask = bias = torch.randn(queries, keys, dtype=torch.float64)
    elif mask == "causal":
        bias = bias.masked_fill(torch.ones(queries, keys).triu(1).bool(), -math.inf)

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, given_mask, is_causal=mask == "causal", scale=scale, enable_gqa=kv_heads != heads
        )

    def defined() -> Tensor:
        keys_, values_ = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        factor = 1 / math.sqrt(3) if scale is None else scale
        return torch.softmax(q @ keys_.transpose(-1, -2) * factor + bias, -1) @ values_

    results = []
    for attention in (fused, defined):
        with conserva.rules(rules):
            y = attention()
        grads = torch.autograd.grad((y * upper).sum(), (q, k, v), allow_unused=True)
        results.append([torch.zeros_like(x) if g is None else g for x, g in zip((q, k, v), grads, strict=True)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@FEW
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    rules=st.sampled_from(["gi", "ah+ln", "exact", "attnlrp"]),
    seed=st.integers(0, 2**31),
)
def test_any_padded_batch_equals_its_samples(lengths, rules, seed) -> None:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu").double().eval()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer, self.out = nn.Embedding(20, 8), layer, nn.Linear(8, 2)

        def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
            return self.out(self.layer(self.words(ids), src_key_padding_mask=padding)[:, 0])

    model = Model().double().eval()
    longest = max(lengths)
    ids = torch.randint(0, 20, (len(lengths), longest))
    padding = torch.arange(longest)[None] >= torch.tensor(lengths)[:, None]
    together = conserva.relevance(model, (ids, padding), 1, rules=rules)
    assert (together.scores()[padding] == 0).all()
    for i, n in enumerate(lengths):
        alone = conserva.relevance(model, (ids[i : i + 1, :n], padding[i : i + 1, :n]), 1, rules=rules)
        torch.testing.assert_close(together.scores()[i, :n], alone.scores()[0], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(together.ledger.gap[i], alone.ledger.gap[0], rtol=1e-7, atol=1e-10)
