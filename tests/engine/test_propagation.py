"""The context: reversible, nested, in threads, and on two models at once."""

import gc
import threading
import weakref
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from conserva.engine.context import current
from conserva.engine.rules import RULE_SETS, RULES, rule_set
from gradient_state import state
from tiny import HandWritten, bert, llama, shake, tokens

TOUCHABLE = (F.softmax, F.layer_norm, F.linear, torch.matmul, nn.Dropout.forward, nn.Module.__call__, torch.rsqrt)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(rules: str, fails: bool) -> None:
    model, inputs = bert(), tokens()
    functions, before, output = [id(f) for f in TOUCHABLE], state(model), model(**inputs).logits

    class Stop(Exception):  # noqa: N818
        pass

    with suppress(Stop), conserva.rules(rules):
        model(**inputs)
        if fails:
            raise Stop
    if fails:
        with pytest.raises(Stop):
            conserva.relevance(model, inputs, _stop(Stop), rules=rules)
        with pytest.raises(conserva.Error):
            conserva.relevance(model, inputs, 99, rules=rules, at="bert.encoder.layer.*")
    else:
        conserva.relevance(model, inputs, 1, rules=rules, at=["inputs", "bert.encoder.layer.*"])
    assert torch.equal(model(**inputs).logits, output)
    assert state(model) == before
    assert [id(f) for f in TOUCHABLE] == functions
    assert torch.overrides._get_current_function_mode_stack() == []


def _stop(kind: type[Exception]):
    def target(output: object) -> torch.Tensor:
        raise kind

    return target


def test_memory_is_given_back() -> None:
    model, inputs = bert(), tokens()
    result = conserva.relevance(model, inputs, 1, rules="exact")
    seen = weakref.ref(result.values["input_ids"])
    del result
    gc.collect()
    assert seen() is None
    for _ in range(3):
        conserva.relevance(model, inputs, 1, rules="exact")
    gc.collect()
    before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    for _ in range(3):
        conserva.relevance(model, inputs, 1, rules="exact")
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) <= before


def test_the_innermost_context_wins() -> None:
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def slope(*names: str) -> torch.Tensor:
        contexts = [conserva.rules(name) for name in names] + [nullcontext()] * (3 - len(names))
        with contexts[0], contexts[1], contexts[2]:
            y = F.gelu(F.layer_norm(x, (6,)))[0]
        return torch.autograd.grad(y, x)[0]

    assert torch.equal(slope("exact", "gi"), slope("gi"))
    assert torch.equal(slope("gi", "exact"), slope("exact"))
    assert torch.equal(slope("gi", "exact", "ln"), slope("ln"))
    assert not torch.equal(slope("ln"), slope("exact"))
    outer = conserva.rules("exact")
    with outer:
        with conserva.rules("gi"), outer, suppress(ZeroDivisionError):
            1 / 0  # noqa: B018 - leaves by an exception
        y = F.gelu(F.layer_norm(x, (6,)))[0]
    assert torch.equal(torch.autograd.grad(y, x)[0], slope("exact"))


def test_contexts_that_do_not_end_in_the_reverse_order_are_refused_and_leave_nothing_behind() -> None:
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def slope() -> torch.Tensor:
        return torch.autograd.grad(F.gelu(F.layer_norm(x, (6,)))[0], x)[0]

    def block(rules: str):
        with conserva.rules(rules):
            yield

    plain = slope()
    with conserva.rules("exact"):
        exact = slope()
    first, second, third = block("ln"), block("exact"), block("gi")
    for each in (first, second, third):
        next(each)
    with pytest.raises(conserva.Error, match="ended while one that was opened inside it is still open"):
        next(first)
    with pytest.raises(StopIteration):
        next(third)
    assert torch.equal(slope(), exact)  # of the second, which is open
    with pytest.raises(StopIteration):
        next(second)
    assert torch.overrides._get_current_function_mode_stack() == []
    assert current() is None
    assert torch.equal(slope(), plain)
    first, second = block("ln"), block("exact")
    next(first), next(second)
    with pytest.raises(ZeroDivisionError):  # an error of the block is not hidden
        first.throw(ZeroDivisionError)
    second.close()
    assert current() is None


def test_a_block_that_nnsight_runs_after_its_contexts_is_refused() -> None:
    skips = type("ExitTracingException", (Exception,), {"__module__": "nnsight.tracing.tracer"})
    with pytest.raises(conserva.Error, match="write the rules first"), conserva.rules("exact"):
        raise skips
    assert current() is None
    other = type("ExitTracingException", (Exception,), {"__module__": "elsewhere"})
    with pytest.raises(other), conserva.rules("exact"):
        raise other


def test_two_threads_with_two_rule_sets_on_one_model_do_not_disturb_each_other() -> None:
    model, inputs = bert(), tokens()
    places = ["inputs", "bert.encoder.layer.*"]
    expected = {r: conserva.relevance(model, inputs, 1, rules=r, at=places).values for r in ("gi", "exact", "ah+ln")}
    wrong: list[str] = []
    barrier = threading.Barrier(3)

    def work(rules: str) -> None:
        barrier.wait()
        for _ in range(12):
            values = conserva.relevance(model, inputs, 1, rules=rules, at=places).values
            if list(values) != list(expected[rules]) or any(
                not torch.equal(values[place], expected[rules][place]) for place in values
            ):
                wrong.append(rules)

    threads = [threading.Thread(target=work, args=(rules,)) for rules in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_context_does_not_reach_another_thread() -> None:
    x = torch.randn(6, requires_grad=True)
    slopes = []

    def work() -> None:
        slopes.append(torch.autograd.grad(F.gelu(x).sum(), x)[0])

    with conserva.rules("exact"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert torch.equal(*slopes)


def test_two_models_with_two_rule_sets_at_once() -> None:
    first, second, inputs = bert(), llama(), tokens()
    x = first.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    y = second.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    with conserva.rules("ah+ln"):
        a = first(inputs_embeds=x).logits[:, 1].sum()
        with conserva.rules("exact"):
            b = second(inputs_embeds=y).logits[:, 1].sum()
    for model, output, leaf, rules in ((first, a, x, "ah+ln"), (second, b, y, "exact")):
        alone = conserva.relevance(model, {"inputs_embeds": leaf.detach()}, 1, rules=rules)
        ours = leaf * torch.autograd.grad(output, leaf)[0]
        torch.testing.assert_close(ours.detach(), alone.values["inputs_embeds"], rtol=1e-4, atol=1e-6)


def test_parameters_are_constants_inside() -> None:
    model = shake(HandWritten())
    with conserva.rules("gi"):
        output = model(torch.randint(0, 50, (1, 4)))
    assert not output.requires_grad


def test_an_outer_no_grad_or_inference_mode_does_not_matter() -> None:
    model, inputs = bert(), tokens()
    expected = conserva.relevance(model, inputs, 1).scores()
    with torch.no_grad():
        assert torch.equal(conserva.relevance(model, inputs, 1).scores(), expected)
    with torch.inference_mode():
        assert torch.equal(conserva.relevance(model, inputs, 1).scores(), expected)


def test_user_gradients_are_not_touched() -> None:
    model, inputs = bert(), tokens()
    model(**inputs).logits.sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    conserva.relevance(model, inputs, 1, rules="exact")
    assert before
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters() if name in before)


# Rule sets


def test_every_rule_of_every_kind_can_be_composed() -> None:
    x = torch.randn(2, 5, 8, requires_grad=True)
    layer = shake(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True))
    for kind, rules in RULES.items():
        for rule in rules.keys() - ({"refuse"} if kind == "attention" else set()):  # the layer has attention
            with conserva.rules("ah+ln", **{kind: rule}) as context:
                y = layer(x)
            assert getattr(context.rules, kind) is RULES[kind][rule]
            assert torch.isfinite(torch.autograd.grad(y.sum(), x)[0]).all()


def test_composed_rule_sets_have_telling_names() -> None:
    assert rule_set("exact", product="freeze-gate").name == "exact (product=freeze-gate)"
    assert rule_set("gi", gamma=0.1).linear.name == "gamma"
    assert rule_set("gi", epsilon=0.1).linear.name == "epsilon"
    assert rule_set("ah+ln").name == "ah+ln"


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("ah-ln", {}, "'ah-ln'"),
        (7, {}, "7"),
        ("gi", {"attention": "detach"}, "'detach'"),
        ("gi", {"attentoin": "freeze"}, "attentoin"),
        ("gi", {"gamma": -1.0}, "-1.0"),
        ("gi", {"epsilon": float("nan")}, "nan"),
        ("ah", {"activation": "ratio"}, "norm='freeze'"),
    ],
)
def test_a_rule_set_that_is_none_is_refused(base, changes: dict, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.rules(base, **changes)


class AsTheyStand(HandWritten):
    """Hands its parameters through calls that return them as they are."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.contiguous()[:, : ids.shape[1]]
        x = x + torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return self.out(self.norm(x).mean(1)) + self.shift.to(x.dtype)[:4]


@pytest.mark.parametrize("rules", ["ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("build", [bert, HandWritten, AsTheyStand])
def test_frozen_parameters_are_read_as_others_are_and_keep_no_trace(build: type, rules: str) -> None:
    model = shake(build()).double()
    inputs = tokens() if build is bert else tokens()["input_ids"] % 50
    expected = conserva.relevance(model, inputs, 1, rules=rules)
    model.requires_grad_(False)
    found = conserva.relevance(model, inputs, 1, rules=rules)
    assert torch.equal(found.scores(), expected.scores())
    assert torch.equal(found.ledger.biases, expected.ledger.biases)
    assert torch.equal(found.ledger.positions, expected.ledger.positions)
    assert list(found.modules) == list(expected.modules)
    assert not any(name.startswith("conserva") for parameter in model.parameters() for name in parameter.__dict__)


class Filled(nn.Module):
    """A model that lets torch write a mask of its own making into memory that is there already."""

    def __init__(self, made_of: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.made_of = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), made_of

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape)
        if self.made_of:
            torch.add(x if self.made_of == "inputs" else mask, 1.0, out=mask)
            torch.mul(mask, 0.5, out=mask)
        return self.layer(x * mask).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "attnlrp"])
def test_what_is_written_into_memory_given_is_a_constant(rules: str) -> None:
    x = torch.randn(2, 3, 4)
    found, expected = (
        conserva.relevance(Filled(made_of).eval(), x, 1, rules=rules).scores() for made_of in ("ones", "")
    )
    torch.testing.assert_close(found, expected)


def test_torch_lets_no_gradient_into_it() -> None:
    with pytest.raises(RuntimeError, match="out="):
        conserva.relevance(Filled("inputs").eval(), torch.randn(2, 3, 4), 1)
