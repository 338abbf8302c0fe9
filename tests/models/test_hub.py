"""Names on the hub: a machine that is offline is told so at once, and names with typing errors get a suggestion."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import conserva
from conserva.cli import main
from conserva.models import hub
from conserva.models.hub import did_you_mean, hub_source, unreachable

GIVEN = "model='a/b'"


@pytest.fixture
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def no_server() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()[1]
    return f"http://127.0.0.1:{address}"


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, no cache, and HF_HUB_OFFLINE not set."""
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def cached_model(cache: Path) -> Path:
    """Write a model as huggingface_hub keeps it, and return its folder."""
    folder = cache / "models--a--b" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (cache / "models--a--b" / "refs").mkdir()
    (cache / "models--a--b" / "refs" / "main").write_text("0" * 40)
    return folder


def test_a_hub_that_answers_is_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server)
    assert unreachable(server) is None
    assert hub_source("a/b", GIVEN) == "a/b"


def test_without_a_connection_a_name_is_refused_at_once(no_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", no_server)
    with pytest.raises(
        conserva.Error, match=r"model='a/b' is neither a folder.*\(no connection to http://127\.0\.0\.1:\d+: Connection"
    ):
        conserva.load("a/b")


def test_a_host_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*address: Any, **options: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert unreachable("https://hub.example") == "no connection to https://hub.example: Name or service not known"


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(hub, "CONNECTION_SECONDS", 0.01)

    def silent(*address: Any, **options: Any) -> None:
        released.wait(30)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    assert unreachable("https://hub.example") == "no answer from https://hub.example within 0.01 s"
    released.set()


@pytest.mark.parametrize("endpoint", ["https://hub.example:99999", "https://", "", "https://[::1", "https://h\0b"])
def test_endpoints_that_are_no_urls_are_unreachable(endpoint: str) -> None:
    assert unreachable(endpoint)


@pytest.mark.parametrize("form", ["{}", "{}/"])
def test_a_proxy_is_asked_instead(server: str, no_server: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", form.format(server))
    assert unreachable(no_server.replace("127.0.0.1", "hub.example")) is None
    monkeypatch.setenv("http_proxy", form.format(no_server.removeprefix("http://")))
    assert "Connection refused" in str(unreachable("http://hub.example"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert unreachable(server) is None


def test_offline_a_model_that_was_downloaded_is_read_from_the_cache(
    no_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", no_server)
    folder = cached_model(tmp_path / "hub")
    assert hub_source("a/b", GIVEN) == str(folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_source("a/b", GIVEN) == "a/b"


def test_hf_hub_offline_is_obeyed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", lambda *args, **options: pytest.fail("a connection"))
    with pytest.raises(conserva.Error, match=r"cannot be downloaded now \(HF_HUB_OFFLINE is set\)"):
        conserva.load("a/b")


@pytest.mark.parametrize("name", ["a/b/c", "./none", "my model", "-a", "a--b", "a..b", "", "\x1b[31m", "é" * 200])
def test_what_cannot_be_a_name_on_the_hub_is_refused_without_a_connection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *args, **options: pytest.fail("a connection"))
    with pytest.raises(conserva.Error, match="is not a name on the Hugging Face Hub") as error:
        hub_source(name, f"model={name!r}")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("sentimnt", "sentiment"),
        ("Sentiment", "sentiment"),
        ("digit", "digits"),
        ("bce", "bace"),
        ("models/my-modle", "models/my-model"),
        ("models/my-modle/", "models/my-model"),
        ("models/tiny.ggf", "models/tiny.gguf"),
        ("models/tinny.gguf", "models/tiny.gguf"),
    ],
)
def test_similar_names_are_suggested(
    name: str, suggestion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "my-model").mkdir(parents=True)
    (tmp_path / "models" / "my-model" / "config.json").write_text("{}")
    (tmp_path / "models" / "my-modle-without-config").mkdir()
    (tmp_path / "models" / "tiny.gguf").write_text("")
    assert did_you_mean(name) == f" Did you mean {suggestion!r}?"


@pytest.mark.parametrize("name", ["bert-base-uncased", "no/such-model", "", "\0", "x" * 5000, "~nobody/x", "/"])
def test_nothing_is_suggested_for_other_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert did_you_mean(name) == ""


def test_the_command_line_says_it_in_one_line(
    no_server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", no_server)
    assert main(["explain", "--model", "sentimnt", "a joy."]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("conserva: model='sentimnt' is neither a folder nor a bundled model")
    assert "Did you mean 'sentiment'?" in lines[0]


def test_a_gguf_file_that_does_not_exist_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1.gguf").write_bytes(b"")
    with pytest.raises(conserva.Error, match=r"does not exist: .* Did you mean '.*model\.Q4_1\.gguf'\?"):
        conserva.load(tmp_path / "model.Q4_0.gguf")
