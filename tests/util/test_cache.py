"""The cache: where it is, what it writes, and what it does with folders that are damaged, contested or left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest

from conserva._util import cache
from conserva._util.cache import MANIFEST, cache_folder, cached, file_hash, store

CONTENT = {"a.json": b"{}", "b.bin": bytes(range(256)) * 5000}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONSERVA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)


def stored() -> Path:
    found = store("key", write, 10)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "{home}/.cache/conserva"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/conserva"),
        ("linux", {"XDG_CACHE_HOME": ""}, "{home}/.cache/conserva"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "{home}/.cache/conserva"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "{home}/Library/Caches/conserva"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/conserva"),
        ("win32", {}, "{home}/AppData/Local/conserva"),
        ("linux", {"CONSERVA_CACHE": "/own", "XDG_CACHE_HOME": "/x"}, "/own"),
        ("darwin", {"CONSERVA_CACHE": "~/own"}, "{home}/own"),
        ("win32", {"CONSERVA_CACHE": "/own", "LOCALAPPDATA": "/local"}, "/own"),
    ],
)
def test_where_the_cache_is(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONSERVA_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert str(cache_folder()) == expected.format(home=tmp_path)


def test_a_folder_is_found_again_with_its_files(folder: Path) -> None:
    assert cached("key") is None
    path = stored()
    assert path == cached("key") == folder / "key"
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name != MANIFEST} == CONTENT
    assert cached("other") is None
    assert [entry.name for entry in folder.iterdir()] == ["key"]


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    for size in (0, 1, 2**20 - 1, 2**20, 2**20 + 1):
        (tmp_path / "a").write_bytes(b"x" * size)
        sums = subprocess.run(["sha256sum", tmp_path / "a"], capture_output=True, text=True).stdout
        assert file_hash(tmp_path / "a") == sums.split()[0]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a byte": lambda path: (path / "b.bin").write_bytes(CONTENT["b.bin"][:-1] + b"\0"),
    "cut": lambda path: os.truncate(path / "b.bin", 100),
    "empty": lambda path: os.truncate(path / "a.json", 0),
    "missing": lambda path: (path / "a.json").unlink(),
    "more": lambda path: (path / "adapter_config.json").write_text("{}"),
    "a folder more": lambda path: (path / "sub").mkdir(),
    "no manifest": lambda path: (path / MANIFEST).unlink(),
    "manifest cut": lambda path: os.truncate(path / MANIFEST, 5),
    "manifest of nothing": lambda path: (path / MANIFEST).write_text("{}"),
    "manifest is a list": lambda path: (path / MANIFEST).write_text("[]"),
    "manifest is deep": lambda path: (path / MANIFEST).write_text("[" * 100_000),
    "manifest is binary": lambda path: (path / MANIFEST).write_bytes(b"\xff\xfe\0"),
    "all gone": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_folder_is_deleted_and_can_be_stored_again(how: str) -> None:
    DAMAGE[how](stored())
    assert cached("key") is None
    assert not (cache_folder() / "key").exists()
    assert stored() == cached("key")


def test_what_fails_while_writing_leaves_nothing(folder: Path) -> None:
    def full(path: Path) -> None:
        write(path)
        raise OSError(28, "No space left on device")

    def safetensors_on_a_full_disk(path: Path) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    for fails in (full, safetensors_on_a_full_disk):
        assert store("key", fails, 10) is None
        assert list(folder.iterdir()) == []


def test_other_errors_are_not_hidden(folder: Path) -> None:
    def wrong(path: Path) -> None:
        raise KeyError("a mistake in the program")

    with pytest.raises(KeyError):
        store("key", wrong, 10)
    with pytest.raises(KeyboardInterrupt):
        store("key", lambda path: (_ for _ in ()).throw(KeyboardInterrupt), 10)
    assert list(folder.iterdir()) == []


def test_what_is_larger_than_the_disk_is_not_begun() -> None:
    assert store("key", lambda path: pytest.fail("it was begun"), 2**60) is None


@pytest.mark.parametrize("place", ["file", "below a file", "missing volume"])
def test_a_cache_that_cannot_be_written_is_none(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    given = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "a", "missing volume": "/proc/nothing/here"}
    monkeypatch.setenv("CONSERVA_CACHE", str(given[place]))
    assert cached("key") is None
    assert store("key", write, 10) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_read(folder: Path) -> None:
    path = stored()
    folder.chmod(0o500)
    try:
        assert cached("key") == path
        assert store("other", write, 10) is None
    finally:
        folder.chmod(0o700)


def test_several_that_write_the_same_keep_one(folder: Path) -> None:
    together, found = Barrier(4), []

    def both(path: Path) -> None:
        write(path)
        together.wait(30)

    threads = [Thread(target=lambda: found.append(store("key", both, 10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folder / "key"] * 4
    assert [entry.name for entry in folder.iterdir()] == ["key"]
    assert cached("key") == folder / "key"


def test_several_processes_that_start_together_keep_one(folder: Path) -> None:
    code = (
        "from conserva._util.cache import cached, store\n"
        "def write(path):\n [(path / str(i)).write_bytes(b'x' * 10**5) for i in range(50)]\n"
        "print(cached('key') or store('key', write, 10))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in started] == [str(folder / "key")] * 4
    assert [entry.name for entry in folder.iterdir()] == ["key"]
    assert cached("key") == folder / "key"


def test_a_process_that_is_killed_while_writing_leaves_no_folder_with_the_key(folder: Path) -> None:
    code = (
        "import os, signal; from conserva._util.cache import store\n"
        "def write(path):\n (path / 'a').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "store('key', write, 10)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    remains = list(folder.iterdir())
    assert len(remains) == 1
    assert cached("key") is None
    stored()
    assert remains[0].exists(), "another process may still be writing"
    os.utime(remains[0], (0, 0))
    shutil.rmtree(folder / "key")
    stored()
    assert [entry.name for entry in folder.iterdir()] == ["key"]


def test_the_manifest_lists_every_file() -> None:
    path = stored()
    assert json.loads((path / MANIFEST).read_text()) == {name: file_hash(path / name) for name in CONTENT}
    assert cache.cached("key") == path
