"""What Kim et al., *Speculative Decoding with Big Little Decoder*, NeurIPS 2023, print: other models, data and hardware.

Table 1 (vanilla, unaligned and aligned BiLD) and Table 3 (rejection sampling, that is speculative decoding, with the
unaligned drafter). They stand beside a report for orientation and are never mixed with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Kim et al., NeurIPS 2023, Tables 1 and 3; batch 1 on one NVIDIA T4; other models, other data, other hardware"

Figures = tuple[float, float | None]
"""Quality in points, and speed-up over the vanilla large model; vanilla itself has none."""


@dataclass(frozen=True)
class Published:
    """One data set's column of the published tables."""

    dataset: str
    models: str
    metric: str
    """As printed."""
    rows: dict[str, Figures]
    """By the names of `tasks.evaluation.table.ROWS`."""
    remark: str = ""


def _column(
    vanilla: float,
    unaligned: tuple[Figures, Figures],
    aligned: tuple[Figures, Figures],
    speculative: Figures | None = None,
) -> dict[str, Figures]:
    """Rows in the order of Table 1: no loss before at most one point, unaligned before aligned."""
    rows: dict[str, Figures] = {
        "vanilla_large": (vanilla, None),
        "bild_unaligned_no_loss": unaligned[0],
        "bild_unaligned_one_point": unaligned[1],
        "bild_aligned_no_loss": aligned[0],
        "bild_aligned_one_point": aligned[1],
    }
    return rows if speculative is None else rows | {"speculative_unaligned": speculative}


TRANSLATION = (
    Published(
        "IWSLT17 De-En",
        "mT5-large, mT5-small",
        "BLEU",
        _column(40.32, ((40.33, 1.43), (39.44, 1.58)), ((40.24, 1.62), (39.13, 1.78)), speculative=(39.93, 1.28)),
    ),
    Published(
        "WMT14 De-En",
        "mT5-large, mT5-small",
        "BLEU",
        _column(31.38, ((31.28, 1.34), (30.47, 1.43)), ((31.26, 1.47), (30.33, 1.70))),
    ),
)
SUMMARIZATION = (
    Published(
        "XSum",
        "T5-large, T5-small",
        "ROUGE-L",
        _column(35.08, ((35.12, 1.48), (34.02, 1.72)), ((35.05, 1.50), (33.95, 1.80)), speculative=(35.00, 1.25)),
    ),
    Published(
        "CNN/DM",
        "T5-large, T5-small",
        "ROUGE-L",
        _column(41.54, ((41.44, 1.71), (40.57, 2.05)), ((41.52, 1.85), (40.96, 2.12))),
        remark="the first version of the paper prints 28.94 for ROUGE-L on CNN/DM: 41.54 is almost certainly ROUGE-Lsum",
    ),
)


def beside(metric: str) -> tuple[Published, ...]:
    """The published columns to set beside a task that is measured by `metric`: BLEU translation, any ROUGE summarization."""
    return TRANSLATION if metric == "bleu" else SUMMARIZATION
