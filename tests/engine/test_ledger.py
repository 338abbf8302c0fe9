"""The ledger: every constant is recorded once, under the right name, for the right sample."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

import conserva
from conserva.engine.autograd_graph import nodes_behind
from conserva.engine.constants import Constant, Constants
from conserva.engine.context import Propagation
from conserva.engine.passes import Relevance
from tiny import HandWritten, bert, shake, tokens


class Skeleton(nn.Module):
    """Live tokens, one attention, and a body to try things in."""

    def __init__(self, body, width: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.bias = nn.Parameter(torch.randn(width))
        self.places = nn.Parameter(torch.randn(1, 9, width))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.linear = nn.Linear(width, width)
        self.table = nn.Embedding(9, width)
        self.register_buffer("wave", torch.randn(9, width))
        self.body = body

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        x = self.words(ids)
        x = x + F.scaled_dot_product_attention(x, x, x)
        out = self.body(self, x).sum((1, 2))[:, None]
        return out if weights is None else out * weights[:, None]


def explained(body, samples: int = 3, length: int = 4) -> Relevance:
    torch.manual_seed(0)
    model = Skeleton(body).double().eval()
    return conserva.relevance(model, torch.randint(0, 50, (samples, length)), 0, rules="exact")


def in_place(x: Tensor, change) -> Tensor:
    x = x.clone()
    change(x)
    return x


def assign(x: Tensor, value) -> None:
    x[:, 0] = value


CONSTANTS = {
    "bias of a linear layer": (lambda m, x: m.linear(x), "biases", "linear"),
    "vector added": (lambda m, x: x + m.bias, "biases", ""),
    "vector added first": (lambda m, x: m.bias + x, "biases", ""),
    "vector subtracted": (lambda m, x: x - m.bias, "biases", ""),
    "subtracted from a vector": (lambda m, x: m.bias - x, "biases", ""),
    "number added": (lambda m, x: x + 2.5, "biases", ""),
    "number subtracted from": (lambda m, x: 2.5 - x, "biases", ""),
    "vector added in place": (lambda m, x: in_place(x, lambda y: y.add_(m.bias)), "biases", ""),
    "vector subtracted in place": (lambda m, x: in_place(x, lambda y: y.sub_(m.bias)), "biases", ""),
    "vector added to part in place": (lambda m, x: in_place(x, lambda y: y[:, 1:].add_(m.bias)), "biases", ""),
    "to a linear layer's output in place": (lambda m, x: m.linear(x).add_(m.bias).add_(m.bias), "biases", ""),
    "a linear layer's output changed in place": (lambda m, x: m.linear(x).add_(x).mul_(2), "biases", "linear"),
    "with alpha": (lambda m, x: torch.add(x, m.bias, alpha=3), "biases", ""),
    "with alpha, subtracted from": (lambda m, x: torch.rsub(m.bias.expand_as(x), x, alpha=3), "biases", ""),
    "with alpha, reversed": (lambda m, x: torch.rsub(x, m.bias, alpha=3), "biases", ""),
    "addcmul": (lambda m, x: torch.addcmul(x, m.bias, m.bias), "biases", ""),
    "lerp": (lambda m, x: torch.lerp(x, m.bias.expand_as(x), 0.3), "biases", ""),
    "addmm": (lambda m, x: torch.addmm(m.bias, x.view(-1, 6), m.linear.weight).view_as(x), "biases", ""),
    "bias of a norm": (lambda m, x: F.layer_norm(x, (6,), m.bias, m.bias), "biases", ""),
    "bias of a convolution": (
        lambda m, x: F.conv1d(x.mT, m.linear.weight[:, :, None], m.bias).mT, "biases", ""),
    "batch norm": (lambda m, x: F.batch_norm(x.mT, m.wave[0], m.wave[1].abs(), m.bias, m.bias).mT, "biases", ""),
    "group norm": (lambda m, x: F.group_norm(x.mT, 2, m.bias, m.bias).mT, "biases", ""),
    "positions as a parameter": (lambda m, x: x + m.places[:, : x.shape[1]], "positions", ""),
    "positions from a table": (lambda m, x: x + m.table(torch.arange(x.shape[1])), "positions", "table"),
    "positions from a buffer": (lambda m, x: x + m.wave[: x.shape[1]], "positions", ""),
    "class token": (lambda m, x: torch.cat([m.token.expand(len(x), -1, -1), x], 1), "positions", ""),
    "stacked": (lambda m, x: torch.stack([x, m.token.expand_as(x)]).sum(0), "positions", ""),
    "where": (lambda m, x: torch.where(x > 0, x, m.bias), "biases", ""),
    "where, method": (lambda m, x: x.where(x > 0, m.bias), "biases", ""),
    "masked fill": (lambda m, x: x.masked_fill(x > 0, 3.0), "biases", ""),
    "masked fill in place": (lambda m, x: in_place(x, lambda y: y.masked_fill_(x > 0, 3.0)), "biases", ""),
    "assigned": (lambda m, x: in_place(x, lambda y: assign(y, m.bias)), "positions", ""),
    "assigned into constants": (
        lambda m, x: in_place(m.wave[:4].expand_as(x), lambda y: assign(y, x[:, 1])), "positions", ""),
    "added into constants": (lambda m, x: in_place(m.wave[:4].expand_as(x), lambda y: y.add_(x)), "positions", ""),
}  # fmt: skip


@pytest.fixture(params=["captured", "by hooks", "one sample"])
def samples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of samples, for each of the ways in which the gradients at constants are obtained."""
    if request.param == "by hooks":
        monkeypatch.setattr("conserva.engine.constants.CAPTURED_BYTES", {})
    return 1 if request.param == "one sample" else 3


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_way_a_constant_joins_is_booked(name: str, samples: int) -> None:
    body, entry, owner = CONSTANTS[name]
    result = explained(body, samples)
    assert result.ledger.gap.abs().max() < 1e-10
    assert getattr(result.ledger, entry).abs().max() > 1e-3
    if owner:
        assert result.modules[owner].abs().max() > 1e-3


@pytest.mark.parametrize("rules", ["exact", "ah+ln", "attnlrp", "gi"])
def test_all_ways_to_the_gradients_at_constants_agree(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = bert().double(), tokens(batch=2)
    captured = conserva.relevance(model, ids, 1, rules=rules)
    singles = [conserva.relevance(model, {k: v[i : i + 1] for k, v in ids.items()}, 1, rules=rules) for i in range(2)]
    monkeypatch.setattr("conserva.engine.constants.CAPTURED_BYTES", {})
    by_hooks = conserva.relevance(model, ids, 1, rules=rules)
    for name, share in captured.modules.items():
        torch.testing.assert_close(share, by_hooks.modules[name])
        torch.testing.assert_close(share, torch.cat([single.modules[name] for single in singles]))
    assert captured.modules.keys() == by_hooks.modules.keys() == singles[0].modules.keys()


def test_two_targets_of_one_forward_pass_have_ledgers_of_their_own(samples: int) -> None:
    model, ids = bert().double(), tokens(batch=samples)
    both = conserva.relevance(model, ids, targets=[0, 1], rules="exact")
    for target, result in enumerate(both):
        alone = conserva.relevance(model, ids, target, rules="exact")
        torch.testing.assert_close(result.ledger.biases, alone.ledger.biases)
        assert result.ledger.gap.abs().max() < 1e-10


class Plus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 2.5


def test_a_number_is_booked_on_the_module_at_work_not_on_one_that_lacks_a_bias() -> None:
    model = Skeleton(lambda m, x: m.plus(m.linear(x))).double().eval()
    model.linear, model.plus = nn.Linear(6, 6, bias=False).double(), Plus()
    result = conserva.relevance(model, torch.randint(0, 50, (3, 4)), 0, rules="exact")
    assert list(result.modules) == ["plus"]


def test_hand_computed_books() -> None:
    """One token, attention is the identity: output = 2 * (2 * w + b) + p, every share known."""
    model = Skeleton(lambda m, x: 2 * (x + m.bias) + m.wave[:1], width=1).double().eval()
    result = conserva.relevance(model, torch.tensor([[7]]), 0, rules="exact")
    w, b, p = model.words.weight[7].item(), model.bias.item(), model.wave[0].item()
    assert result.output.item() == pytest.approx(4 * w + 2 * b + p, abs=1e-12)
    assert result.ledger.inputs.item() == pytest.approx(4 * w, abs=1e-12)
    assert result.ledger.biases.item() == pytest.approx(2 * b, abs=1e-12)
    assert result.ledger.positions.item() == pytest.approx(p, abs=1e-12)


def test_modules_add_up_to_positions_and_biases() -> None:
    result = conserva.relevance(bert().double(), tokens(), 1, rules="exact")
    ledger, modules = result.ledger, result.modules
    torch.testing.assert_close(sum(modules.values()), ledger.positions + ledger.biases)
    assert "bert.embeddings.position_embeddings" in modules
    assert "bert.embeddings.token_type_embeddings" in modules
    assert "bert.encoder.layer.0.output.dense" in modules
    positions = ("bert.embeddings.position_embeddings", "bert.embeddings.token_type_embeddings")
    torch.testing.assert_close(ledger.positions, sum(modules[name] for name in positions))


def test_ledger_sums_to_the_output_under_every_rule_set() -> None:
    for rules in ("gi", "ah", "ln", "ah+ln", "exact", "attnlrp"):
        result = conserva.relevance(bert(), tokens(), 1, rules=rules)
        torch.testing.assert_close(result.ledger.output, result.output)


def test_no_ledger_if_not_wanted() -> None:
    model = bert()
    with_books, without = (conserva.relevance(model, tokens(), 1, ledger=keep) for keep in (True, False))
    assert without.ledger is None
    assert torch.equal(with_books.scores(), without.scores())


def scatter_by_expert(model: Skeleton, x: Tensor) -> Tensor:
    """Rows go to experts in an order that depends on the data, as in a mixture of experts with biases."""
    rows = x.reshape(-1, x.shape[-1])
    order = rows.detach()[:, 0].argsort()
    mixed = model.linear(rows[order])
    return torch.zeros_like(rows).index_add(0, order, mixed).view_as(x)


def as_many_rows_as_samples(model: Skeleton, x: Tensor) -> Tensor:
    """An expert gets just as many rows as there are samples, each from somewhere."""
    rows = x.reshape(-1, x.shape[-1])
    order = rows.detach()[:, 0].argsort()
    mixed = [model.linear(rows[part]) for part in order.split(len(x))]
    return torch.zeros_like(rows).index_add(0, order, torch.cat(mixed)).view_as(x)


def sent_by_einsum(model: Skeleton, x: Tensor) -> Tensor:
    """Rows are sent to the places of experts, and back, by products with a constant."""
    rows = x.reshape(-1, x.shape[-1])
    order = rows.detach()[:, 0].argsort()
    send = torch.eye(len(rows), dtype=x.dtype)[order].view(len(x), -1, len(rows))
    sent = model.linear(torch.einsum("ecn,nd->ecd", send, rows))
    return torch.einsum("ecn,ecd->nd", send, sent).view_as(x)


def sent_by_matmul(model: Skeleton, x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    send = torch.eye(len(rows), dtype=x.dtype)[rows.detach()[:, 0].argsort()]
    return (send.T @ model.linear(send @ rows)).view_as(x)


LAYOUTS = {
    "samples first": lambda m, x: m.linear(x),
    "flattened": lambda m, x: m.linear(x.reshape(-1, 6)).view_as(x),
    "time first": lambda m, x: m.linear(x.transpose(0, 1)).transpose(0, 1),
    "time first, flattened": (
        lambda m, x: m.linear(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, len(x))).transpose(0, 1)),
    "by permute": lambda m, x: m.linear(x.permute(1, 0, 2)).permute(1, 0, 2),
    "shuffled": scatter_by_expert,
    "shuffled, as many as samples": as_many_rows_as_samples,
    "sent by einsum": sent_by_einsum,
    "sent by matmul": sent_by_matmul,
    "picked behind a new axis": lambda m, x: m.linear(
        x.reshape(-1, 6)[None, torch.arange(x.shape[0] * x.shape[1]).flip(0)][0]).flip(0).view_as(x),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("samples", "length"), [(3, 4), (4, 4), (6, 4), (2, 6), (6, 6)])
def test_samples_are_told_apart_wherever_they_lie(layout: str, samples: int, length: int) -> None:
    """Also where the batch is as large as the length or the width, so that shapes alone do not tell."""
    weighted = lambda m, x: LAYOUTS[layout](m, x) * torch.arange(1, length + 1)[None, :, None]  # noqa: E731
    torch.manual_seed(0)
    model = Skeleton(weighted).double().eval()
    with torch.no_grad():
        model.linear.weight.mul_(0.1)
    # A bias that is weighted: its share differs from sample to sample.
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5, 7.0, -1.0]).double()[:samples]
    ids = torch.randint(0, 50, (samples, length))
    together = conserva.relevance(model, {"ids": ids, "weights": weights}, 0, rules="exact").ledger
    assert together.gap.abs().max() < 1e-10
    assert together.biases.abs().min() > 1e-3


def test_masks_and_biases_inside_a_softmax_are_no_entries() -> None:
    """They belong to the attention: eager attention, which shows them, must not differ from the fused call."""

    def eager(model: Skeleton, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) + model.wave[:4, :4]
        scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
        return torch.softmax(scores, -1) @ x

    for rules in ("gi", "attnlrp"):
        torch.manual_seed(0)
        model = Skeleton(eager).double().eval()
        ledger = conserva.relevance(model, torch.randint(0, 50, (2, 4)), 0, rules=rules).ledger
        assert ledger.positions.abs().max() == 0
        assert torch.isfinite(ledger.gap).all()


def test_tied_and_repeated_modules_are_booked_each_time() -> None:
    ledger = explained(lambda m, x: m.linear(m.linear(m.linear(x)))).ledger
    assert ledger.gap.abs().max() < 1e-10


def test_hand_written_model_groups_by_module() -> None:
    result = conserva.relevance(shake(HandWritten().double()), torch.randint(0, 50, (2, 5)), 1, rules="exact")
    assert {"", "qkv", "mix", "up", "down", "out"} <= set(result.modules)


def test_a_bias_in_half_precision_is_summed_in_single() -> None:
    places = 1001  # which bfloat16 rounds to 1000
    shape = torch.Size((1, places, 2))
    entry = Constant(torch.ones(2).bfloat16(), None, None, False, None, 0, 1, shape, 0)
    entry.collect(torch.ones(shape, dtype=torch.bfloat16))
    constants = Constants(1, 0)
    constants.entries.append(entry)
    zero = torch.zeros(1)
    constants.weigh([])
    assert constants.close(zero, zero, 1.0)[0].biases.tolist() == [2.0 * places]


def test_each_bias_goes_to_the_module_that_owns_it() -> None:
    model, inputs = bert().double(), tokens(batch=1)
    modules = conserva.relevance(model, inputs, 1, rules="gi").modules
    model(**inputs).logits[:, 1].sum().backward()
    biased = {
        name: module for name, module in model.named_modules() if isinstance(getattr(module, "bias", None), Tensor)
    }
    assert biased.keys() <= modules.keys()
    for name, module in biased.items():
        expected = (module.bias * module.bias.grad).sum().reshape(1)
        torch.testing.assert_close(modules[name], expected.detach())


def _closed(entry: Constant, grads: Sequence[Tensor]) -> list[float]:
    """Return the biases of constants with one entry that gradients reach."""
    constants = Constants(entry.samples, 0)
    constants.entries.append(entry)
    for grad in grads:
        entry.collect(grad)
    zero = torch.zeros(entry.samples)
    constants.weigh([])
    return constants.close(zero, zero, 1.0)[0].biases.tolist()


def test_what_reaches_a_constant_in_parts_adds_up() -> None:
    for places in (1, 7, 8):
        shape = torch.Size((2, places, 4))
        entry = Constant(torch.ones(4), None, None, False, None, 0, 2, shape, 0)
        assert _closed(entry, [torch.ones(shape), 2 * torch.ones(shape)]) == [12.0 * places] * 2
        entry.relevance = torch.ones(2)
        assert _closed(entry, [torch.ones(shape)]) == [4.0 * places + 1] * 2


def test_a_constant_along_the_samples_is_each_sample_s_own() -> None:
    entry = Constant(torch.tensor([1.0, 2.0, 3.0]), None, None, False, None, 0, 3, torch.Size((3,)), 0)
    assert _closed(entry, [torch.tensor([1.0, 10.0, 100.0])]) == [1.0, 20.0, 300.0]


def test_a_number_in_half_precision_is_summed_in_single() -> None:
    shape = torch.Size((1, 1001, 1))
    entry = Constant(1.0, None, None, False, None, 0, 1, shape, 0)
    assert _closed(entry, [torch.ones(shape, dtype=torch.bfloat16)]) == [1001.0]


def test_sums_are_let_go_when_they_are_weighed() -> None:
    shape, constants = torch.Size((1, 8, 2)), Constants(1, 0)
    entry = Constant(torch.ones(2), None, None, False, None, 0, 1, shape, 0)
    constants.entries.append(entry)
    entry.collect(torch.ones(shape))
    assert entry.sums is not None
    constants.weigh([])
    assert entry.sums is None


@pytest.mark.parametrize("explain", [conserva.relevance, conserva.audit], ids=["relevance", "audit"])
@pytest.mark.parametrize("samples", [1, 3])
def test_gradients_are_requested_only_at_nodes_behind_the_output(
    explain: Any, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch does not keep nodes of Python functions alive for an edge to them: a request at a freed one may crash."""
    edges: list[tuple[Any, list[Any]]] = []
    original = Propagation.gradient

    def gradient(self: Propagation, output: Tensor, inputs: Any, **how: Any) -> Any:
        nodes = nodes_behind([output])
        edges.extend((one.node, nodes) for one in inputs if isinstance(one, GradientEdge))
        return original(self, output, inputs, **how)

    monkeypatch.setattr(Propagation, "gradient", gradient)
    model = bert(hidden_act="gelu_new")  # several calls that add numbers, of which only the last is in the graph
    explain(model, tokens(batch=samples), 1)
    assert edges
    assert all(node in nodes for node, nodes in edges)
