"""A softmax over groups, spelled as graph libraries do, against loops over edges and against the dense one."""

import pytest
import torch
from torch import Tensor

import conserva
from conserva.engine.rules import RULE_SETS
from replica_models import EXACT, normal, propagated
from tiny import attention_head

EDGES = torch.tensor([[1, 2, 0, 0, 3, 1, 1], [0, 0, 1, 2, 1, 3, 2]])  # from, to: every node sees some others
SIZE = 4


def by_index(scores: Tensor, to: Tensor, size: int) -> Tensor:
    """As torch_geometric.utils.softmax has it."""
    highest = scores.new_zeros(size).scatter_reduce(0, to, scores.detach(), "amax", include_self=False)
    out = (scores - highest.index_select(0, to)).exp()
    return out / (scores.new_zeros(size).scatter_add_(0, to, out) + 1e-16).index_select(0, to)


def not_in_place(scores: Tensor, to: Tensor, size: int) -> Tensor:
    out = torch.exp(scores)
    return torch.div(out, torch.scatter_add(scores.new_zeros(size), 0, to, out)[to])


def by_segment(scores: Tensor, to: Tensor, size: int) -> Tensor:
    """As torch_geometric.utils.softmax has it where rows are sorted by group."""
    order = to.argsort(stable=True)
    counts = torch.bincount(to, minlength=size)
    out = scores[order].exp()
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sums = torch._segment_reduce(out, "sum", offsets=ends) + 1e-16
    return (out / sums.repeat_interleave(counts, dim=0))[order.argsort()]


SPELLINGS = {"by index": by_index, "not in place": not_in_place, "by segment": by_segment}
over_spellings = pytest.mark.parametrize("spelling", SPELLINGS)


def along_edges(x: Tensor, edges: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, spelling: str) -> Tensor:
    source, to = edges
    q, k, v = (x @ w for w in (w_q, w_k, w_v))
    scores = (q[to] * k[source]).sum(-1) * w_q.shape[1] ** -0.5
    p = SPELLINGS[spelling](scores, to, len(x))
    return torch.zeros_like(v).index_add(0, to, p[:, None] * v[source])


@over_spellings
@pytest.mark.parametrize("rules", ["ah", "ah+ln", "exact"])
def test_ah_rule_along_edges_equals_the_printed_formula(spelling: str, rules: str) -> None:
    x, w_q, w_k, upper = normal(SIZE, 3), normal(3, 3), normal(3, 3), normal(SIZE, 3)
    one = torch.eye(3, dtype=torch.float64)
    (ours,) = propagated(
        conserva.rules(rules), lambda x: along_edges(x, EDGES, w_q, w_k, one, spelling), x, upper=upper
    )
    expected = torch.zeros_like(x)
    for node in range(SIZE):
        seen = [a for a, b in EDGES.T.tolist() if b == node]
        p = torch.softmax(torch.stack([(x[node] @ w_q) @ (x[a] @ w_k) / 3**0.5 for a in seen]), 0)
        for a, share in zip(seen, p, strict=True):
            expected[a] += x[a] * share * upper[node]
    torch.testing.assert_close(ours, expected, **EXACT)


@over_spellings
@pytest.mark.parametrize("rules", RULE_SETS)
def test_attention_along_all_edges_is_dense_attention(spelling: str, rules: str) -> None:
    x, weights, upper = normal(SIZE, 4), [normal(4, 4) for _ in range(3)], normal(SIZE, 4)
    all_pairs = torch.cartesian_prod(torch.arange(SIZE), torch.arange(SIZE)).T
    if rules == "gim":  # its temperature is defined for torch's softmax only
        with pytest.raises(conserva.Error, match="the model writes one out"):
            propagated(conserva.rules(rules), lambda x: along_edges(x, all_pairs, *weights, spelling), x, upper=upper)
        return
    dense, sparse = (
        propagated(conserva.rules(rules), function, x, upper=upper)[0]
        for function in (
            lambda x: attention_head(x, *weights, "matmul"),
            lambda x: along_edges(x, all_pairs, *weights, spelling),
        )
    )
    torch.testing.assert_close(sparse, dense, **EXACT)


MULTIPLES = {
    "exponentials": lambda e, s: (e.mul_(2), s),
    "sums": lambda e, s: (e, s.mul_(2)),
    "other exponentials": lambda e, s: (e * 1, s),
}


@pytest.mark.parametrize("multiple", MULTIPLES)
@pytest.mark.parametrize("rules", ["ah", "ah+ln", "exact"])
def test_a_multiple_of_a_softmax_is_attention_too(multiple: str, rules: str) -> None:
    with conserva.rules(rules) as context:
        out = (torch.randn(4, requires_grad=True) * 1).exp()
        sums = torch.zeros(2).scatter_add(0, torch.tensor([0, 0, 1, 1]), out)[torch.tensor([0, 0, 1, 1])]
        out, sums = MULTIPLES[multiple](out, sums)
        quotient = out / sums
    assert not quotient.requires_grad
    assert context.coverage.count("attention") == 1


def test_exponentials_by_other_sums_are_refused() -> None:
    to = torch.tensor([0, 0, 1, 1])
    with conserva.rules("ah"):
        a, b = ((torch.randn(4, requires_grad=True) * 1).exp() for _ in range(2))
        sums = torch.zeros(2).scatter_add(0, to, b)[to]
        with pytest.raises(conserva.Error, match="its probabilities are never computed"):
            torch.div(a, sums)
