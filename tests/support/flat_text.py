"""What tests share: flat text."""

from made_up_evaluations import read


def flat(html: str) -> str:
    return " ".join(read(html).text.split())
