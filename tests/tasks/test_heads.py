"""`conserva.load` takes a model for what its configuration says it is, and the command line explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

import conserva
import tiny_heads
from conserva import tasks
from conserva.cli import main
from conserva.tasks.detection import task_class_of
from saved_models import SAVED
from tiny_speech import tone, written


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name)) for name, save in SAVED.items()}


@pytest.mark.parametrize("name", SAVED)
def test_the_configuration_says_which_task_it_is(folders: dict[str, Path], name: str) -> None:
    task = conserva.load(folders[name])
    assert type(task) is getattr(conserva, name)
    assert task.name == str(folders[name])
    assert not task.model.training


def test_every_head_of_transformers_has_its_table() -> None:
    from transformers.models.auto import modeling_auto

    kinds = [kind for name in tasks.MODULES if (kind := getattr(tasks, name).kind) is not None]
    assert len(kinds) == len(tasks.MODULES) - 1
    for kind in kinds:
        assert not kind.table or getattr(modeling_auto, kind.table)


def test_every_task_is_public() -> None:
    assert set(tasks.MODULES) == set(tasks.__all__) <= set(conserva.__all__)
    for name in tasks.__all__:
        assert getattr(conserva, name).__module__ == f"conserva.tasks.{tasks.MODULES[name]}"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tasks.Nothing


@pytest.mark.parametrize(
    ("architecture", "auto"),
    [
        ("GPT2LMHeadModel", "AutoModelForCausalLM"),
        ("BartForConditionalGeneration", "AutoModelForSeq2SeqLM"),
        ("WhisperForConditionalGeneration", "AutoModelForSpeechSeq2Seq"),
        ("Dinov2ForImageClassification", "AutoModelForImageClassification"),
        ("AttentionOnly", "AutoModelForSequenceClassification"),
    ],
)
def test_architectures(architecture: str, auto: str, tmp_path: Path) -> None:
    from transformers import BertConfig

    assert task_class_of(BertConfig(architectures=[architecture]), str(tmp_path), "m").kind.auto == auto


def test_code_of_a_models_own_says_what_it_is_for(tmp_path: Path) -> None:
    from transformers import BertConfig

    config = BertConfig(architectures=["MyOwnModel"], auto_map={"AutoModelForCausalLM": "my.MyOwnModel"})
    assert task_class_of(config, str(tmp_path), "m").kind.noun == "language model"


def test_what_has_no_task_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig

    with pytest.raises(conserva.Error, match="'m' is LlavaForConditionalGeneration, which no task supports"):
        task_class_of(BertConfig(architectures=["LlavaForConditionalGeneration"]), str(tmp_path), "m")


def test_a_gguf_file_says_what_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("conserva.tasks.loading.find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(conserva.Error, match=r"some\.gguf' needs the packages gguf and accelerate: .*conserva\[gguf\]"):
        conserva.load(tmp_path / "some.gguf")


def test_a_gguf_file_that_is_not_there() -> None:
    with pytest.raises(conserva.Error, match=r"'no\.gguf' does not exist"):
        conserva.load("no.gguf")


def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig

    model = tiny_heads.model("bert", "AutoModel").float()
    model.save_pretrained(tmp_path)
    tiny_heads.tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForTokenClassification"]}))
    assert BertConfig.from_pretrained(tmp_path).architectures == ["BertForTokenClassification"]
    with pytest.raises(conserva.Error, match="is not a token classifier: its weights lack classifier"):
        conserva.load(tmp_path)


def image(folder: Path) -> str:
    path = folder / "image.png"
    Pictures.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32), np.uint8)).save(path)
    return str(path)


def sound(folder: Path) -> str:
    return str(written(folder / "sound.wav", tone()))


GIVEN: dict[str, Any] = {
    "Text": ["a joy."],
    "Causal": ["--prompt", "The cat"],
    "Seq2Seq": ["the cat", "--with", "a"],
    "Speech": ["--audio", sound],
    "Image": ["--image", image],
    "Tokens": ["a joy of a film", "--with", "joy"],
    "Question": ["what is it?", "--with", "it is a joy of a film."],
    "Blanks": ["a [MASK] of a film."],
    "Similarity": ["a joy.", "--with", "a film."],
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_command_line_explains_it(
    folders: dict[str, Path], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [one if isinstance(one, str) else one(tmp_path) for one in GIVEN[name]]
    page = tmp_path / "page.html"
    command = ["explain", *given, "--model", str(folders[name]), "--method", "exact"]
    assert main([*command, "--json", "--html", str(page)]) == 0
    one = conserva.Explanation.from_json(capsys.readouterr().out)
    assert one.ledger is not None
    assert abs(one.ledger.gap) < 1e-3 * max(1, abs(one.output))
    assert page.read_text(encoding="utf-8").count("<section") >= 1
    assert main(command) == 0
    assert "gap" in capsys.readouterr().out


def test_a_contrast_with_the_prediction(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(folders["Causal"])]
    prompt = ["explain", *model, "--prompt", "The cat", "--json"]
    assert main(prompt) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main([*prompt, "--contrast", "a"]) == 0
    rather = json.loads(capsys.readouterr().out)
    assert rather["target"] == f"{alone['target']} - a"
    assert rather["output"] < alone["output"] or rather["output"] >= 0
    assert main([*prompt, "--target", "b", "--contrast", "a"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "b - a"


def test_the_sink_is_left_out_of_the_picture(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["explain", "--model", str(folders["Causal"]), "--prompt", "The cat sat", "--json"]
    assert main(prompt) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*prompt, "--hide-sink"]) == 0
    left = json.loads(capsys.readouterr().out)
    assert left["features"] == whole["features"][1:]
    assert left["ledger"] == whole["ledger"]
    assert (whole["sink"]["place"], left["sink"]["place"]) == (0, None)


@pytest.mark.parametrize(("name", "given"), [("Causal", ["--prompt", "The cat"]), ("Seq2Seq", ["the cat"])])
def test_a_generation(
    folders: dict[str, Path], name: str, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    command = ["explain", "--model", str(folders[name]), *given]
    assert main([*command, "--generate", "3", "--json", "--html", str(page)]) == 0
    found = conserva.Generation.from_json(capsys.readouterr().out)
    assert 1 <= len(found.steps) <= 3
    assert "<script" in page.read_text(encoding="utf-8")
    assert main([*command, "--continuation", " a dog", "--score", "log-probability"]) == 0
    assert "a dog" in "".join(capsys.readouterr().out.split("\n")) or name == "Seq2Seq"


def test_a_trace(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "a joy.", "--trace", "--json", "--html", str(page)]) == 0
    assert conserva.Trace.from_json(capsys.readouterr().out).features
    assert page.exists()
    assert main(["explain", "--model", str(folders["Causal"]), "--prompt", "The cat", "--trace"]) == 0
    assert "layer" in capsys.readouterr().out


WRONG = [
    (["explain", "--prompt", "The cat"], "--prompt needs a model that takes prompts"),
    (["explain", "--prompt", "The cat", "--model", "sentiment"], "--prompt 'The cat': sentiment takes texts"),
    (["explain", "--image", "cat.png", "--model", "sentiment"], "--image 'cat.png': sentiment takes texts"),
    (["explain", "a joy.", "--generate"], "--generate 40: sentiment does not generate text"),
    (["explain", "--smiles", "CCO", "--with", "x"], "--with 'x' needs a text"),
    (["explain", "a joy.", "--chat"], "--chat needs a prompt"),
    (["explain", "a joy.", "--prompt", "x"], "--audio, not text and --prompt"),
]


@pytest.mark.parametrize(("command", "message"), WRONG, ids=[" ".join(command) for command, _ in WRONG])
def test_what_does_not_fit_is_one_line(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_generation_takes_no_target(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "--model", str(folders["Causal"]), "--prompt", "The cat", "--generate", "2", "--target", "x"]
    assert main(command) == 1
    assert "--target 'x' does not apply to a generation" in capsys.readouterr().err
