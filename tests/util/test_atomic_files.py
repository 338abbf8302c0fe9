"""Files that are there whole, or not at all."""

from pathlib import Path

import pytest

from conserva._util.files import atomic_file, atomic_files


def test_a_file_changes_at_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    for content in ("first", "second"):
        before = path.read_text() if path.exists() else None
        with atomic_file(path) as half:
            half.write_text(content)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_what_ends_halfway_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text("whole")

    def write() -> None:
        with atomic_file(path) as half:
            half.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_a_library_move_to_their_folder_together(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "model.json").write_text("before")
    with atomic_files(tmp_path) as half:
        (half / "model.json").write_text("after")
        (half / "templates").mkdir()
        (half / "templates" / "one.txt").write_text("one")
        assert (tmp_path / "model.json").read_text() == "before"
    found = {str(one.relative_to(tmp_path)): one.read_text() for one in tmp_path.rglob("*") if one.is_file()}
    assert found == {"kept.txt": "kept", "model.json": "after", "templates/one.txt": "one"}


def test_a_library_that_ends_halfway_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.json").write_text("before")

    def write() -> None:
        with atomic_files(out) as half:
            (half / "model.json").write_text("af")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [(one.name, one.read_text()) for one in out.iterdir()] == [("model.json", "before")]
