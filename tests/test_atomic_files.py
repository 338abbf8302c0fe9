"""Files that are there whole, or not at all."""

from pathlib import Path

import pytest

from conserva._util.files import atomic_file


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
