"""What both callbacks have in common: what they take, what they refuse, what they leave as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import conserva
import tiny_heads
from conserva.integrations.watching import Snapshot, Watching
from gradient_state import state
from tiny_training import INPUTS, TARGETS, drawing, network

TOKENIZER = tiny_heads.tokenizer()


def watching(model: Any = None, **settings: Any) -> Watching:
    given: dict[str, Any] = {"inputs": INPUTS, "target": TARGETS, "tokenizer": TOKENIZER, **settings}
    return Watching(network() if model is None else model, given.pop("inputs"), given.pop("target"), **given)


def begun(model: Any = None, **settings: Any) -> Watching:
    found = watching(model, **settings)
    found._begin(found.task.network, 0, 0.0)
    return found


def directly(model: nn.Module, i: int, method: str = "exact") -> conserva.Explanation:
    return conserva.explain(conserva.Text(model.eval(), TOKENIZER), INPUTS[i], TARGETS[i], method=method)


# What is explained.


def test_explanations_are_those_of_explain_at_every_step() -> None:
    model = network()
    found = begun(model)
    for step in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * step * torch.randn(parameter.shape)
        found._next(step, step / 2)
        for i, one in enumerate(found.history[-1].explanations):
            expected = directly(model, i)
            assert (one.scores, one.output, one.ledger) == (expected.scores, expected.output, expected.ledger)
            assert one.model == f"{expected.model}, step {step}"
            assert one.provenance == {**expected.provenance, "step": step, "epoch": step / 2}
    first, second, third = found.explanations(1)
    assert [one.scores for one in (first, second, third)] == [each.explanations[1].scores for each in found.history]
    expected = conserva.Comparison((second, third)).correlations()[0][1]
    assert found.history[2].correlations[1] == expected
    assert found.history[0].correlations == (None, None)


def test_metrics_and_rows() -> None:
    found = begun()
    found._next(3, 1.0)
    metrics, one = found.history[1].metrics(), found.history[1].explanations[0]
    assert metrics["0/output"] == one.output
    assert metrics["0/probability"] == one.probability
    assert metrics["0/gap_share"] == one.ledger.gap_share
    assert metrics["0/rank_correlation"] == 1.0  # the weights are the same
    assert len(metrics) == 8
    assert "0/rank_correlation" not in found.history[0].metrics()
    parts = found.history[1].tracked
    assert parts.metrics == metrics
    assert parts.table["scores"] == [list(each.scores) for each in found.history[1].explanations]


def test_the_table_has_a_row_for_each_snapshot_and_example() -> None:
    pytest.importorskip("pandas")
    found = begun()
    found._next(3, 1.0)
    table = found.to_pandas()
    assert table[["step", "example"]].values.tolist() == [[0, 0], [0, 1], [3, 0], [3, 1]]
    assert table["scores"].tolist() == [list(one.scores) for each in found.history for one in each.explanations]
    assert table["target"].tolist() == [*TARGETS, *TARGETS]
    assert watching().to_pandas().empty


def test_a_task_another_method_one_input_and_one_target_for_all() -> None:
    model = network().eval()
    task = conserva.Text(model, TOKENIZER)
    assert begun(task, tokenizer=None, method="gi").history[0].explanations[1].scores == directly(model, 1, "gi").scores
    found = begun(task, inputs=INPUTS[0], target="positive", tokenizer=None)
    assert [one.text for one in found.history[0].explanations] == [INPUTS[0]]
    assert [one.target for one in begun(target=0).history[0].explanations] == ["negative", "negative"]
    assert begun(method="rollout").history[0].metrics().keys() == {
        f"{i}/{x}" for i in (0, 1) for x in ("output", "probability")
    }


def test_a_step_is_explained_once_and_another_training_begins_anew() -> None:
    found = begun()
    assert found._next(0, 0.0) is None
    assert isinstance(found._next(1, 0.0), Snapshot)
    assert found._next(1, 0.5) is None
    assert len(found.history) == 2
    found._begin(found.task.network, 0, 0.0)
    assert len(found.history) == 1


# What is left as it was.


@pytest.mark.parametrize("frozen", [False, True])
def test_modes_gradients_and_parameters_are_left(frozen: bool) -> None:
    model = network()
    if frozen:
        model.bert.encoder.layer[0].eval()
    model(**TOKENIZER(INPUTS, padding=True, return_tensors="pt"), labels=torch.tensor([0, 1])).loss.backward()
    before = state(model)
    found = watching(model)
    assert state(model) == before
    found._begin(model, 0, 0.0)
    with torch.inference_mode():  # as during a validation of Lightning
        found._next(1, 0.0)
    assert state(model) == before
    assert model.training
    assert model.bert.encoder.layer[0].training != frozen


def test_random_numbers_are_left() -> None:
    model = drawing(network())
    found = begun(model)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    found._next(1, 0.0)
    assert torch.equal(torch.rand(2), expected)


def test_train_and_eval_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setattr(type(model), "train", lambda self, mode=True: pytest.fail("train() was called"))
    begun(model)


def test_a_forward_of_accelerate_that_casts_is_left_out_of_explanations() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerate.state.AcceleratorState._reset_state()  # of other tests
    model = network()
    prepared = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model)
    accelerate.state.AcceleratorState._reset_state()
    assert prepared is model
    casting = model.forward
    found = begun(model)
    assert model.forward is casting
    del model.forward
    assert found.history[0].explanations[0].output == directly(model, 0).output


# What cannot be explained.


def test_an_example_that_cannot_be_explained_does_not_end_a_training() -> None:
    found = begun()
    words = found.task.network.get_input_embeddings().weight
    with torch.no_grad():
        words[TOKENIZER("dull")["input_ids"][1]] = float("nan")
    with pytest.warns(
        RuntimeWarning, match=r"^relevance: 1 of 2 example\(s\) cannot be .* at step 5; inputs\[1\]: .*nan"
    ):
        snapshot = found._next(5, 1.0)
    assert snapshot.explanations[1] is None
    assert list(snapshot.errors) == [1]
    assert "nan" in snapshot.errors[1]
    assert {name[0] for name in snapshot.metrics()} == {"0"}
    assert len(snapshot.explained) == 1
    assert snapshot.tracked.table["text"] == INPUTS[:1]
    with torch.no_grad():
        words.nan_to_num_()
    found._next(6, 1.0)
    assert len(found.explanations(1)) == 2
    assert found.history[2].correlations[1] is not None  # with the last that could be explained


def test_before_a_training_it_is_an_error() -> None:
    model = network()
    model.classifier.weight.data.fill_(float("nan"))
    found = watching(model)
    with pytest.raises(conserva.Error, match=r"^inputs\[0\] cannot be explained: .*nan") as raised:
        found._begin(model, 0, 0.0)
    assert isinstance(raised.value.__cause__, conserva.Error)
    assert found.history == []
    assert model.training
    with pytest.raises(conserva.Error, match=r"^inputs\[1\] cannot be explained"):
        begun(inputs=["a joy", "a joy " * 600])


def test_the_model_must_be_the_one_that_is_trained() -> None:
    found = watching()
    with pytest.raises(conserva.Error, match="is not a part of the Linear that is trained: give the"):
        found._begin(nn.Linear(2, 2), 0, 0.0)
    found._begin(nn.Sequential(found.task.network), 0, 0.0)


@pytest.mark.parametrize("mark", ["device_mesh", "_is_flat_param", "ds_id", None])
def test_sharded_models_are_refused(mark: str | None) -> None:
    model = network()
    found = watching(model)
    if mark is None:
        model.classifier.weight.data = torch.empty(0)
    else:
        setattr(model.classifier.weight, mark, 1)
    with pytest.raises(conserva.Error, match=r"'classifier.weight' of the BertForSeq\w+ is split among processes"):
        found._begin(model, 0, 0.0)


def test_a_model_that_fsdp_has_split_is_refused(tmp_path: Path) -> None:
    model = network()
    found = watching(model)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        with pytest.raises(conserva.Error, match="is split among processes"):
            found._begin(model, 0, 0.0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": 3}, "neither a single text"),
        ({"target": None}, "target=None, the predicted class, may change"),
        ({"target": ["positive"]}, "has 1 entries for 2"),
        ({"target": ["positive", None]}, "give one label for each"),
        ({"tokenizer": None}, "without a tokenizer"),
        ({"model": conserva.load()}, "a task has its own"),
        ({"model": "a name", "tokenizer": TOKENIZER}, "tokenizer is for"),
        ({"method": "exakt"}, "Did you mean 'exact'"),
    ],
    ids=str,
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        watching(settings.pop("model", None), **settings)


def test_a_label_that_does_not_exist_is_refused_before_the_training() -> None:
    with pytest.raises(conserva.Error, match=r"inputs\[0\] cannot be explained: .*'great'"):
        begun(target="great")


def test_examples_have_indices() -> None:
    found = begun()
    for wrong in (-1, 2):
        with pytest.raises(conserva.Error, match=f"example={wrong} is not the index of an example: give 0 to 1"):
            found.explanations(wrong)
