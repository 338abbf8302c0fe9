"""ERASER (DeYoung et al. 2020): explanations as its predictions, and the measures of agreement of it and of ferret."""

from __future__ import annotations

from .agreement import auprc, iou_f1, token_f1, token_iou
from .leave_one_out import tau_loo
from .predictions import write_eraser
from .rationale import hard_rationale, section_scores, word_scores

__all__ = [
    "auprc",
    "hard_rationale",
    "iou_f1",
    "section_scores",
    "tau_loo",
    "token_f1",
    "token_iou",
    "word_scores",
    "write_eraser",
]
