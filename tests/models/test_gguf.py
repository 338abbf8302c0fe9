"""GGUF files are parsed once and then come from the cache, with the same results to the bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Types
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

import conserva
from conserva._util.cache import cache_folder
from conserva.cli import main
from conserva.models import gguf as gguf_models
from conserva.models.quiet import quiet_loading
from gguf_files import written

PROMPT = "hello abc"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONSERVA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were parsed."""
    found: list[str] = []
    parse = gguf.GGUFReader.__init__

    def counted(self: Any, path: Any, *args: Any, **options: Any) -> None:
        found.append(str(path))
        parse(self, path, *args, **options)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counted)
    return found


def direct(path: Path, dtype: torch.dtype = torch.float32) -> conserva.Causal:
    """Return the task with what transformers itself loads."""
    with quiet_loading():
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for weight in model.parameters():  # rounding errors depend on the alignment in memory
        weight.data = weight.data.clone()
    return conserva.Causal(model.eval(), tokenizer, str(path))


def assert_equal(one: conserva.Task, other: conserva.Task) -> None:
    """Check that two tasks have the same weights, tokens and explanations, to the bit."""
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) and x.dtype == theirs[name].dtype for name, x in ours.items())
    buffers = dict(other.network.named_buffers())
    assert all(torch.equal(x, buffers[name]) for name, x in one.network.named_buffers())
    a, b = (task.preprocessors["tokenizer"] for task in (one, other))
    assert a.backend_tokenizer.to_str() == b.backend_tokenizer.to_str()
    assert (a.special_tokens_map, a.chat_template) == (b.special_tokens_map, b.chat_template)
    first, second = (conserva.explain(task, PROMPT) for task in (one, other))
    assert (first.features, first.scores, first.output, first.ledger) == (
        second.features,
        second.scores,
        second.output,
        second.ledger,
    )


@pytest.mark.parametrize(
    "weights", [Types.F32, Types.F16, Types.BF16, Types.Q4_0, Types.Q4_1, Types.Q5_1, Types.Q8_0], ids=lambda x: x.name
)
@pytest.mark.parametrize("pieces", [False, True], ids=["bytes", "pieces"])
def test_explanations_from_the_cache_are_those_of_the_file(weights: Types, pieces: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", weights, pieces=pieces)
    expected, first, second = direct(path), conserva.load(path), conserva.load(path)
    assert_equal(first, expected)
    assert_equal(second, expected)
    assert closes(first)


def closes(task: conserva.Task) -> bool:
    one = conserva.explain(task, PROMPT)
    assert one.ledger is not None
    return abs(one.ledger.gap) < 1e-4 * max(map(abs, (one.output, one.ledger.inputs, one.ledger.biases)))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("is_cached", [True, False])
def test_other_dtypes(dtype: str, is_cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.gguf")
    if not is_cached:
        monkeypatch.setenv("CONSERVA_CACHE", "/proc/nothing")
    expected = direct(path, getattr(torch, dtype))
    for _ in range(2):
        assert_equal(conserva.load(path, dtype=dtype), expected)


def test_a_file_is_parsed_once_and_then_never(tmp_path: Path, parses: list[str]) -> None:
    path = written(tmp_path / "a.gguf")
    conserva.load(path)
    assert len(parses) == 1
    conserva.load(path, dtype="bfloat16")
    conserva.load(path.rename(tmp_path / "renamed.gguf"))
    assert len(parses) == 1


def test_a_relative_path_is_parsed_once(tmp_path: Path, parses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.gguf")
    monkeypatch.chdir(tmp_path)
    conserva.load("a.gguf")
    assert len(parses) == 1


def test_another_content_is_converted_again(tmp_path: Path, parses: list[str]) -> None:
    path = written(tmp_path / "a.gguf")
    one = conserva.load(path)
    other = conserva.load(written(path, Types.Q8_0))
    assert len(parses) == 2
    assert one.fingerprint != other.fingerprint


def test_another_version_is_converted_again(tmp_path: Path, parses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.gguf")
    conserva.load(path)
    monkeypatch.setattr("conserva.models.gguf.FORMAT", 2)
    conserva.load(path)
    monkeypatch.setattr("conserva.models.gguf.version", lambda package: "99")
    conserva.load(path)
    assert len(parses) == 3


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "manifest.json"])
def test_a_damaged_cache_is_replaced(file: str, tmp_path: Path, parses: list[str], cache: Path) -> None:
    path = written(tmp_path / "a.gguf")
    conserva.load(path)
    (damaged,) = cache.glob(f"*/{file}")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert_equal(conserva.load(path), direct(path))
    assert damaged.read_bytes() != content
    before = len(parses)
    conserva.load(path)
    assert len(parses) == before


@pytest.mark.parametrize("reason", ["no folder", "a file", "full while it is written", "too small"])
def test_without_a_cache_a_file_is_loaded_all_the_same(
    reason: str, tmp_path: Path, parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.gguf")
    if reason == "no folder":
        monkeypatch.setenv("CONSERVA_CACHE", "/proc/nothing/here")
    elif reason == "a file":
        (tmp_path / "cache").write_text("")
    elif reason == "too small":
        monkeypatch.setattr("conserva._util.files.shutil.disk_usage", lambda folder: type("", (), {"free": 1000}))
    else:
        resource = pytest.importorskip("resource")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        task = conserva.load(path)
    finally:
        if reason == "full while it is written":
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(parses) == 1
    assert not (cache_folder().is_dir() and list(cache_folder().iterdir()))
    assert_equal(task, direct(path))


def test_several_threads_load_one_file(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.gguf")
    with ThreadPoolExecutor(3) as threads:
        tasks = list(threads.map(lambda _: conserva.load(path), range(3)))
    for task in tasks:
        assert_equal(task, tasks[0])
    assert len(list(cache.iterdir())) == 1


def test_what_transformers_uses_is_as_before(tmp_path: Path) -> None:
    before = gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.tqdm
    conserva.load(written(tmp_path / "a.gguf"))
    (tmp_path / "b.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(conserva.Error):
        conserva.load(tmp_path / "b.gguf")
    assert before == (gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.tqdm)


def test_other_files_are_read_while_one_is_converted(tmp_path: Path) -> None:
    path, other = written(tmp_path / "a.gguf"), written(tmp_path / "b.gguf", Types.Q8_0)
    found: list[Any] = []

    def read_other(done: int, total: int) -> None:
        if not found:
            found.append(gguf.GGUFReader(other))

    assert_equal(conserva.load(path, progress=read_other), direct(path))
    assert {tensor.tensor_type for tensor in found[0].tensors} >= {Types.Q8_0}


def test_progress_is_reported_and_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.gguf")
    calls: list[tuple[int, int]] = []
    conserva.load(path, progress=lambda done, total: calls.append((done, total)))
    total = len(gguf.GGUFReader(path).tensors)
    assert calls == [(done, total) for done in range(total + 1)]
    conserva.load(path, progress=lambda done, total: pytest.fail("from the cache"))
    assert capfd.readouterr() == ("", "")


def test_the_command_line_loads_a_file_without_the_bars_of_transformers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.gguf")
    assert main(["explain", "--model", str(path), "--prompt", PROMPT]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"left_out": "blk.1.ffn_up.weight"}, r"is not a language model: it lacks the weights .*up_proj"),
        ({"embedding_length": 32}, "belong to different models|could not be loaded"),
        ({"block_count": 50_000}, "block_count|num_hidden_layers"),
        ({"vocab_size": 7}, "embed_tokens|different models"),
    ],
)
def test_files_that_are_wrong_are_refused_and_not_cached(
    changes: dict[str, Any], says: str, tmp_path: Path, cache: Path
) -> None:
    path = written(tmp_path / "a.gguf", **changes)
    for _ in range(2):
        with pytest.raises(conserva.Error, match=says) as error:
            conserva.load(path)
        assert "a.gguf" in str(error.value)
    assert not cache.exists()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_changes_while_it_is_loaded_is_not_cached_under_the_hash_of_the_former(
    replaced: bool, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = written(tmp_path / "a.gguf"), written(tmp_path / "b.gguf", rope_freq_base=1e3)
    hashed = gguf_models.file_hash

    def then_changed(file: Path) -> str:
        found = hashed(file)
        other.replace(file) if replaced else file.write_bytes(other.read_bytes())
        return found

    monkeypatch.setattr(gguf_models, "file_hash", then_changed)
    with pytest.raises(conserva.Error, match=r"a\.gguf.*changed while it was loaded"):
        conserva.load(path)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head": "binary"}, "head='binary' is for classifiers, but model=.* is a language model"),
        ({"labels": ["a"]}, r"labels=\['a'\] is for image models, but model=.* is a language model"),
        ({"tokenizer": 7}, "tokenizer is for a model in memory"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.load(written(tmp_path / "a.gguf"), **options)
