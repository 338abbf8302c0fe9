"""Graphormer: its formulas by loops, the paper's methods by hand, nodes taken away, a Hugging Face model's life."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

import conserva
from conserva.attribution import find
from conserva.engine.passes import Relevance
from conserva.engine.rules import RuleSet, rule_set
from conserva.models.graphormer import Graphormer, GraphormerConfig
from conserva.tasks.fingerprint import fingerprint
from small_graphs import FAR, GRAPHS, arrays, padded, small

EXACT = {"rtol": 1e-9, "atol": 1e-9}
TARGETS = [0, 2, 1]
NODES = {"categories": {"node_values": 9}, "numbers": {"node_features": 3}}
EDGES = {"edges": {"edge_values": 5}, "no edges": {}}
BIASES = ("value.bias", "output.bias", "up.bias", "down.bias", "norm.bias", "classifier.bias")
Row = list[float]

over_norms = pytest.mark.parametrize("pre_norm", [True, False], ids=["pre-LN", "post-LN"])
over_nodes = pytest.mark.parametrize("nodes", NODES)
over_edges = pytest.mark.parametrize("edges", EDGES)


def explained(model: Graphormer, inputs: dict[str, Tensor], rules: object, at: object = "tokens") -> Relevance:
    return conserva.relevance(model, inputs, TARGETS[: len(inputs["nodes"])], rules=rules, at=at)


# The model, one number at a time.


def dense(x: Row, w: dict, name: str) -> Row:
    rows = zip(w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
    return [sum(a * b for a, b in zip(x, row, strict=True)) + bias for row, bias in rows]


def norm(x: Row, eps: float, w: dict, name: str) -> Row:
    mean = sum(x) / len(x)
    below = math.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + eps)
    return [(a - mean) / below * b + c for a, b, c in zip(x, w[f"{name}.weight"], w[f"{name}.bias"], strict=True)]


def plus(*rows: Row) -> Row:
    return [sum(one) for one in zip(*rows, strict=True)]


def graph_bias(w: dict, config: GraphormerConfig, graph: dict[str, list], head: int, i: int, j: int) -> float:
    """What is added to the score of place i for place j; place 0 is the virtual node."""
    if i == 0 or j == 0:
        return w["bias.virtual.weight"][0][head]
    bias = w["bias.distances.weight"][graph["distances"][i - 1][j - 1]][head]
    heads, hops = config.num_attention_heads, [one for one in graph["paths"][i - 1][j - 1][: config.max_hops] if one]
    for hop, edge in enumerate(hops if config.edge_values else []):
        column = w["bias.mixing.weight"][hop][head::heads]  # of a matrix of heads x heads, row after row
        bias += sum(a * b for a, b in zip(w["bias.edges.weight"][edge], column, strict=True)) / len(hops)
    return bias


def replica(model: Graphormer, inputs: dict[str, Tensor]) -> Row:
    """The logits of one graph without pads."""
    config, w = model.config, {name: value.tolist() for name, value in model.state_dict().items()}
    graph = {name: value[0].tolist() for name, value in inputs.items()}
    table, eps = w["tokens.features.weight"], config.layer_norm_eps
    x = [w["tokens.virtual.weight"][0]]
    for one, degree in zip(graph["nodes"], graph["degrees"], strict=True):
        features = [table[k] for k in one] if config.node_values else [dense(one, w, "tokens.features")]
        x.append(plus(*features, w["tokens.degrees.weight"][min(degree, config.max_degree)]))
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    for number in range(config.num_hidden_layers):
        here = {name.rpartition(f"blocks.{number}.")[2]: value for name, value in w.items()}
        seen = [norm(row, eps, here, "attention_norm") if config.pre_norm else row for row in x]
        q, k, v = ([dense(row, here, name) for row in seen] for name in ("query", "key", "value"))
        context = [[0.0] * len(x[0]) for _ in x]
        for head in range(heads):
            dims = range(head * width, (head + 1) * width)
            for i in range(len(x)):
                scores = [sum(q[i][d] * key[d] for d in dims) / math.sqrt(width) for key in k]
                powers = [math.exp(s + graph_bias(w, config, graph, head, i, j)) for j, s in enumerate(scores)]
                for d in dims:
                    context[i][d] = sum(p / sum(powers) * value[d] for p, value in zip(powers, v, strict=True))
        x = [plus(row, dense(one, here, "output")) for row, one in zip(x, context, strict=True)]
        x = x if config.pre_norm else [norm(row, eps, here, "attention_norm") for row in x]
        hidden = [dense(norm(row, eps, here, "ffn_norm") if config.pre_norm else row, here, "up") for row in x]
        active = [[a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in row] for row in hidden]
        x = [plus(row, dense(one, here, "down")) for row, one in zip(x, active, strict=True)]
        x = x if config.pre_norm else [norm(row, eps, here, "ffn_norm") for row in x]
    last = norm(x[0], eps, w, "norm") if config.pre_norm else x[0]
    return dense(last, w, "classifier")


@over_edges
@over_nodes
@over_norms
def test_the_model_equals_its_formulas(pre_norm: bool, nodes: str, edges: str) -> None:
    model = small(pre_norm=pre_norm, layer_norm_eps=0.01, **NODES[nodes], **EDGES[edges])
    ours = model(**padded(nodes == "numbers")).logits.detach()
    for row, graph in enumerate(GRAPHS):
        theirs = replica(model, arrays(graph, nodes == "numbers"))
        torch.testing.assert_close(ours[row], torch.tensor(theirs, dtype=torch.float64), **EXACT)


@over_nodes
@over_norms
def test_masked_nodes_are_deleted_nodes_up_to_the_empty_graph(pre_norm: bool, nodes: str) -> None:
    model = small(pre_norm=pre_norm, **NODES[nodes], **EDGES["edges"])
    for graph in GRAPHS:
        inputs = arrays(graph, nodes == "numbers")
        nodes_there = torch.cat([torch.zeros(1, graph[0]), torch.rand(4, graph[0]), torch.ones(1, graph[0])]) > 0.5
        masks = F.pad(nodes_there, (1, 0), value=True)
        together = model(**{**inputs, "attention_mask": masks}).logits  # the arrays of one graph, for all masks
        assert torch.isfinite(together).all()
        assert (together[0] - together[-1]).abs().max() > 1e-3
        for mask, found in zip(nodes_there, together, strict=True):
            left = {name: inputs[name][:, mask] for name in ("nodes", "degrees")}
            left.update({name: inputs[name][:, mask][:, :, mask] for name in ("distances", "paths")})
            torch.testing.assert_close(found, model(**left).logits[0], rtol=0, atol=1e-12)
        empty = explained(model, {**inputs, "attention_mask": masks[:1]}, "exact").scores()
        assert empty.ne(0).tolist() == [[True] + [False] * graph[0]]


@pytest.mark.parametrize("rules", ["gi", "ah", "ln", "ah+ln", "exact", "attnlrp"])
@over_nodes
def test_a_batch_equals_its_graphs_and_pads_do_not_matter(nodes: str, rules: str) -> None:
    model, numbers = small(**NODES[nodes], **EDGES["edges"]), nodes == "numbers"
    batch, other = (explained(model, padded(numbers, filled_with=filling), rules) for filling in (0, 3))
    assert torch.equal(batch.output, other.output)
    assert torch.equal(batch.values["tokens"], other.values["tokens"])
    for row, graph in enumerate(GRAPHS):
        places, inputs = graph[0] + 1, arrays(graph, numbers)
        single = conserva.relevance(model, inputs, TARGETS[row], rules=rules, at="tokens")
        torch.testing.assert_close(batch.output[row], single.output[0], **EXACT)
        torch.testing.assert_close(batch.values["tokens"][row, :places], single.values["tokens"][0], **EXACT)
        assert (batch.values["tokens"][row, :places].abs().sum(-1) > 0).all()
        assert (batch.values["tokens"][row, places:] == 0).all()
        del inputs["attention_mask"]
        torch.testing.assert_close(model(**inputs).logits[0], batch.logits[row], **EXACT)


def test_parts_without_a_path_have_a_bias_of_their_own() -> None:
    model, inputs = small(**NODES["numbers"]), padded(True)
    before = model(**inputs).logits
    model.bias.distances.weight.data[FAR + 1] += 1
    assert ((model(**inputs).logits - before).abs().amax(1) > 1e-6).tolist() == [False, True, False]


# The four methods of the paper, by detaching.


def detached(
    model: Graphormer, inputs: dict[str, Tensor], heads: bool, norms: bool, gate: bool = False
) -> tuple[Tensor, Tensor]:
    """R = x * df/dx at the tokens, and the sum of b * df/db over all biases; what a rule freezes is detached."""
    config, samples = model.config, len(TARGETS)
    start = model(**inputs, output_hidden_states=True).hidden_states[0].detach().requires_grad_()
    bias = model.bias(inputs["distances"], inputs["paths"]).detach()
    unseen = ~inputs["attention_mask"][:, None, None]

    def normed(x: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
        deviation = torch.sqrt(x.var(-1, correction=0, keepdim=True) + config.layer_norm_eps)
        below = deviation.detach() if norms else deviation
        return (x - x.mean(-1, keepdim=True)) / below * layer.weight + layer.bias

    x = start
    for block in model.blocks:
        seen = normed(x, block.attention_norm) if config.pre_norm else x
        split = (seen @ layer.weight.T + layer.bias for layer in (block.query, block.key, block.value))
        q, k, v = (one.reshape(samples, -1, config.num_attention_heads, 4).transpose(1, 2) for one in split)
        p = torch.softmax((q @ k.transpose(2, 3) / 2 + bias).masked_fill(unseen, -math.inf), -1)
        context = ((p.detach() if heads else p) @ v).transpose(1, 2).flatten(2)
        x = x + context @ block.output.weight.T + block.output.bias
        x = x if config.pre_norm else normed(x, block.attention_norm)
        z = (normed(x, block.ffn_norm) if config.pre_norm else x) @ block.up.weight.T + block.up.bias
        open_ = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        x = x + (z * (open_.detach() if gate else open_)) @ block.down.weight.T + block.down.bias
        x = x if config.pre_norm else normed(x, block.ffn_norm)
    last = normed(x[:, 0], model.norm) if config.pre_norm else x[:, 0]
    logits = last @ model.classifier.weight.T + model.classifier.bias
    biases = [one for name, one in model.named_parameters() if name.endswith(BIASES)]
    grad, *others = torch.autograd.grad(logits[range(samples), TARGETS].sum(), [start, *biases])
    return (start * grad).detach(), sum((b * g).sum() for b, g in zip(biases, others, strict=True)).detach()


@over_edges
@over_norms
@pytest.mark.parametrize("rules", ["gi", "ah", "ln", "ah+ln"])
def test_the_rules_equal_detaching(rules: str, pre_norm: bool, edges: str) -> None:
    model = small(pre_norm=pre_norm, layer_norm_eps=0.01, **NODES["categories"], **EDGES[edges])
    inputs = padded(False)
    theirs, _ = detached(model, inputs, "ah" in rules, "ln" in rules)
    torch.testing.assert_close(explained(model, inputs, rules).values["tokens"], theirs, **EXACT)
    found = find(f"{rules}:at=embeddings").apply(model, tuple(inputs.values()), TARGETS).scores["nodes"]
    torch.testing.assert_close(found, theirs.sum(-1), **EXACT)
    assert theirs.abs().max() > 0.01


# The books.


@pytest.mark.parametrize("rules", [rule_set("exact"), rule_set("ah+ln", activation="ratio")])
@over_edges
@over_nodes
@over_norms
def test_a_logit_is_its_nodes_the_virtual_node_and_the_biases(
    pre_norm: bool, nodes: str, edges: str, rules: RuleSet
) -> None:
    model, inputs = small(pre_norm=pre_norm, **NODES[nodes], **EDGES[edges]), padded(nodes == "numbers")
    found = explained(model, inputs, rules)
    assert found.ledger.gap.abs().max() < 1e-10
    assert (found.ledger.positions == 0).all()
    scores = found.scores()
    torch.testing.assert_close(scores.sum(1) + found.ledger.biases, found.output, rtol=0, atol=1e-10)
    relevance, biases = detached(model, inputs, True, True, gate=True)
    torch.testing.assert_close(found.values["tokens"], relevance, **EXACT)
    torch.testing.assert_close(found.ledger.biases.sum(), biases, **EXACT)
    assert min(one.abs().max() for one in (scores[:, 0], scores[:, 1:], biases)) > 0.01
    # Read at the features, degrees and the virtual node are positions.
    assert explained(model, inputs, rules, "inputs").ledger.gap.abs().max() < 1e-10


@over_norms
def test_every_operation_meets_its_rule(pre_norm: bool) -> None:
    model = small(pre_norm=pre_norm, **NODES["categories"], **EDGES["edges"])
    met = {(one.module, one.kind, one.rule) for one in explained(model, padded(False), "exact").coverage}
    expected = {("classifier", "linear", "zero")} | ({("norm", "norm", "freeze")} if pre_norm else set())
    for block in ("blocks.0", "blocks.1"):
        expected |= {(block, "attention", "freeze"), (block, "activation", "ratio")}
        expected |= {(f"{block}.{name}", "norm", "freeze") for name in ("attention_norm", "ffn_norm")}
        layers = ("query", "key", "value", "output", "up", "down")
        expected |= {(f"{block}.{name}", "linear", "zero") for name in layers}
    assert met == expected


@over_norms
def test_without_biases_only_frozen_heads_norms_and_gates_conserve(pre_norm: bool) -> None:
    model = small(pre_norm=pre_norm, layer_norm_eps=1e-12, **NODES["numbers"])
    for name, one in model.named_parameters():
        one.data.mul_(not name.endswith(BIASES))
    found = {rules: explained(model, padded(True), rules) for rules in ("gi", "ah", "ah+ln", "exact")}
    lost = {rules: (one.output - one.scores().sum(1)).abs() for rules, one in found.items()}
    assert lost["exact"].max() < 1e-10
    assert 1e-4 < lost["ah+ln"].max() < lost["ah"].max()  # the curvature of GELU, and that of norms
    assert found["exact"].output.abs().min() > 0.01
    if not pre_norm:  # Proposition 2: all relevance passes the first norm
        assert found["ah"].scores().sum(1).abs().max() < 1e-9
        assert found["ah"].scores().abs().sum() > 0.01


def test_proposition_2_makes_the_sum_of_gi_what_the_blocks_wrote_negated() -> None:
    # Every norm passes relevance that sums to 0, the last one too: of x + F(LN(x)) just x is left, the sum without F.
    model = small(layer_norm_eps=1e-12, **NODES["numbers"])
    found = explained(model, padded(True), "gi", ["tokens", "blocks.*.output", "blocks.*.down"])
    sums = {name: one.flatten(1).sum(1) for name, one in found.values.items()}
    assert len(sums) == 5
    torch.testing.assert_close(sums.pop("tokens"), -torch.stack(list(sums.values())).sum(0), **EXACT)
    assert found.scores("tokens").sum(1).abs().min() > 0.01


# A Hugging Face model.


@over_nodes
def test_it_is_saved_and_loaded(nodes: str, tmp_path: Path) -> None:
    model = small(**NODES[nodes], **EDGES["edges"]).float()
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert isinstance(again, Graphormer)
    assert fingerprint(again) == fingerprint(model)
    assert again.config.label2id == {"a": 0, "b": 1, "c": 2}
    assert again.get_input_embeddings() is again.tokens.features
    inputs = padded(nodes == "numbers")
    inputs["nodes"] = inputs["nodes"].to(torch.float32 if nodes == "numbers" else torch.long)
    ours, theirs = (one(**inputs, output_hidden_states=True) for one in (model, again))
    assert torch.equal(ours.logits, theirs.logits)
    assert [tuple(one.shape) for one in ours.hidden_states] == [(3, 8, 12), (3, 8, 12), (3, 1, 12)]
    assert model(**inputs).hidden_states is None


def test_it_starts_as_the_first_release() -> None:
    model = Graphormer(GraphormerConfig(num_hidden_layers=4, node_values=500, edge_values=300, num_labels=40))
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert (module.bias == 0).all()
            assert module.weight.std().item() == pytest.approx(0.01, rel=0.1)
        elif isinstance(module, torch.nn.Embedding) and module.weight.numel() > 300:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.15)
    assert not torch.cat([model.tokens.features.weight[0], model.bias.edges.weight[0]]).any()


@over_nodes
def test_every_parameter_is_trained(nodes: str) -> None:
    model = small(**NODES[nodes], **EDGES["edges"])
    model.train()(**padded(nodes == "numbers")).logits.square().sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is None or not one.grad.any()] == []
    assert (model.bias.edges.weight.grad[0] == 0).all()


@pytest.mark.parametrize("place", ["hidden", "attention"])
def test_dropout_is_for_training_alone(place: str) -> None:
    chosen = {"hidden_dropout_prob": 0.0, "attention_dropout_prob": 0.0, f"{place}_dropout_prob": 0.3}
    model, inputs = small(**NODES["numbers"], **chosen), padded(True)
    expected = model(**inputs).logits
    assert not torch.allclose(model.train()(**inputs).logits, expected)
    still = small(**NODES["numbers"], **{**chosen, f"{place}_dropout_prob": 0.0}).train()
    torch.testing.assert_close(still(**inputs).logits, expected, **EXACT)


# What is refused.


@pytest.mark.parametrize("changes", [{}, {"node_values": 9, "node_features": 3}])
def test_nodes_have_either_categories_or_numbers(changes: dict[str, int]) -> None:
    with pytest.raises(conserva.Error, match=r"node_values=.* and node_features=.*: give one of the two"):
        small(**changes)
    with pytest.raises(conserva.Error, match="hidden_size=13 is not a multiple of num_attention_heads=3"):
        small(hidden_size=13, node_values=9)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes", 9, r"nodes has 9: values must be from 0 to 8"),
        ("degrees", -1, r"degrees has -1: values must be from 0 to 1"),
        ("distances", FAR + 2, r"distances has 5: values must be from 0 to 4 \(max_distance \+ 1"),
        ("paths", 5, r"paths has 5: values must be from 0 to 4"),
    ],
)
def test_ids_that_no_table_has_are_refused(name: str, value: int, message: str) -> None:
    model, inputs = small(**NODES["categories"], **EDGES["edges"]), padded(False)
    inputs[name][0, 0] = value
    with pytest.raises(conserva.Error, match=message):
        model(**inputs)
    with pytest.raises(conserva.Error, match=r"nodes is torch.float32: give ids"):
        model(**{**padded(False), "nodes": torch.ones(3, 7, 3)})
    with pytest.raises(conserva.Error, match="paths=None"):
        model(**{**padded(False), "paths": None})
