"""Writes a comparison with another engine: a table and a verdict for people, one object for programs."""

from __future__ import annotations

from typing import Any

from tasks.decoding.generation import Counts
from tasks.evaluation.mismatches import MARGIN_TOLERANCE
from tasks.verify.comparison import Comparison, Engine, accepted_share, mean_accepted_length

_HEADER = ("", "drafted", "accepted", "share", "mean accepted length", "calls of the large model")


def described(found: Comparison, engine: Engine) -> str:
    """Return the counts of both, and of the certificate where there is one."""
    rows = [_HEADER, _row("Draftline", vars(found.ours)), _row(f"{engine.name} {engine.version}", vars(found.theirs))]
    if found.certificate is not None:
        rows.append(_row("certificate", found.certificate))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    texts = f"{found.texts} texts, greedy, float32, {found.draft_length} tokens drafted at a time"
    return "\n".join([texts, *table, _about_certificate(found), _about_texts(found)])


def _row(name: str, counts: dict[str, Any]) -> tuple[str, ...]:
    drafted, accepted, calls = (counts[key] for key in ("drafted", "accepted", "large_calls"))
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
    shares = f"the accepted share differs by {found.difference:.4f} (at most {found.tolerance:g})"
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
        "difference": found.difference,
        "tolerance": found.tolerance,
        "draftline": _plain(found.ours),
        engine.name: _plain(found.theirs),
        "mismatches": [vars(mismatch) for mismatch in found.mismatches],
        "certificate": found.certificate,
        "reproduced": found.reproduced,
    }


def _plain(counts: Counts) -> dict[str, float]:
    whole = {name: getattr(counts, name) for name in ("drafted", "accepted", "large_calls", "tokens")}
    return {**whole, "accepted_share": accepted_share(counts), "mean_accepted_length": mean_accepted_length(counts)}
