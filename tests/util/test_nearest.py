"""Suggestions for misspelt names."""

import pytest

from conserva._util.nearest import did_you_mean, nearest

NAMES = ("gi", "ah+ln", "exact", "rollout", "attn-gradcam")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("exat", "exact"),
        ("EXACT", "exact"),
        ("ahln", "ah+ln"),
        ("roll-out", "rollout"),
        ("grad-cam", "attn-gradcam"),
        ("shap", None),
        ("", None),
        ("\x1b[2J", None),
        ("x" * 100_000, None),
    ],
)
def test_the_most_similar_name_is_suggested(given: str, expected: str | None) -> None:
    assert nearest(given, NAMES) == expected
    assert did_you_mean(given, NAMES) == ("" if expected is None else f" Did you mean {expected!r}?")


def test_there_may_be_no_names() -> None:
    assert did_you_mean("exact", ()) == ""


def test_names_keep_their_case() -> None:
    assert nearest("postive", ("NEGATIVE", "POSITIVE")) == "POSITIVE"
