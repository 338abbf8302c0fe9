"""Bad input: each is refused with what was given, and what to do."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from tiny import Classifier, HandWritten, bert, shake, tokens


def refused(*says: str):
    return pytest.raises(conserva.Error, match="(?s)" + ".*".join(says))


class Bag(nn.Module):
    """Words, a mean, a linear layer: no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(F.layer_norm(self.words(ids), (8,)).mean(1))


def test_no_attention() -> None:
    with refused("Bag has no attention"):
        conserva.relevance(Bag().eval(), torch.tensor([[1, 2]]), 0)


@pytest.mark.parametrize("target", [3, -4, 99])
def test_target_out_of_range(target: int) -> None:
    with refused(f"target={target}", r"\(3,\)"):
        conserva.relevance(bert(), tokens(), target)


def test_unknown_label() -> None:
    with refused("'happy'", "'negative', 'neutral', 'positive'"):
        conserva.relevance(bert(), tokens(), "happy")
    with refused("'happy'", "'negative'"):
        conserva.relevance(bert(), tokens(), "positive - happy")
    with refused("'happy'", "class index"):
        conserva.relevance(shake(HandWritten()), torch.tensor([[1, 2]]), "happy")


@pytest.mark.parametrize("target", [1.5, True, {"a": 1}, [0, 1], lambda output: 3, lambda output: output.logits])
def test_target_of_a_wrong_kind_or_shape(target) -> None:
    with refused("target"):
        conserva.relevance(bert(), tokens(), target)


def test_no_targets() -> None:
    with refused(r"targets=\[\]"):
        conserva.relevance(bert(), tokens(), targets=[])


@pytest.mark.parametrize("module", ["bert.encoder.layer.1.output.dense", "bert.embeddings.LayerNorm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_or_inf_weights_are_traced_to_their_module(module: str, value: float) -> None:
    model = bert()
    with torch.no_grad():
        model.get_submodule(module).weight[0] = value
    with refused("nan or inf", f"'{module}'"):
        conserva.relevance(model, tokens(), 1)


class InfiniteSlope(nn.Module):
    """A finite output with an infinite derivative, in a module of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sqrt(0 * x)


def test_nan_in_the_relevance_is_traced_to_its_place() -> None:
    class Model(HandWritten):
        def __init__(self) -> None:
            super().__init__()
            self.bend = InfiniteSlope()

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + 0 * self.bend(self.words(ids)).sum((1, 2))[:, None]

    model = shake(Model())
    ids = torch.tensor([[1, 2, 3]])
    assert torch.isfinite(model(ids)).all()
    with refused("relevance has nan or inf", "'words#2'"):  # its output goes to the module that bends
        conserva.relevance(model, ids, 1, rules="gi")


def test_half_precision_overflow_says_so() -> None:
    model = bert().half()
    with torch.no_grad():
        model.bert.encoder.layer[0].intermediate.dense.weight.mul_(3e4)
        model.bert.encoder.layer[0].output.dense.weight.mul_(3e4)
    with refused("nan or inf", "bert.encoder.layer.0", "float16 overflows"):
        conserva.relevance(model, tokens(), 1)


def test_an_input_that_does_not_reach_the_output() -> None:
    class Constant(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(torch.zeros_like(ids))

    class Softmaxed(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).softmax(-1)

    ids = torch.tensor([[1, 2, 3]])
    with refused("ids does not reach the output"):
        conserva.relevance(shake(Constant()), ids, 1)
    with refused("'ids' does not reach the output", "softmax"):
        conserva.relevance(shake(Softmaxed()), ids, 1)
    with refused("does not reach"):
        conserva.relevance(bert(), tokens(), lambda output: torch.ones(3))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"input_ids": [1, 2]}, "no tensor"),
        ({}, "no tensor"),
        ("a text", "'a text'"),
        ({"attention_mask": torch.ones(1, 3)}, "'attention_mask'"),
        ({"input_ids": torch.zeros(0, 4, dtype=torch.long)}, r"\(0, 4\)"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, r"\(2, 0\)"),
        ({"input_ids": torch.ones(2, 4).long(), "decoder_input_ids": torch.ones(3, 4).long()}, "different batch sizes"),
    ],
)
def test_wrong_inputs(inputs, says: str) -> None:
    with refused(says):
        conserva.relevance(bert(), inputs, 1)


def test_wrong_model() -> None:
    with refused("is not a torch.nn.Module"):
        conserva.relevance(lambda x: x, torch.ones(1, 2), 0)


@pytest.mark.parametrize("place", ["bert.encoder.layer.7", "nothing.like.it"])
def test_unknown_place(place: str) -> None:
    with refused(f"at='{place}'", "Some of its modules"):
        conserva.relevance(bert(), tokens(), 1, at=place)


def test_a_place_that_is_no_tensor() -> None:
    with refused("at='bert.encoder'", "not a floating-point tensor"):
        conserva.relevance(bert(), tokens(), 1, at="bert.encoder")


def test_embeddings_of_a_model_that_reports_none() -> None:
    class Plain(HandWritten):
        def forward(self, ids: Tensor, output_hidden_states: bool = False) -> Tensor:
            return super().forward(ids)

    with refused("at='embeddings'", "name of the embedding module"):
        conserva.relevance(shake(Plain()), torch.tensor([[1, 2]]), 0, at="embeddings")


def test_a_place_that_was_not_asked_for() -> None:
    with refused("'words'", "'input_ids'"):
        conserva.relevance(bert(), tokens(), 1).scores("words")


def test_training_mode_with_dropout() -> None:
    model = bert()
    model.train()
    with refused(r"model.eval\(\)"):
        conserva.relevance(model, tokens(), 1)
    encoder = shake(Classifier())
    encoder.train()
    with refused(r"model.eval\(\)"):
        conserva.relevance(encoder, torch.tensor([[1, 2]]), 1)
    with refused(r"model.eval\(\)"), conserva.rules("ah"):
        x = torch.randn(1, 1, 4, 8, requires_grad=True)
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
    with refused(r"model.eval\(\)"), conserva.rules("ah"):
        nn.BatchNorm1d(8)(torch.randn(4, 8, requires_grad=True))
