"""The papers' other tables for one task of ours, as plain rows: what was measured here, then what they print.

Every row says in `source` which of the two it is. Theory stands in columns of its own (`expected_…`). A table of which
nothing was measured is empty, and the published rows alone are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tasks.decoding.adaptive import expected_operations, expected_speedup
from tasks.evaluation.frontier import Point, choose
from tasks.evaluation.report import published
from tasks.paths import DRAFTERS

Row = dict[str, Any]
MEASURED, PUBLISHED = "measured", "published"
METHOD_NAMES = {"bild": "BiLD", "calm": "CALM"}
_SHOWN = ("quality", "quality_interval", "quality_difference", "quality_difference_interval", "speedup", "speedup_interval")


def paper_tables(summary: Mapping[str, Any]) -> dict[str, list[Row]]:
    """All of them by name, measured rows first.

    Args:
        summary: `metric`, `points`, `choices`, `vanilla` and `pairs` of the summary; all points are of the validation split.
    """
    kind = published.kind_of(summary["metric"])
    makers: dict[str, tuple[Callable[[Mapping[str, Any]], Iterable[Row]], Callable[[str], Iterable[Row]]]] = {
        "shares": (_shares, _published_shares),
        "cascade": (_cascade, _published_cascade),
        "speculative": (_speculative, _published_speculative),
        "lenience": (_lenience, _published_lenience),
    }
    tables = {}
    for name, (measured, printed) in makers.items():
        own: list[Row] = [{"source": MEASURED, **row} for row in measured(summary)]
        tables[name] = own + [{"source": PUBLISHED, **row} for row in printed(kind)] if own else []
    return tables


def method_name(method: str) -> str:
    """A method in words: `bild` is BiLD, `speculative_lossy` speculative lossy."""
    return METHOD_NAMES.get(method, method.replace("_", " "))


def _own(summary: Mapping[str, Any], drafter: str, method: str) -> list[Row]:
    """The points of a method: what is counted of them is exact, whether they were timed or not."""
    return [point for point in summary["points"] if point["drafter"] == drafter and point["method"] == method]


def _timed(summary: Mapping[str, Any], drafter: str, method: str) -> list[Row]:
    return [point for point in _own(summary, drafter, method) if point["timed"]]


def _as_points(points: Sequence[Row]) -> list[Point]:
    return [Point(point["quality"], point["speedup"]) for point in points]


def _copied(point: Mapping[str, Any]) -> Row:
    return {"drafter": point["drafter"], "settings": point["settings"], **{name: point[name] for name in _SHOWN}}


def _shares(summary: Mapping[str, Any]) -> Iterable[Row]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share
    also for a fixed window, which no doubt ends: there a fallback can only be control handed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    chosen = {(c["drafter"], c["method"], c["choice"]): c["point"] for c in summary["choices"] if c["point"] is not None}
    for drafter in DRAFTERS:
        bild, points = _timed(summary, drafter, "bild"), summary["points"]
        found: dict[str, Row] = {}
        if (drafter, "speculative", "no_loss") in chosen:
            speculative = points[chosen[drafter, "speculative", "no_loss"]]
            found["speculative"] = speculative
            fast = [point for point in bild if point["speedup"] >= speculative["speedup"]]
            if fast:
                found["BiLD as fast as speculative"] = max(fast, key=lambda point: (point["quality"], point["speedup"]))
            place = choose(_as_points(bild), speculative["quality"], 0.0)
            if place is not None:
                found["BiLD as good as speculative"] = bild[place]
        for choice, words in (("no_loss", "BiLD, no loss"), ("one_point", "BiLD, ≤ 1 point")):
            if (drafter, "bild", choice) in chosen:
                found[words] = points[chosen[drafter, "bild", choice]]
        for label, point in found.items():
            yield {
                "label": f"{label}, {drafter}",
                "method": point["method"],
                **_copied(point),
                **_token_shares(point["counts"]),
            }


def _token_shares(counts: Mapping[str, Any]) -> Row:
    tokens = counts.get("tokens")
    return {
        "fallback_share": counts.get("large_calls", 0) / tokens if tokens else None,
        "rollback_share": counts.get("rollbacks", 0) / tokens if tokens else None,
    }


def _published_shares(kind: str) -> Iterable[Row]:
    for row in published.SHARES[kind]:
        yield {"label": f"{row.configuration}, {row.dataset}", "drafter": "unaligned", **row._asdict()}


def _variant(point: Mapping[str, Any]) -> tuple[str, str]:
    """Method and rule, as SpecCascade's Table 2 tells methods apart, and what drafts where it is not the small model."""
    drafts = point["settings"].get("drafter", "small")
    rule = point["settings"].get("rule")
    return " ".join(filter(None, (point["method"], rule))), "" if drafts == "small" else drafts


def _cascade(summary: Mapping[str, Any]) -> Iterable[Row]:
    """SpecCascade, Table 2: how fast at the large model's quality, and how good within the large model's latency."""
    for drafter in DRAFTERS:
        timed = [point for point in summary["points"] if point["timed"] and point["drafter"] == drafter]
        for variant, drafts in dict.fromkeys(map(_variant, timed)):
            own = [point for point in timed if _variant(point) == (variant, drafts)]
            # Every sweep has its own run of vanilla; its quality is what the differences were taken from.
            equal = choose(_as_points(own), own[0]["quality"] - own[0]["quality_difference"], 0.0)
            within = [point for point in own if point["speedup"] >= 1.0]
            best = max(within, key=lambda point: (point["quality"], point["speedup"]), default=None)
            method, _, rule = variant.partition(" ")
            words = [method_name(method) + (f" [{rule}]" if rule else ""), drafts and f"drafts: {drafts}", drafter]
            yield {
                "label": ", ".join(filter(None, words)),
                "variant": variant,
                "drafter": drafter,
                "timed": len(own),
                "at_quality": None if equal is None else _copied(own[equal]),
                "at_latency": None if best is None else _copied(best),
            }


def _published_cascade(kind: str) -> Iterable[Row]:
    for variant, (name, columns) in published.CASCADES.items():
        for dataset in published.CASCADE_DATASETS[kind]:
            quality, speedup = columns[dataset]
            yield {
                "label": f"{name}, {dataset}",
                "variant": variant,
                "dataset": dataset,
                "at_quality": {"speedup": speedup},
                "at_latency": {"quality": quality},
            }


def _speculative(summary: Mapping[str, Any]) -> Iterable[Row]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    for drafter in DRAFTERS:
        pair = summary["pairs"][drafter] or {}
        ratio = (pair.get("costs") or {}).get("cost_ratio")
        operations = _operations_ratio(pair.get("sizes") or {})
        for point in _own(summary, drafter, "speculative"):
            length = point["settings"]["draft_length"]
            # α and c are of the small model; whatever else drafts has others.
            known = point["settings"].get("drafter", "small") == "small"
            alpha = _acceptance(pair, point) if known else {}
            rate: float | None = alpha.get("rate")
            yield {
                "label": f"speculative, {drafter}, γ {length}",
                **_copied(point),
                "temperature": (point["sampling"] or {}).get("temperature", 0.0),
                "draft_length": length,
                "acceptance_rate": rate,
                "acceptance_interval": alpha.get("interval"),
                "cost_ratio": ratio if known else None,
                "expected_speedup": _theory(expected_speedup, rate, length, ratio),
                "expected_operations": _theory(expected_operations, rate, length, operations),
            }


def _theory(
    theorem: Callable[[float, int, float], float], rate: float | None, length: int, ratio: float | None
) -> float | None:
    return None if rate is None or ratio is None else theorem(rate, length, ratio)


def _acceptance(pair: Mapping[str, Any], point: Mapping[str, Any]) -> Mapping[str, Any]:
    """α of the way of sampling that the point was decoded with; empty where another one was measured."""
    sampling, measured = point["sampling"] or {}, pair.get("acceptance") or {}
    temperature = sampling.get("temperature", 0.0)
    if temperature == 0:
        return measured.get("greedy") or {}
    sampled = measured.get("sampled") or {}
    whole = not sampling.get("top_k") and sampling.get("top_p", 1.0) == 1
    return sampled if whole and sampled.get("temperature") == temperature else {}


def _operations_ratio(sizes: Mapping[str, Any]) -> float | None:
    """ĉ: the weights that a token is multiplied with in the small decoder over those in the large one."""
    small, large = ((sizes.get(name) or {}).get("decoder_parameters") for name in ("small", "large"))
    return small / large if small and large else None


def _published_speculative(kind: str) -> Iterable[Row]:
    for row in published.SPECULATION[kind]:
        found = row._asdict()
        expected = found.pop("expected")
        yield {"label": f"{row.drafter}, {row.dataset}", **found, "expected_speedup": expected}


def _lenience(summary: Mapping[str, Any]) -> Iterable[Row]:
    """SD, Table 5: what lenience gains, and costs. `checked_share` is of the tokens that were checked, not of all drafted."""
    for drafter in DRAFTERS:
        for point in _own(summary, drafter, "speculative_lenient"):
            counts, settings = point["counts"], point["settings"]
            checked = counts.get("accepted", 0) + counts.get("rollbacks", 0)
            yield {
                "label": f"speculative lenient, {drafter}, γ {settings['draft_length']}",
                **_copied(point),
                "temperature": (point["sampling"] or {}).get("temperature", 0.0),
                "draft_length": settings["draft_length"],
                "lenience": settings["lenience"],
                "accepted_share": point["accepted_share"],
                "checked_share": counts["accepted"] / checked if checked else None,
            }


def _published_lenience(kind: str) -> Iterable[Row]:
    if kind == "bleu":  # the paper has this table for translation alone
        for row in published.LENIENCE:
            yield {"label": "T5-small, WMT En-De", **row._asdict()}
