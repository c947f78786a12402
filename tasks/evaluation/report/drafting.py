"""What is known of what drafts at a point: its acceptance rate, and its cost in time and in operations."""

from __future__ import annotations

from tasks.decoding.method import LOOK_UPS
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord
from tasks.evaluation.results.rows import OperatingPoint


def acceptance_of(pair: PairRecord, point: OperatingPoint) -> AcceptanceRate | None:
    """α of what drafts at a point, by the point's sampling and lenience; None where it was measured for others only."""
    sampling, lenience = point.sampling, point.settings.get("lenience")
    drafter, lenience = str(point.settings.get("drafter", "small")), 1.0 if lenience is None else float(lenience)
    if sampling is None or sampling.temperature == 0:
        return pair.acceptance_rate(drafter=drafter, lenience=lenience)
    sampled = pair.acceptance_rate(sampled=True, drafter=drafter, lenience=lenience)
    untruncated = not sampling.top_k and sampling.top_p == 1
    return sampled if sampled is not None and untruncated and sampled.temperature == sampling.temperature else None


def cost_of(pair: PairRecord, point: OperatingPoint) -> float | None:
    """c of what drafts at a point: measured for the small model, 0 without a model as in the paper, else None."""
    drafter = point.settings.get("drafter", "small")
    return 0.0 if drafter in LOOK_UPS else pair.cost_ratio if drafter == "small" else None


def work_of(pair: PairRecord, point: OperatingPoint) -> float | None:
    """ĉ of what drafts at a point."""
    drafter = point.settings.get("drafter", "small")
    if drafter in LOOK_UPS:
        return 0.0
    return pair.sizes.decoder_ratio if pair.sizes is not None and drafter == "small" else None
