"""How many drafted tokens of a method were accepted, from its counts."""

from __future__ import annotations

from collections import Counter

from tasks.evaluation.results.rows import DecodingCounts


def accepted_lengths(counts: DecodingCounts) -> dict[int, int]:
    """Verified drafts by how many of their tokens were kept, from none to the longest draft's length.

    Args:
        counts: with `kept`, else nothing is counted.
    """
    drafts = _drafts(counts)
    found: Counter[int] = Counter()
    for (_, kept), number in drafts.items():
        found[kept] += number
    longest = max((drafted for drafted, _ in drafts), default=-1)
    return {kept: found[kept] for kept in range(longest + 1)}


def acceptance_by_position(counts: DecodingCounts) -> list[float]:
    """P(token i of a draft is kept | all before it were, and it exists), for i = 1, 2, …, up to the last position reached.

    Args:
        counts: with `kept`, else the list is empty.
    """
    drafts = _drafts(counts)
    shares = []
    for position in range(1, max((drafted for drafted, _ in drafts), default=0) + 1):
        reached = sum(number for (drafted, kept), number in drafts.items() if drafted >= position and kept >= position - 1)
        if not reached:
            break
        shares.append(sum(number for (_, kept), number in drafts.items() if kept >= position) / reached)
    return shares


def _drafts(counts: DecodingCounts) -> dict[tuple[int, int], int]:
    """Drafts by the numbers of drafted and of kept tokens."""
    split = ((key.split("/"), number) for key, number in (counts.kept or {}).items())
    return {(int(drafted), int(kept)): number for (drafted, kept), number in split}
