"""Files that come in: what may be read of a model, and what is said of files that may not, or are out of all bounds."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pictures
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

import conserva
from conserva.bias_study.lexicon import lexicon_of
from conserva.bias_study.mentions import Words
from conserva.bias_study.tagger import tagger_of
from conserva.datasets import files, read_labelled
from conserva.datasets.drawn import digit_graph
from conserva.datasets.molecules import molecule
from conserva.models.bounds import bounded, check_settings
from conserva.models.quiet import quiet_loading
from conserva.tasks.audio import audio_of
from tiny_speech import tone, written

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier, in one file."""
    folder = tmp_path_factory.mktemp("whole")
    tokenizer = conserva.load().tokenizer
    torch.manual_seed(0)
    with quiet_loading():
        BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def changed(folder: Path, file: str = "config.json", **settings: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def sharded(folder: Path, shard: str, **more: Any) -> None:
    """Let an index name one file for all weights."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, shard), **more}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def refused(call: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(conserva.Error) as error:
        call()
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert str(error.value).isprintable()


# Weights.


@pytest.mark.parametrize("name", ["weights.bin", "pytorch_model.bin", "weights.pt"])
def test_shards_that_are_pickles_are_not_read(model: Path, name: str) -> None:
    torch.save(load_file(model / "model.safetensors"), model / name)  # whole, and harmless
    sharded(model, name)
    refused(lambda: conserva.load(model), str(model), repr(name), "only safetensors")


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/a.safetensors", "a\\b.safetensors", "", 3, None])
def test_shards_lie_in_the_folder(model: Path, name: Any) -> None:
    shutil.copytree(model, model.parent / "other")
    sharded(model, name)
    refused(lambda: conserva.load(model), "model.safetensors.index.json names", "in the same folder")


def test_shards_that_are_safetensors_are_read(model: Path, whole: Path) -> None:
    stored = model.parent / "blob"  # as a cache of the hub has it, with links to files elsewhere
    shutil.copy(model / "model.safetensors", stored)
    (model / "a.safetensors").symlink_to(stored)
    sharded(model, "a.safetensors")
    assert conserva.load(model).fingerprint == conserva.load(whole).fingerprint


@pytest.mark.parametrize(
    ("index", "says"),
    {
        "a list": ([], "has no weight_map"),
        "no map": ({"metadata": {}}, "has no weight_map"),
        "an empty map": ({"metadata": {}, "weight_map": {}}, "has no weight_map"),
        "no metadata": ({"weight_map": {"a": "a.safetensors"}}, "metadata"),
        "no file": ({"metadata": {}, "weight_map": {"a": "a.safetensors"}}, "'a.safetensors', which does not exist"),
    }.values(),
)
def test_an_index_that_is_none(model: Path, index: Any, says: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(lambda: conserva.load(model), "model.safetensors.index.json", says)


def test_weights_that_the_configuration_names(model: Path, whole: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "adapter_model.bin")
    changed(model, transformers_weights="adapter_model.bin")
    refused(lambda: conserva.load(model), "'adapter_model.bin'", "only safetensors")
    (model / "model.safetensors").rename(model / "mine.safetensors")
    changed(model, transformers_weights="mine.safetensors")
    assert conserva.load(model).fingerprint == conserva.load(whole).fingerprint


def test_adapters_are_not_read(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")
    refused(lambda: conserva.load(model), "adapter_config.json", "merge_and_unload")


def test_parts_of_distributed_checkpoints_are_not_read(model: Path) -> None:
    shutil.copy(model / "model.safetensors", model / "shard-00001-model-00001-of-00001.safetensors")
    refused(lambda: conserva.load(model), "distributed checkpoint")


def test_a_model_that_is_no_folder(model: Path) -> None:
    for file in ("model.safetensors", "config.json"):
        refused(lambda file=file: conserva.load(model / file), f"{file}' is not a folder: name one")


# Weights and configurations that do not fit.


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 16), ("vocab_size", 100), ("max_position_embeddings", 20), ("type_vocab_size", 5)],
)
def test_sizes_that_are_not_those_of_the_weights(model: Path, name: str, value: int) -> None:
    changed(model, **{name: value})
    refused(lambda: conserva.load(model), str(model), "in the shape", "belong to different models")


def test_layers_that_the_configuration_leaves_out(model: Path) -> None:
    changed(model, num_hidden_layers=1)
    refused(lambda: conserva.load(model), "weights for bert.encoder.layer.1.", "fewer layers")


def test_weights_for_more_than_the_task_needs_are_left_out(model: Path, whole: Path) -> None:
    weights = load_file(model / "model.safetensors")
    save_file({**weights, "cls.predictions.bias": torch.zeros(3)}, model / "model.safetensors", {"format": "pt"})
    assert conserva.load(model).fingerprint == conserva.load(whole).fingerprint


def test_a_tokenizer_of_another_model(model: Path) -> None:
    path = model / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"]["joy"] = 10**6
    path.write_text(json.dumps(described))
    refused(lambda: conserva.load(model), "the id 1000000", "belong to different models")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_labels", 10**9),
        ("num_attention_heads", -1),
        ("num_hidden_layers", 9_999),
        ("hidden_size", 10**12),
        ("hidden_size", 10**5),
        ("vocab_size", 10**12),
        ("max_position_embeddings", 10**8),
        ("intermediate_size", 10**10),
        ("hidden_size", -8),
        ("hidden_size", 9),
    ],
)
def test_sizes_beyond_all_bounds(model: Path, name: str, value: int) -> None:
    changed(model, **{name: value})
    before = torch.nn.modules.module._global_module_registration_hooks.copy()
    refused(lambda: conserva.load(model), str(model))
    assert torch.nn.modules.module._global_module_registration_hooks == before


def test_bounds_are_told() -> None:
    def build(**how: Any) -> None:
        with bounded(**{"tensors": None, "numbers": None, "whole": True, **how}), torch.device("meta"):
            torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(2000)))

    build()
    refused(lambda: build(tensors=10), "more than 1,200 modules", "10 tensors")
    refused(lambda: build(numbers=10**8), "its files hold 100,000,000 at most")


def test_what_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch, whole: Path) -> None:
    monkeypatch.setattr("conserva.models.bounds.host_memory", lambda: 1000.0)
    with pytest.raises(conserva.errors.OutOfMemory, match="GiB are free"):
        conserva.load(whole)


def test_numbers_of_labels_are_no_sizes() -> None:
    check_settings({"label2id": {"hedge_width": 20_000}, "id2label": {"20000": "edge"}, "rope_theta": 1e12}, "a")
    refused(lambda: check_settings([{"vision": {"DEPTHS": [2, 10**6]}}], "a.json"), "a.json has 'DEPTHS' = 1000000")


def test_a_panic_in_rust_is_an_error_and_ctrl_c_is_none(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def fail(error: BaseException) -> Any:
        raise error

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: fail(panic("called `unwrap`")))
    refused(lambda: conserva.load(model), str(model), "PanicException: called `unwrap`", "files are damaged")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        conserva.load(model)


# Code.


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_models_own_runs_only_if_asked_for(model: Path, file: str) -> None:
    (model / "mine.py").write_text(f"import os\nos.mkdir({str(model / 'ran')!r})\n")
    classes = {"AutoConfig": "mine.C", "AutoTokenizer": ["mine.T", "mine.T"]}
    changed(
        model, file, auto_map=classes, **({"model_type": "mine"} if file == "config.json" else {"tokenizer_class": "T"})
    )
    if file == "config.json":
        refused(lambda: conserva.load(model), "code of its own", "trust_remote_code=True")
    else:
        conserva.load(model)  # transformers has a tokenizer for a model of this type
    assert not (model / "ran").exists()
    with pytest.raises(conserva.Error):
        conserva.load(model, trust_remote_code=True)
    assert (model / "ran").exists()


def test_a_tagger_never_asks_whether_code_may_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    changed(model, auto_map={"AutoConfig": "mine.C"}, model_type="mine")
    refused(lambda: tagger_of(model), "code of its own")


@pytest.mark.parametrize(
    "settings", [{"attn_implementation": "a/b"}, {"text_config": {"_attn_implementation": {"": "a/b"}}}]
)
def test_kernels_of_the_hub_are_code(model: Path, settings: dict[str, Any]) -> None:
    changed(model, **settings)
    refused(lambda: conserva.load(model), "attn_implementation", "code on the hub")


def test_modules_lie_in_the_folder(tmp_path: Path) -> None:
    from saved_models import SAVED

    folder = SAVED["Similarity"](tmp_path / "model")
    (tmp_path / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    for path in ("..", "../", "/etc", "a/../..", "a\x00"):
        (folder / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": path}]))
        refused(lambda: conserva.load(folder), "modules.json has the path", "a subfolder of the model")
    for modules in ({}, [3], [{"path": "a"}], "a"):
        (folder / "modules.json").write_text(json.dumps(modules))
        refused(lambda: conserva.load(folder), "modules.json is not a list of modules")


# Files that are none, or too large.


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json", "vocab.txt"])
def test_files_of_a_model_are_regular_and_small(model: Path, file: str) -> None:
    (model / file).unlink(missing_ok=True)
    with (model / file).open("wb") as sparse:
        sparse.truncate(2**40)
    refused(lambda: conserva.load(model), file, "the limit is 64 MiB")
    (model / file).unlink()
    os.mkfifo(model / file)
    refused(lambda: conserva.load(model), "without config.json" if file == "config.json" else "not a regular file")


@pytest.mark.parametrize(
    ("name", "reason"), [("a\x00b.csv", "NUL"), ("\udc80.csv", ""), ("x" * 300 + ".csv", "too long")]
)
def test_names_that_are_none(name: str, reason: str) -> None:
    refused(lambda: read_labelled(name), "cannot be read" if reason else "", reason)


def test_a_small_zipped_file_may_hold_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_UNZIPPED", 2**20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2**20)))
    assert len(files.unzipped("a.gz", tmp_path)[1]) == 2**20
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2**20 + 1)))
    refused(lambda: files.unzipped("a.gz", tmp_path), "a.gz' contains more than 1 MiB")


def test_a_small_table_may_hold_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["a" * 2**16]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    monkeypatch.setattr("conserva.datasets.tables.LARGEST", 2**25)
    assert (tmp_path / "a.parquet").stat().st_size < 2**21
    refused(lambda: read_labelled(tmp_path / "a.parquet"), "more than 32 MiB in the column 'text'")


def test_pictures_that_are_programs_are_not_opened(tmp_path: Path) -> None:
    Pictures.new("RGB", (28, 28)).save(tmp_path / "a.eps")
    shutil.copy(tmp_path / "a.eps", tmp_path / "a.png")
    refused(lambda: conserva.explain(conserva.load("digits"), tmp_path / "a.png"), "UnidentifiedImageError")
    refused(lambda: digit_graph(str(tmp_path / "a.png")), "UnidentifiedImageError")


def test_a_picture_that_is_open_and_cut(tmp_path: Path) -> None:
    Pictures.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:400])
    with Pictures.open(tmp_path / "a.png") as picture:
        refused(lambda: conserva.explain(conserva.load("digits"), picture), "'a.png' cannot be read as an image")


def test_an_archive_that_is_called_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros((28, 28)))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    refused(lambda: digit_graph(str(tmp_path / "a.npy")), "a.npy' is not a picture")


@pytest.mark.parametrize("rate", [10**6, 2**30])
def test_recordings_of_a_rate_that_none_has(tmp_path: Path, rate: int) -> None:
    path = written(tmp_path / "a.wav", tone(), rate=rate)
    refused(lambda: audio_of(path), f"{rate:,} samples a second", "give at most 768,000")


def test_recordings_of_days(tmp_path: Path) -> None:
    refused(lambda: audio_of(written(tmp_path / "a.wav", np.zeros(20_000), rate=1)), "20,000 s long")


@pytest.mark.parametrize("smiles", ["C\x00N", "CκN", "C\udc80", "C" * 6000, "C(" * 2000, "[C+99999999999]"])
def test_smiles_that_are_none(smiles: str) -> None:
    refused(lambda: molecule(smiles), "SMILES" if len(smiles) in (4000, 15) else "smiles is")


# Words of groups.


@pytest.mark.parametrize("odd", ["\\", "\\1", "a(b", "[", "*", "(?P<", "$^", "\\d+"])
def test_groups_and_words_are_taken_by_their_letters(odd: str) -> None:
    from matplotlib.figure import Figure

    from conserva.views.svg import embedded

    lexicon = lexicon_of({odd: [f"{odd}anna", "b"], f"{odd}2": ["Otto"]})
    assert lexicon.groups == (odd, f"{odd}2")
    found, _ = Words(lexicon).find(f"so {odd}anna met Otto.")
    assert [one.group for one in found if one.entity == "Otto"] == [f"{odd}2"]
    assert f'aria-label="{escape(odd)}"' in embedded(Figure(), odd, "a-", {})
