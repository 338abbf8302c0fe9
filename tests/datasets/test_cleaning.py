"""Cleaning: wrongly read characters become what they were meant to be, and others stay as they are."""

import pytest

from conserva.datasets.cleaning import clean_text


@pytest.mark.parametrize(
    ("text", "clean"),
    {
        "plain": ("it 's good .", "it 's good ."),
        "blanks at the ends": (" hide new secretions \n", "hide new secretions"),
        "round brackets": ("a film -lrb- or two -rrb- .", "a film ( or two ) ."),
        "square brackets": ("-lsb- laughs -rsb- yes", "[ laughs ] yes"),
        "line breaks": ("One.<br /><br />Two.", "One.\n\nTwo."),
        "Windows punctuation": ("wait\x85 \x91em \x96 for 5\x80", "wait… \u2018em \u2013 for 5€"),
        "Windows letters": ("Slavoj \x8ei\x9eek", "Slavoj Žižek"),
        "undefined in Windows": ("a\x81b\x8dc\x8fd\x90e\x9df", "abcdef"),
        "nothing but undefined": ("\x81 \x9d", ""),
        "encoded twice": ("cafÃ© âž\x9d ðŸ\u2018‰ â\u201a¬5", "café ➝ 👉 €5"),
        "encoded twice, then a control": ("they take themÂ…", "they take them…"),
        "only alike": ("Â no, ÃA, ðŸx, à la", "Â no, ÃA, ðŸx, à la"),
        "no UTF-8 after all": ("ààà àŸ\x9d", "ààà àŸ"),
        "as it should be": ("café “no” ➝ 👉🏻 €5 \u2013 ñ", "café “no” ➝ 👉🏻 €5 \u2013 ñ"),
    }.values(),
)
def test_text_is_as_it_was_meant(text: str, clean: str) -> None:
    assert clean_text(text) == clean
    assert clean_text(clean) == clean


def test_every_character_encoded_twice_is_found_again() -> None:
    for char in "é£«ß…€™➝❤👉🏻\u2066":
        wrong = "".join(bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in char.encode())
        assert clean_text(f"x{wrong}x") == f"x{char}x"
