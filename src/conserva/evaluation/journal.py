"""What an evaluation has done so far, sample by sample."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._util.journal import Journal, open_records

NAME = "samples.jsonl"
WHAT = "an evaluation"


class SampleJournal:
    """Records of samples: first their scores, then their curves. They are on disk, and only their places in memory.

    Without a folder the file has no name, and goes with the process.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], samples: int) -> None:
        self._scores, self._curves = (array("q", [-1]) * samples for _ in range(2))
        self.refused: dict[str, str] = {}
        """Method -> why it does not apply to the model, as scored samples say."""
        self._journal = Journal(None if folder is None else folder / NAME, settings, WHAT)
        for place, found in self._journal.records:
            self._take(place, found)

    def _take(self, place: int, found: Mapping[str, Any]) -> None:
        is_scores = "scores" in found
        (self._scores if is_scores else self._curves)[found["sample"]] = place
        if is_scores:
            self.refused.update(found["refused"])

    @property
    def done(self) -> int:
        """How many samples are measured."""
        return sum(map(self.is_done, range(len(self._curves))))

    @property
    def has_any_scores(self) -> bool:
        """Whether any sample is scored."""
        return any(place >= 0 for place in self._scores)

    def is_done(self, sample: int) -> bool:
        """Return whether a sample is scored and measured."""
        return self.has_scores(sample) and self.has_curves(sample)

    def has_scores(self, sample: int) -> bool:
        """Return whether a sample is scored."""
        return self._scores[sample] >= 0

    def has_curves(self, sample: int) -> bool:
        """Return whether a sample is measured."""
        return self._curves[sample] >= 0

    def scores(self, sample: int) -> dict[str, Any]:
        """Return the record of a sample's scores."""
        return self._journal.records.at(self._scores[sample])

    def curves(self, sample: int) -> dict[str, Any]:
        """Return the record of a sample's curves."""
        return self._journal.records.at(self._curves[sample])

    def add(self, sample: int, found: Mapping[str, Any]) -> None:
        """Write down the scores of a sample, or its curves: then it is done."""
        line = {"sample": sample, **found}
        self._take(self._journal.append(line), line)

    def close(self) -> None:
        """Close the file, which lets others write to it."""
        self._journal.close()


def samples_of(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the scores and the curves of every sample that a finished run wrote down, in the order of the samples."""
    scores: dict[int, int] = {}
    curves: dict[int, int] = {}
    with open_records(path, WHAT) as records:
        for place, found in records:
            (scores if "scores" in found else curves)[found["sample"]] = place
        for sample in sorted(curves):
            yield records.at(scores[sample]), records.at(curves[sample])
