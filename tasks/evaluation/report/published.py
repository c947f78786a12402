"""What the papers print: other models, other data, other hardware.

BiLD: Kim et al., *Speculative Decoding with Big Little Decoder*, NeurIPS 2023. SD: Leviathan et al., *Fast Inference from
Transformers via Speculative Decoding*, ICML 2023. SpecCascade: Narasimhan et al., *Faster Cascades via Speculative
Decoding*, 2024. The numbers stand beside a report for orientation and are never mixed with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    """By the names of `tasks.evaluation.report.table.ROWS`."""
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


class Shares(NamedTuple):
    """BiLD, Tables 3 and 4, unaligned drafter: how often control went to the large model, and how often a draft fell."""

    dataset: str
    method: str
    configuration: str
    """In the paper's words."""
    quality: float
    speedup: float
    fallback_share: float | None = None
    """Table 4's "% Fallback"; the paper names no denominator."""
    rollback_share: float | None = None


SHARES = {
    "bleu": (
        Shares("IWSLT17 De-En", "speculative", "Rejection Sampling Based", 39.93, 1.28, 0.2324, 0.0981),
        Shares("IWSLT17 De-En", "bild", "BiLD (Match Latency)", 40.54, 1.23),
        Shares("IWSLT17 De-En", "bild", "BiLD (Match BLEU)", 39.87, 1.49),
        Shares("IWSLT17 De-En", "bild", "BiLD (Better BLEU)", 40.33, 1.43, 0.2109, 0.0156),
    ),
    "rouge": (
        Shares("XSum", "speculative", "Rejection Sampling Based", 35.00, 1.25, 0.3684, 0.2424),
        Shares("XSum", "bild", "BiLD (Match Latency)", 35.30, 1.42),
        Shares("XSum", "bild", "BiLD (Match ROUGE-L)", 34.96, 1.50),
        Shares("XSum", "bild", "BiLD (Better ROUGE-L)", 35.12, 1.48, 0.3233, 0.0641),
    ),
}

CASCADE_DATASETS = {"bleu": ("WMT En-De",), "rouge": ("XSum", "CNN/DM")}
"""Columns of SpecCascade's Table 2 by the kind of metric; BLEU there, and ROUGE-2."""
CASCADES: dict[str, tuple[str, dict[str, Figures]]] = {
    "sequence_cascade": ("SeqCascade [Chow]", {"WMT En-De": (16.56, 1.55), "XSum": (12.97, 0.84), "CNN/DM": (9.91, 0.98)}),
    "token_cascade": ("TokenCascade [Chow]", {"WMT En-De": (16.52, 1.03), "XSum": (13.30, 0.93), "CNN/DM": (10.36, 1.40)}),
    "speculative_lossy": ("SpecDecode [Lossy]", {"WMT En-De": (17.26, 1.61), "XSum": (13.90, 1.10), "CNN/DM": (10.43, 1.57)}),
    "speculative_cascade bild": ("BiLD*", {"WMT En-De": (16.49, 1.34), "XSum": (13.81, 1.04), "CNN/DM": (10.14, 1.38)}),
    "speculative_cascade chow": (
        "SpecCascade [Chow]",
        {"WMT En-De": (17.76, 1.43), "XSum": (13.82, 1.04), "CNN/DM": (10.28, 1.41)},
    ),
    "speculative_cascade diff": (
        "SpecCascade [Diff]",
        {"WMT En-De": (18.04, 1.79), "XSum": (14.00, 1.17), "CNN/DM": (10.64, 1.75)},
    ),
    "speculative_cascade opt": (
        "SpecCascade [OPT]",
        {"WMT En-De": (18.33, 1.95), "XSum": (14.10, 1.17), "CNN/DM": (10.86, 1.80)},
    ),
    "speculative_cascade token_v3": (
        "SpecCascade [Token]",
        {"WMT En-De": (22.50, 1.85), "XSum": (15.85, 1.18), "CNN/DM": (12.63, 1.89)},
    ),
}
"""SpecCascade, Table 2, T5-small with T5-large, T = 1, γ = 5: for each variant (a method, and its rule) the paper's name, and
for each data set the best quality within the large model's latency and the speed-up at the large model's quality."""


class Speculation(NamedTuple):
    """SD, Tables 2 and 4: T5 as drafter of T5-XXL (11B), batch 1 on one TPU v4."""

    dataset: str
    drafter: str
    temperature: float
    draft_length: int
    acceptance_rate: float
    """α, which Table 3 repeats."""
    cost_ratio: float
    """c, Table 4."""
    expected: float
    """By Theorem 3.8, as printed: theory."""
    speedup: float
    """As measured."""


SPECULATION = {
    "bleu": (
        Speculation("WMT En-De", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
        Speculation("WMT En-De", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
        Speculation("WMT En-De", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
        Speculation("WMT En-De", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
        Speculation("WMT En-De", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
        Speculation("WMT En-De", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    ),
    "rouge": (
        Speculation("CNN/DM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
        Speculation("CNN/DM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
        Speculation("CNN/DM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
        Speculation("CNN/DM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
        Speculation("CNN/DM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
        Speculation("CNN/DM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
    ),
}

THEORY = ((0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71),
          (0.9, 10, 1.60, 6.86))  # fmt: skip
"""SD, Table 1, c = ĉ = 0: α, γ, factor in operations (Theorem 3.11), speed-up (Theorem 3.8)."""


class Lenience(NamedTuple):
    """SD, appendix A.5 with Table 5: T5-small as drafter of T5-XXL on WMT En-De, c = 0.015."""

    temperature: float
    lenience: float
    acceptance_rate: float
    speedup: float


LENIENCE = (
    Lenience(0, 1.0, 0.75, 3.3), Lenience(0, 0.5, 0.75, 3.3), Lenience(0, 0.3, 0.80, 3.9), Lenience(0, 0.1, 0.87, 4.9),
    Lenience(1, 1.0, 0.62, 2.5), Lenience(1, 0.5, 0.71, 3.1), Lenience(1, 0.3, 0.76, 3.6), Lenience(1, 0.1, 0.84, 5.0),
)  # fmt: skip


def kind_of(metric: str) -> str:
    """The key of the published tables above: `bleu` of translation, `rouge` of summarization."""
    return "bleu" if metric == "bleu" else "rouge"
