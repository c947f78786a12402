"""Breaks of the loop and of what repeats it: the turn, the replay, compositions, beams."""

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_TURN, _LOOP, _REPLAY, _PREDICTIONS = (f"tasks.decoding.{name}" for name in ("turn", "loop", "replay", "predictions"))
_METHODS = "tasks.decoding.methods"
_EXECUTORS = f"{_UNIT}/test_executors.py::test_an_executor_takes_the_written_out_turns"
_EVERY_CALLER = tuple(f"{_EXECUTORS}[{name}]" for name in ("loop", "native", "replay"))
_PYTHON_CALLERS = tuple(f"{_EXECUTORS}[{name}]" for name in ("loop", "replay"))
"""The kernel decides by itself when a draft ends."""
_REPLAYED = (f"{_UNIT}/replay/test_replay.py::test_a_replay_equals_decoding_by_any_runtime",)


def _turn(name: str, symbol: str, old: str, new: str, tests: tuple[str, ...] = _EVERY_CALLER) -> Break:
    """A break of the turn, which the tests of each executor have to notice."""
    return Break(name, _TURN, f"TurnRules.{symbol}", old, new, tests, every=True)


BREAKS = (
    # The turn.
    _turn("limit-passed-by-one", "finish", ">= self.limit", "> self.limit"),
    _turn("rollback-counted-for-whole-drafts", "finish", "kept < drafted", "kept <= drafted"),
    _turn("fallbacks-not-counted", "finish", "counts.fallbacks += fallback", "counts.fallbacks += 0"),
    _turn("corrected-token-counted-as-large", "finish", "LARGE if kept == drafted else CORRECTED", "LARGE"),
    _turn("drafted-counted-as-accepted", "finish", "counts.accepted += kept", "counts.accepted += drafted"),
    _turn("window-one-too-long", "budget", "min(rule.window, left)", "min(rule.window + 1, left)", _PYTHON_CALLERS),
    _turn("no-room-for-the-bonus-token", "budget",
          " - (self.bonus and not rule.ends_unverified)", "", _PYTHON_CALLERS),
    _turn("end-token-followed", "adds_bonus",
          " and not (drafted and drafted[-1] in self.end_tokens)", "", _PYTHON_CALLERS),
    _turn("end-token-ends-no-text", "finish", " or tokens[-1] in self.end_tokens", "", _PYTHON_CALLERS),
    Break("draft-runs-past-end-token", _TURN, "TurnRules.cut",
          "drafted[: end + 1]", "drafted[: end + 2]", (f"{_UNIT}/test_turn.py",)),
    # The general loop.
    Break("rewind-keeps-rejected-token", _LOOP, "_finish", "min(cached, len(row.tokens) - 1)",
          "min(cached, len(row.tokens))", (f"{_UNIT}/test_invariants.py",)),
    Break("accepts-one-token-less", _LOOP, "_accept",
          "range(len(drafted))", "range(len(drafted) - 1)", (f"{_EXECUTORS}[loop]",)),
    Break("draws-ignore-the-example", "tasks.decoding.distributions", "TokenSource.uniform",
          "number in key]", "number in (0, *key[1:])]",
          (f"{_UNIT}/test_distributions.py::test_a_uniform_depends_on_its_key_alone",)),
    Break("nucleus-drops-the-crossing-token", "tasks.decoding.distributions", "_outside_nucleus",
          "ordered.cumsum(-1) - ordered < top_p", "ordered.cumsum(-1) < top_p", (f"{_UNIT}/test_distributions.py",)),
    Break("rollback-below-threshold-only", "tasks.decoding.rules", "within_bounds",
          "<= bounds.max_surprisal", "< bounds.max_surprisal", (f"{_UNIT}/test_rules.py",)),
    # The replay.
    Break("replay-counts-tokens-as-steps", _REPLAY, "_Replayer.run",
          "steps=steps + extra_steps", "steps=len(drafted)", _REPLAYED),
    Break("replay-reads-a-stale-cache", _PREDICTIONS, "PredictionCache._run",
          "min(common_prefix(started.cached, tokens), len(tokens) - positions)", "len(tokens) - positions", _REPLAYED),
    Break("replay-fails-beyond-what-was-asked", _PREDICTIONS, "PredictionCache.read",
          "self._record(model, missing, self._run(model, missing[-1], len(missing)))", "raise",
          (f"{_UNIT}/replay/test_replay.py::test_broken_logits_beyond_what_was_asked_for_are_no_error",)),
    # Recorded points.
    Break("former-switch-refused-where-it-is-off", "tasks.decoding.registry", "configure_method",
          "value is not False or ", "", (f"{_UNIT}/test_pair_folder.py",)),
    # Cascades in numbers, compositions, beams.
    Break("cascade-numbers-read-the-wrong-bound", "tasks.decoding.cascades", "in_numbers",
          "1 - alpha if", "alpha if", (f"{_UNIT}/test_native_loop.py",)),
    Break("sequence-cascade-defers-at-the-bound", f"{_METHODS}.cascades", "SequenceCascade.run",
          "confidence < 1 - ", "confidence <= 1 - ",
          (f"{_UNIT}/test_cascades.py::test_a_sequence_as_confident_as_the_bound_is_kept",)),
    Break("beam-score-is-not-a-mean", f"{_METHODS}.beam", "Search.advance",
          "beam.score / self.generated", "beam.score",
          (f"{_UNIT}/test_beams.py::test_beam_search_equals_the_plain_search",)),
)  # fmt: skip
