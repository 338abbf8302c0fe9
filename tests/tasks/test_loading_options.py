"""What `conserva.load` and tasks do with devices and data types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import conserva
from conserva.cli import main
from language import causal


@pytest.mark.parametrize("name", ["sentiment", "digits", "bace"])
@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "float64"])
def test_a_model_is_loaded_in_a_data_type(name: str, dtype: Any) -> None:
    task = conserva.load(name, dtype=dtype)
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert {one.dtype for one in task.network.parameters()} == {wanted}
    given = {"sentiment": "a joy.", "digits": torch.rand(28, 28).mul(255).byte().numpy(), "bace": "CCO"}[name]
    one, plain = conserva.explain(task, given), conserva.explain(conserva.load(name), given)
    assert one.provenance["dtype"] == str(wanted).removeprefix("torch.")
    largest = max(map(abs, plain.scores))
    assert one.scores == pytest.approx(plain.scores, abs=(0.2 if wanted == torch.bfloat16 else 1e-4) * largest)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": "gpu"}, "device='gpu': "),
        ({"device": "cuda:99"}, "device='cuda:99': "),
        ({"device": "meta"}, "device='meta' computes nothing"),
        ({"device": 1.5}, "device='1.5': "),
        ({"dtype": "int8"}, "dtype='int8' is not a data type to explain in: choose float32"),
        ({"dtype": torch.int64}, "is not a data type to explain in"),
        ({"dtype": "float8_e4m3fn"}, "is not a data type to explain in"),
        ({"dtype": "nonsense"}, "is not a data type to explain in"),
        ({"dtype": 32}, "dtype=32 is not a data type to explain in"),
    ],
)
def test_what_cannot_be_computed_on_or_in_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.load(**given)


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "a joy."],
        ["compare", "a joy.", "--methods", "gi"],
        ["audit", "--rules", "gi"],
        ["doctor"],
        ["evaluate", "--data", "x.csv"],
        ["bias", "--data", "x.csv", "--groups", "x.txt"],
    ],
)
def test_every_command_takes_a_device(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("text,label\na joy.,positive\n")
    (tmp_path / "x.txt").write_text("joy\n")
    assert main([*command, "--device", "cuda:99"]) == 1
    assert "conserva: --device cuda:99: " in capsys.readouterr().err
    if command[0] in ("explain", "compare", "audit"):
        assert main([*command, "--device", "cpu"]) == 0


def test_a_task_moves_and_says_what_it_is() -> None:
    task = conserva.load()
    assert repr(task) == "Text('sentiment', model=BertForSequenceClassification, device='cpu')"
    assert task.to("cpu") is task
    assert task.to(torch.device("cpu")) is task
    with pytest.raises(conserva.Error, match="device='gpu'"):
        task.to("gpu")
    assert repr(causal()) == "Causal('tiny llama', model=LlamaForCausalLM, device='cpu')"


def test_a_task_without_parameters_has_a_repr() -> None:
    task = conserva.load()
    task.model = torch.nn.Identity().eval()
    assert repr(task) == "Text('sentiment', model=Identity)"
