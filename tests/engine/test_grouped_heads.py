"""Heads that share keys and values in groups: in float32 torch fuses them on a GPU only where each has its own."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

import conserva
from conserva.engine.operations import attention, value_only
from conserva.engine.operations.attention_masks import Visibility

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MATH, EFFICIENT, FLASH = (
    one.value for one in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION)
)


def heads(*counts: int, dtype: torch.dtype = torch.float32, length: int = 6) -> list[Tensor]:
    return [torch.randn(2, count, length, 8, dtype=dtype) for count in counts]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """Let a CPU choose among kernels as a GPU does: which one for heads that are in groups, which for others."""
    kernels = {True: MATH, False: EFFICIENT}

    def choice(query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, enable_gqa: bool = False) -> int:
        if not enable_gqa:
            assert query.shape[1] == key.shape[1] == value.shape[1]
        if mask is not None:
            torch.broadcast_to(mask, (*query.shape[:3], key.shape[2]))
        return kernels[enable_gqa]

    monkeypatch.setattr(value_only, "WITHOUT_GROUPS", {"cpu": "efficient"})
    monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
    return kernels


MASKS = {
    "none": None,
    "2-D": torch.ones(6, 6, dtype=torch.bool),
    "for all heads": torch.ones(2, 1, 6, 6, dtype=torch.bool),
    "for each head": torch.zeros(2, 6, 6, 6),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_keys_and_values_are_repeated(mask: Tensor | None, chosen: dict[bool, int]) -> None:
    query, key, value = heads(6, 2, 2)
    found = value_only.repeated(query, key, value, mask, False)
    assert found is not None
    for one, x in zip(found, (key, value), strict=True):
        assert torch.equal(one, x.repeat_interleave(3, 1))


@pytest.mark.parametrize(
    ("grouped", "apart"), [(FLASH, EFFICIENT), (EFFICIENT, EFFICIENT), (MATH, MATH), (MATH, FLASH)]
)
def test_not_where_it_gains_nothing(grouped: int, apart: int, chosen: dict[bool, int]) -> None:
    chosen.update({True: grouped, False: apart})
    assert value_only.repeated(*heads(6, 2, 2), None, False) is None


@pytest.mark.parametrize(
    "given",
    [
        heads(6, 2, 2, dtype=torch.float64),
        heads(6, 2, 2, dtype=torch.bfloat16),
        heads(6, 6, 2),
        heads(6, 2, 6),
        heads(6, 4, 4),
        [x[0] for x in heads(6, 2, 2)],
        [torch.nested.nested_tensor([x[0], x[1]]) for x in heads(6, 2, 2)],
    ],
    ids=["float64", "bfloat16", "values in groups", "keys in groups", "no groups", "no batch", "nested"],
)
@pytest.mark.usefixtures("chosen")
def test_others_are_left_as_they_are(given: list[Tensor]) -> None:
    assert value_only.repeated(*given, None, False) is None


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("rules", ["gi", "ah", "attnlrp"])
def test_types_are_those_of_autocast(rules: str) -> None:
    query, key, value = (x.requires_grad_() for x in heads(6, 2, 2))
    called: list[tuple[torch.dtype, int]] = []

    def noted(query: Tensor, key: Tensor, *rest: Any, **how: Any) -> Tensor:
        called.append((key.dtype, key.shape[1]))
        return plain(query, key, *rest, **how)

    plain = F.scaled_dot_product_attention
    with torch.autocast("cpu", torch.bfloat16), conserva.rules(rules) as context:
        attention.fused_attention(context, noted, query, key, value, enable_gqa=True)
    assert called == [(torch.bfloat16, 2)]


def test_the_kernel_that_knows_no_groups_gets_heads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def efficient(query: Tensor, key: Tensor, value: Tensor, mask: Any, **how: Any) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT * how["scale"]
        return scores.softmax(-1) @ value, scores.logsumexp(-1)

    monkeypatch.setattr(torch, "_scaled_dot_product_efficient_attention", efficient)
    query, key, value = heads(6, 2, 2)
    out, _ = value_only._forward(query, key, value, Visibility(None, False, 8**-0.5), "efficient")
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value, enable_gqa=True))


class ValuesInGroups(nn.Module):
    """Attention over heads that share values, and have keys of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = F.scaled_dot_product_attention(x, x, x[:, :2], enable_gqa=True)
        return self.out(seen.mean((1, 2)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "attnlrp"])
def test_values_alone_in_groups(rules: str) -> None:
    model, x = ValuesInGroups().eval(), torch.randn(2, 6, 5, 8)
    assert torch.equal(conserva.relevance(model, x, 1, rules=rules).output, model(x)[:, 1])


@pytest.mark.parametrize("rules", ["gi", "ah"])
def test_nested_texts(rules: str) -> None:
    texts = [torch.randn(2, length, 8) for length in (5, 3)]
    expected = F.scaled_dot_product_attention(*[torch.nested.nested_tensor(texts)] * 3)
    for one in texts:
        one.requires_grad_()
    with conserva.rules(rules):
        nested = torch.nested.as_nested_tensor(texts)
        out = F.scaled_dot_product_attention(nested, nested, nested)
    torch.testing.assert_close(out.detach().to_padded_tensor(0.0), expected.to_padded_tensor(0.0))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rules", ["gi", "ah", "attnlrp"])
def test_heads_in_groups_are_those_heads_repeated(rules: str, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, bool]] = []

    def noted(query: Tensor, key: Tensor, *rest: Any, **how: Any) -> Tensor:
        called.append((key.shape[1], how["enable_gqa"]))
        return plain(query, key, *rest, **how)

    plain = F.scaled_dot_product_attention
    query, key, value = (torch.randn(2, heads, 6, 8, dtype=torch.float64) for heads in (6, 2, 2))
    places = [x.requires_grad_() for x in (query, key, value)]
    grad, found = torch.randn(2, 6, 6, 8, dtype=torch.float64), []
    for each in (1, 3):
        monkeypatch.setattr(value_only, "_writes_out_groups", lambda *given, each=each: each > 1)
        with conserva.rules(rules) as context:
            out = attention.fused_attention(context, noted, *places, None, 0.0, is_causal, enable_gqa=True)
        found.append([out, *torch.autograd.grad(out, places, grad, allow_unused=True)])
    assert called == [(2, True), (6, False)]
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")
@pytest.mark.parametrize("length", [100, 9000])
@pytest.mark.parametrize("masked", [False, True])
def test_a_gpu_never_writes_out_what_groups_of_heads_see(length: int, masked: bool) -> None:
    """In float32, for which torch has no fused kernel that knows groups."""
    query, key, value = (torch.randn(1, heads, length, 64, device=DEVICE) for heads in (4, 2, 2))
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=DEVICE).tril_() if masked else None
    grad, found, held = torch.randn_like(query), [], []
    for is_read in (False, True):
        place = value.clone().requires_grad_()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with conserva.rules("ah") if is_read else contextlib.nullcontext():
            out = F.scaled_dot_product_attention(query, key, place, mask, is_causal=not masked, enable_gqa=True)
        found.append([out, *torch.autograd.grad(out, place, grad)])
        held.append(torch.cuda.max_memory_allocated() - before)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
    assert length < 9000 or held[1] < held[0] / 2
