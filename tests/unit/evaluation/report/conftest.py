"""Whole sweeps of both drafters, made up from simple laws: every method that a figure or a section of the page shows."""

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest

from tasks.evaluation.report.summarize import temperature_points
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.files import split_at
from tasks.evaluation.results.rows import OperatingPoint, Operations, SweepRow
from tasks.evaluation.results.summary import Summary
from tests.unit.evaluation.conftest import COSTS, SIZES, Records, Row, Sweeps, point_row, records, summary_record, untimed

LARGE, SMALL = 93.4, {"unaligned": 77.8, "aligned": 81.2}
AGREEMENT = {"unaligned": 0.84, "aligned": 0.9}
"""Chance that the large model keeps a token of the small one."""
EXAMPLES, TOKENS = 400, 6000
ENCODERS, STEP, VERIFY, OTHER = 0.62, 0.021, 0.235, 0.08
"""Milliseconds: both encoders, a small step, a run of the large model, and the rest for each example."""
LENGTH = TOKENS / EXAMPLES
SLOW = ENCODERS + LENGTH * VERIFY
TIMED = 60


def window(agreement: float, length: float) -> float:
    """Tokens kept of a draft of that length (Leviathan et al., 2023, equation 1, less the large model's own token)."""
    return sum(agreement**position for position in range(1, round(length) + 1))


def counts_of(agreement: float, length: float, fallbacks: bool) -> Row:
    """Counts of a method that drafts `length` tokens and keeps what is agreed on."""
    calls = round(TOKENS / (window(agreement, length) + 1))
    whole = round(length)
    kept = {f"{whole}/{n}": round(calls * agreement**n * (1 - agreement)) for n in range(whole)}
    kept[f"{whole}/{whole}"] = calls - sum(kept.values())
    return {
        "tokens": TOKENS,
        "small_steps": calls * whole,
        "large_calls": calls,
        "drafted": calls * whole,
        "accepted": sum(int(name.split("/")[1]) * count for name, count in kept.items()),
        "fallbacks": calls // 2 if fallbacks else 0,
        "rollbacks": calls - kept[f"{whole}/{whole}"],
        "layers": 0,
        "verified": {str(whole + 1): calls},
        "kept": kept,
    }


def row_of(arm: str, split: str, method: str, settings: Row, quality: float, counts: Row, why: str | None) -> Row:
    """One row; `why` None leaves it untimed."""
    draw = random.Random(f"{arm} {split} {method} {sorted(settings.items())}")
    alone = method == "vanilla_small"
    parts = {
        "encoders": ENCODERS / (3 if alone else 1),
        "small": counts["small_steps"] / EXAMPLES * STEP,
        "large": counts["large_calls"] / EXAMPLES * VERIFY,
        "other": OTHER if counts["drafted"] else 0.01,
    }
    noise = draw.gauss(0, 0.015)
    predicted = {"latency_ms": sum(parts.values()), "speedup": SLOW / sum(parts.values())}
    shift = -0.3 if split == "test" and method != "vanilla_large" else 0.0
    row = untimed(point_row(arm, split, method, settings, quality + shift, 1.0), 1.0) | {
        "task": "translation",
        "examples": EXAMPLES,
        "fingerprint": "0" * 16,
        "quality": {"bleu": quality + shift, "rougeL": quality + shift + 3},
        "quality_interval": [quality + shift - 1.5, quality + shift + 1.4],
        "quality_difference_interval": [quality + shift - LARGE - 0.6, quality + shift - LARGE + 0.5],
        "signature": "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "counts": counts,
        "predicted": predicted,
    }
    if why is None:
        return row
    speedup = predicted["speedup"] * (1 + noise) if method != "vanilla_large" else 1.0
    vanilla = [SLOW * draw.lognormvariate(0, 0.35) for _ in range(TIMED)]
    ratios = [speedup * draw.lognormvariate(0, 0.25) if method != "vanilla_large" else 1.0 for _ in vanilla]
    own = [time / ratio for time, ratio in zip(vanilla, ratios, strict=True)]
    speedup = sum(vanilla) / sum(own)
    times = {"latency_ms": own, "vanilla_latency_ms": vanilla, "speedup": speedup}
    return row | times | {"why": why, "speedup_interval": [speedup * 0.97, speedup * 1.03], "shown": SHOWN}


SHOWN = [
    {
        "source": "der Zug <script>alert('no')</script> fährt um halb neun ab",
        "references": ["the train leaves at half past eight"],
        "vanilla": "the train leaves at half past eight",
        "pieces": [["the ", "s"], ["train ", "s"], ["leaves ", "c"], ["at ", "s"], ["half past ", "l"], ["eight", "s"]],
    },
]


def baselines(arm: str, split: str) -> list[Row]:
    nothing = {"drafted": 0, "accepted": 0, "fallbacks": 0, "rollbacks": 0, "layers": 0, "kept": {}}
    large = {"tokens": TOKENS, "small_steps": 0, "large_calls": TOKENS, "verified": {"1": TOKENS}, **nothing}
    small = {"tokens": TOKENS, "small_steps": TOKENS, "large_calls": 0, "verified": {}, **nothing}
    return [
        row_of(arm, split, "vanilla_large", {}, LARGE, large, "baseline"),
        row_of(arm, split, "vanilla_small", {}, SMALL[arm], small, "baseline"),
    ]


def bild(arm: str, split: str, fallback: float, rollback: float, why: str | None) -> Row:
    """Quality falls with both thresholds' laxness; drafts grow shorter as fallback grows."""
    lax = (1.0 - fallback) * (0.35 + 0.65 * (1 - math.exp(-rollback / 4)))
    quality = LARGE + 0.15 - (LARGE - SMALL[arm]) * 0.75 * lax**1.7
    length = max(2, round(10 * (1.05 - fallback)))
    agreement = min(0.985, AGREEMENT[arm] + 0.035 * math.log1p(min(rollback, 50)))
    rolls_back = "inf" if math.isinf(rollback) else rollback
    settings = {"fallback_threshold": fallback, "rollback_threshold": rolls_back, "max_draft": 10}
    return row_of(arm, split, "bild", settings, quality, counts_of(agreement, length, fallbacks=True), why)


def lossy(arm: str, method: str, settings: Row, ease: float, slope: float, why: str | None) -> Row:
    """A method that keeps more the larger `ease`, and loses `slope` for it."""
    agreement = AGREEMENT[arm] + (0.99 - AGREEMENT[arm]) * ease
    quality = LARGE + 0.5 * ease * (1 - ease) - slope * (LARGE - SMALL[arm]) * ease**2
    length = settings.get("draft_length", 4)
    return row_of(arm, "validation", method, settings, quality, counts_of(agreement, length, fallbacks=False), why)


def validation(arm: str) -> list[Row]:
    rows = baselines(arm, "validation")
    rollbacks = (1.0, 2.0, 3.0, 5.0, math.inf)
    for index, (fallback, rollback) in enumerate(itertools.product((0.0, 0.5, 0.6, 0.7, 0.8, 0.9), rollbacks)):
        rows.append(bild(arm, "validation", fallback, rollback, (None, "frontier", "sample")[index % 3]))
    twin = {**rows[3], "settings": {**rows[3]["settings"], "max_draft": 12}, "same_as": rows[3]["settings"]}
    rows.append({name: value for name, value in twin.items() if name not in TIMES})
    for length in (3, 5, 7):
        rows.append(lossy(arm, "speculative", {"draft_length": length}, 0.0, 0.0, "anchor"))
    for lenience in (0.7, 0.5, 0.3, 0.1):
        lenient = {"draft_length": 5, "lenience": lenience}
        rows.append(lossy(arm, "speculative_lenient", lenient, (1 - lenience) / 2, 0.4, "frontier"))
    for rule, cost in itertools.product(("chow", "opt", "token_v3"), (0.1, 0.3, 0.5, 0.8)):
        settings: Row = {"draft_length": 5, "rule": rule, "deferral_cost": cost}
        slope = {"chow": 0.5, "opt": 0.35, "token_v3": 0.2}[rule]
        rows.append(lossy(arm, "speculative_cascade", settings, cost, slope, "frontier" if cost < 0.4 else None))
    for cost in (0.2, 0.4, 0.6):
        rows.append(lossy(arm, "token_cascade", {"deferral_cost": cost, "max_draft": 10}, cost, 0.8, None))
    for threshold in (0.5, 1.0, 2.0, 4.0):
        rows.append(oracle(arm, threshold))
    failed = {"fallback_threshold": 0.1, "rollback_threshold": 2.0, "max_draft": 10}
    lost = {name: rows[0][name] for name in ("task", "arm", "split", "sampling", "metric", "fingerprint", "lossless")}
    return [*rows, {**lost, "method": "bild", "settings": failed, "error": "RuntimeError: out of memory"}]


TIMES = ("why", "latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "shown")


def oracle(arm: str, threshold: float) -> Row:
    share = (1 - AGREEMENT[arm]) * 1.4 * math.exp(-threshold / 3)
    quality = LARGE + 0.3 - (LARGE - SMALL[arm]) * math.exp(-share * 30)
    counts = counts_of(1 - share, 1, fallbacks=False) | {
        "small_steps": TOKENS,
        "large_calls": TOKENS,
        "drafted": TOKENS,
        "accepted": round(TOKENS * (1 - share)),
        "rollbacks": round(TOKENS * share),
    }
    return row_of(arm, "validation", "bild_oracle", {"rollback_threshold": threshold}, quality, counts, None)


def pair_of(arm: str) -> Row:
    """What the sweep writes about its two models."""
    sizes = {**SIZES, "parameters": 2_100_000, "decoder_parameters": 1_400_000, "layers": 8, "width": 128}
    return {
        "arm": arm,
        "runtime": "native, float32, 1 thread",
        "lineage": {"git_commit": "0123456789abcdef0123456789abcdef01234567", "host_cpu": "a CPU of two cores"},
        "costs": {**COSTS, "small_step_ms": STEP, "verify_ms": {"1": VERIFY, "6": VERIFY * 1.2}, "cost_ratio": STEP / VERIFY},
        "acceptance": [
            {"rate": AGREEMENT[arm], "interval": [0.83, 0.91], "tokens": TOKENS},
            {"temperature": 1.0, "rate": 0.78, "interval": [0.76, 0.8], "tokens": TOKENS},
        ],
        "sizes": {"small": {**sizes, "parameters": 300_000}, "large": sizes},
        "plan": {
            "points": 54,
            "replayed": 54,
            "distinct": 53,
            "timed": 33,
            "replay_seconds": 21.5,
            "timing_seconds": 140.2,
            "prediction_error": {"points": 10, "mean": 0.021, "worst": 0.046},
        },
    }


@pytest.fixture(scope="session")
def full_sweeps() -> Sweeps:
    """Both drafters' rows: about fifty points each on validation, some not timed, one failed, and two on test."""
    sweeps = {}
    for arm in ("unaligned", "aligned"):
        rows = validation(arm)
        chosen = [row for row in rows if row["method"] in ("bild", "speculative") and "speedup" in row]
        tests = [{**row, "split": "test", "why": "chosen"} for row in chosen]
        sweeps[arm] = [*rows, *baselines(arm, "test"), *tests]
    return sweeps


@pytest.fixture(scope="session")
def full_rows(full_sweeps: Sweeps) -> Records:
    """The same as records."""
    return {arm: records(rows) for arm, rows in full_sweeps.items()}


@pytest.fixture(scope="session")
def full_record(full_sweeps: Sweeps) -> Summary:
    """Their summary, with the operations of each point as a theory would give them."""
    pairs = {arm: pair_of(arm) for arm in full_sweeps}
    summary = summary_record("bleu", full_sweeps, pairs, task="translation", dataset="iwslt17-de-en")
    points = [dataclasses.replace(point, operations=work_of(point)) for point in summary.points]
    return dataclasses.replace(summary, points=points)


def work_of(point: OperatingPoint) -> Operations | None:
    calls = point.large_calls_per_token
    return Operations(flops=1.15, bytes=calls, intensity=1.15 / calls) if calls else None


@pytest.fixture(scope="session")
def full_summary(full_record: Summary) -> dict[str, Any]:
    """Its JSON values."""
    return encode(full_record, digits=6)


def at(rows: list[Row], temperature: float, shift: float) -> list[SweepRow]:
    """The rows of validation as a further temperature would have them, all qualities `shift` points higher."""
    found = []
    for row in rows:
        if row["split"] == "validation" and "error" not in row:
            quality = {name: value + shift for name, value in row["quality"].items()}
            sampling = {**row["sampling"], "temperature": temperature}
            bounds = {"lower": 0.0, "upper": 1.0, "compared": 1}  # by which validation would choose any of them
            warmer = {"split": split_at(temperature), "quality": quality, "sampling": sampling}
            found.append({"difference_bounds": bounds, **row, **warmer})
    return records(found)


@pytest.fixture(scope="session")
def warmed(full_sweeps: Sweeps, full_record: Summary) -> Summary:
    """The summary with two further temperatures of the unaligned sweep."""
    rows = {("unaligned", degree): at(full_sweeps["unaligned"], degree, -10 * degree) for degree in (1.0, 0.5)}
    return dataclasses.replace(full_record, temperatures=temperature_points("translation", rows, full_record.pairs))
