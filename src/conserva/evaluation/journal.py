"""The journal of an evaluation: scores and curves of each sample, from which an interrupted run is resumed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._util.journal import Journal, open_records

NAME = "samples.jsonl"
WHAT = "an evaluation"


class SampleJournal:
    """The records of scores and curves of samples, in a file; only their offsets are in memory.

    Without a folder it is a temporary file.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], samples: int) -> None:
        self._scores, self._curves = (array("q", [-1]) * samples for _ in range(2))
        self.refused: dict[str, str] = {}
        """Method -> why it does not apply to the model, from the records of scores."""
        self._journal = Journal(None if folder is None else folder / NAME, settings, WHAT)
        for offset, record in self._journal.records:
            self._add(offset, record)

    def _add(self, offset: int, record: Mapping[str, Any]) -> None:
        is_scores = "scores" in record
        (self._scores if is_scores else self._curves)[record["sample"]] = offset
        if is_scores:
            self.refused.update(record["refused"])

    @property
    def done(self) -> int:
        """The number of samples with scores and curves."""
        return sum(map(self.is_done, range(len(self._curves))))

    @property
    def has_any_scores(self) -> bool:
        """Whether any sample has scores."""
        return any(offset >= 0 for offset in self._scores)

    def is_done(self, sample: int) -> bool:
        """Return whether a sample has scores and curves."""
        return self.has_scores(sample) and self.has_curves(sample)

    def has_scores(self, sample: int) -> bool:
        """Return whether a sample has scores."""
        return self._scores[sample] >= 0

    def has_curves(self, sample: int) -> bool:
        """Return whether a sample has curves."""
        return self._curves[sample] >= 0

    def scores(self, sample: int) -> dict[str, Any]:
        """Return the record of a sample's scores."""
        return self._journal.records.at(self._scores[sample])

    def curves(self, sample: int) -> dict[str, Any]:
        """Return the record of a sample's curves."""
        return self._journal.records.at(self._curves[sample])

    def add(self, sample: int, record: Mapping[str, Any]) -> None:
        """Write the scores or the curves of a sample."""
        line = {"sample": sample, **record}
        self._add(self._journal.append(line), line)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        self._journal.close()


def samples_of(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the scores and curves of all samples in the journal of a finished run, in the order of the samples."""
    scores: dict[int, int] = {}
    curves: dict[int, int] = {}
    with open_records(path, WHAT) as records:
        for offset, record in records:
            (scores if "scores" in record else curves)[record["sample"]] = offset
        for sample in sorted(curves):
            yield records.at(scores[sample]), records.at(curves[sample])
