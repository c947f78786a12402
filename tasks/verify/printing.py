"""Writes a comparison with another engine: a table and a verdict for people, one object for programs."""

from __future__ import annotations

from typing import Any

from tasks.decoding.generation import Counts
from tasks.evaluation.mismatches import MARGIN_TOLERANCE
from tasks.verify.comparison import (
    ACCEPTED_SHARE,
    Comparison,
    Engine,
    Measure,
    accepted_share,
    mean_accepted_length,
    tokens_per_call,
)

_CALLS = "calls of the large model"
_OF_DRAFTS = ("", "drafted", "accepted", "share", "mean accepted length", _CALLS)
_OF_CALLS = ("", "tokens", _CALLS, "tokens per call")


def described(found: Comparison, engine: Engine) -> str:
    """Return the counts of both, and of the certificate where there is one."""
    rows: list[tuple[str, ...]] = [_OF_DRAFTS if found.measure is ACCEPTED_SHARE else _OF_CALLS]
    rows.append(_row("Draftline", vars(found.certifiable), found.measure))
    if not engine.drafts_on_prompt:
        rows.append(_row("Draftline, first token undrafted", vars(found.ours), found.measure))
    rows.append(_row(f"{engine.name} {engine.version}", vars(found.theirs), found.measure))
    if found.certificate is not None:
        rows.append(_row("certificate", found.certificate, found.measure))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    texts = f"{found.texts} texts, greedy, float32, {found.draft_length} tokens drafted at a time"
    return "\n".join([texts, *table, _about_certificate(found), _about_texts(found)])


def _row(name: str, counts: dict[str, Any], measure: Measure) -> tuple[str, ...]:
    calls = counts["large_calls"]
    if measure is not ACCEPTED_SHARE:
        return name, str(counts["tokens"]), str(calls), f"{counts['tokens'] / calls if calls else 0.0:.4f}"
    drafted, accepted = counts["drafted"], counts["accepted"]
    share, length = (accepted / part if part else 0.0 for part in (drafted, calls))
    return name, str(drafted), str(accepted), f"{share:.4f}", f"{length:.3f}", str(calls)


def _about_certificate(found: Comparison) -> str:
    record = found.certificate
    if record is None:
        return f"certificate: the pair has none for {found.draft_length} drafted tokens"
    of = f"certificate: of {record['examples']} texts of {record['split']}"
    if found.reproduced is None:
        return f"{of}, so its counts are not those of these {found.texts} texts"
    return f"{of}; Draftline's counts on these texts {'equal it' if found.reproduced else 'differ from it'}"


def _about_texts(found: Comparison) -> str:
    if not found.mismatches:
        return "tokens: equal in every text"
    rounding = len(found.mismatches) - len(found.differing)
    split = f"tokens: {len(found.mismatches)} of {found.texts} texts differ"
    if rounding:
        split += f", {rounding} of them where the large model's two highest logits are within {MARGIN_TOLERANCE:g}"
    return split


def verdict(found: Comparison) -> str:
    """Return the last line: whether the certificate holds, and why not."""
    shares = f"the {found.measure.name} differs by {found.difference:.4f} (at most {found.tolerance:g})"
    if found.holds:
        return f"holds: {shares}"
    reasons = [shares] if found.difference > found.tolerance else []
    if found.differing:
        first = found.differing[0].example + 1
        reasons.append(f"{len(found.differing)} texts differ by more than rounding, the first of them text {first}")
    return f"does not hold: {'; '.join(reasons)}"


def as_json(found: Comparison, engine: Engine) -> dict[str, Any]:
    """Return everything that was compared, as plain values."""
    return {
        "engine": engine.name,
        "version": engine.version,
        "holds": found.holds,
        "texts": found.texts,
        "draft_length": found.draft_length,
        "measure": found.measure.name,
        "difference": found.difference,
        "tolerance": found.tolerance,
        "draftline": _plain(found.certifiable, ACCEPTED_SHARE),
        **({} if engine.drafts_on_prompt else {"draftline_first_token_undrafted": _plain(found.ours, ACCEPTED_SHARE)}),
        engine.name: _plain(found.theirs, found.measure),
        "mismatches": [vars(mismatch) for mismatch in found.mismatches],
        "certificate": found.certificate,
        "reproduced": found.reproduced,
    }


def _plain(counts: Counts, measure: Measure) -> dict[str, float]:
    found = {"tokens": counts.tokens, "large_calls": counts.large_calls, "tokens_per_call": tokens_per_call(counts)}
    if measure is not ACCEPTED_SHARE:
        return found
    drafts = {"drafted": counts.drafted, "accepted": counts.accepted}
    return {**drafts, **found, "accepted_share": accepted_share(counts), "mean_accepted_length": mean_accepted_length(counts)}
