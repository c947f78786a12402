"""A replay from cached predictions equals decoding: tokens, proposers, counts, log-probabilities."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import AUTO, REFERENCE, BrokenLogitsError, Runtime
from tasks.decoding.distributions import CachedStatistics
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods import cascades
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import LARGE_MODEL, SMALL_MODEL, PredictionCache, PrefixTrie, TrieNode, load_trie
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.replay import NotReplayableError, replay_pair
from tests.architectures import pair_of
from tests.methods import DECODED_ONLY, SETTINGS
from tests.toys import END, Prefix, prefix_pair, says, toy_sources

SOURCES = toy_sources(5)
GREEDY: list[tuple[str, Any]] = [
    *((method, settings) for method, several in SETTINGS.items() if method not in DECODED_ONLY for settings in several),
    ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=0.0, max_draft=1)),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=math.inf)),
    ("sequence_cascade", cascades.SequenceCascadeSettings(confidence="sum", deferral_cost=0.6)),
    *(
        ("speculative_cascade", cascades.SpeculativeCascadeSettings(rule=rule, deferral_cost=0.3, draft_length=4))
        for rule in cascades.CASCADE_RULES
    ),
]
TABLES = [
    (method, dataclasses.replace(settings, drafter=drafter))
    for method, settings in (
        ("speculative", SpeculativeSettings(draft_length=3)),
        ("bild", BildSettings()),
        ("speculative_cascade", cascades.SpeculativeCascadeSettings(rule="token_v2", deferral_cost=0.2, draft_length=3)),
    )
    for drafter in ("unigram", "bigram", "copy", "suffix", "random")
]
FEW = GREEDY[::4]


CASES = [
    *(("t5", REFERENCE, *case) for case in GREEDY[::10]),
    *(("t5", AUTO, *case) for case in (*GREEDY, *TABLES)),
    # With prompts.
    *(("llama", AUTO, *case) for case in (*GREEDY[::9], *TABLES[::2], *TABLES[1::6])),
]


def rounded(generations: Any) -> Any:
    """Log-probabilities computed in a batch may differ in the last digits."""
    return [
        dataclasses.replace(one, log_probabilities=[pytest.approx(value, abs=1e-4) for value in one.log_probabilities])
        for one in generations
    ]


@pytest.mark.parametrize(("name", "runtime", "method", "settings"), CASES)
def test_a_replay_equals_decoding_by_any_runtime(name: str, runtime: Runtime, method: str, settings: Any) -> None:
    """Decoded one source at a time."""
    pair = dataclasses.replace(pair_of(name, runtime), calibration=[[3, 4, 5, 1], [4, 3, 4, 1]])
    request = Request(14)
    decoded = [decode(method, settings, pair, [source], request, [number])[0] for number, source in enumerate(SOURCES)]
    assert decode(method, settings, replay_pair(pair, PredictionCache(pair)), SOURCES, request) == rounded(decoded)


def test_the_small_model_s_log_probabilities_are_replayed() -> None:
    pair = pair_of("t5")
    pairs, settings = (pair, replay_pair(pair, PredictionCache(pair))), cascades.SequenceCascadeSettings()
    methods = [METHODS["sequence_cascade"].make(settings, one, Request(9)) for one in pairs]
    decoded, replayed = (method.small.run(SOURCES, range(len(SOURCES)), 9) for method in methods)  # type: ignore[attr-defined]  # cascades have it
    assert any(one.log_probabilities for one in decoded)
    assert replayed == rounded(decoded)


def test_drafts_that_end_at_other_entropies_are_told_apart() -> None:
    pair, cached, request = pair_of("t5"), pair_of.__wrapped__("t5"), Request(14)
    # Decoders of its own: a cache knows nothing of another start of its models.
    replaying = replay_pair(cached, PredictionCache(cached))
    bounds = [cascades.TokenCascadeSettings(rule="chow_log", deferral_cost=cost, max_draft=6) for cost in (0.8, 1.6)]
    for source in SOURCES:
        for settings in bounds:
            [decoded], [replayed] = (decode("token_cascade", settings, one, [source], request) for one in (pair, replaying))
            assert replayed == decoded


def test_known_predictions_are_not_run_again() -> None:
    pair = pair_of("t5")
    cache = PredictionCache(pair)
    replaying = replay_pair(pair, cache)
    for method, settings in FEW:
        decode(method, settings, replaying, SOURCES[:1], Request(14))
    runs = cache.runs
    assert runs < 60
    for method, settings in FEW:
        decode(method, settings, replaying, SOURCES[:1], Request(14))
    assert cache.runs == runs


def test_a_score_that_was_not_kept_is_looked_up_without_a_run() -> None:
    pair = pair_of("t5")
    cache = PredictionCache(pair)
    cache.open_source(SOURCES[0])
    nodes = [cache.trie.root, cache.trie.root.step(3), cache.trie.root.step(3).step(4)]
    known = cache.read(LARGE_MODEL, nodes)
    runs = cache.runs
    for length, statistics in enumerate(known):
        [start] = pair.large.start(pair.large.encode(SOURCES[:1]))
        scores = torch.softmax(pair.large.forward([start + [3, 4][:length]]).logits[0, -1], -1)
        for token in range(pair.large.vocabulary):
            assert statistics.of(token) == pytest.approx(float(scores[token]), abs=1e-6)
            assert statistics.surprisal(token) == pytest.approx(-math.log(scores[token]), abs=1e-4)
    assert cache.runs == runs


def test_broken_logits_beyond_what_was_asked_for_are_no_error() -> None:
    def broken(source: Prefix, text: Prefix) -> torch.Tensor:
        logits = says([3, 4, END])(source, text)
        return torch.full_like(logits, math.nan) if len(text) > 2 else logits

    cache = PredictionCache(prefix_pair(says([3, 4, END]), broken))
    cache.open_source(SOURCES[0])
    root = cache.trie.root
    nodes = [root, root.step(3), root.step(3).step(4)]
    cache.read(SMALL_MODEL, nodes)
    assert [one.argmax for one in cache.read(LARGE_MODEL, nodes[:2])] == [3, 4]
    with pytest.raises(BrokenLogitsError, match="large model"):
        cache.read(LARGE_MODEL, nodes)


def test_tries_are_saved_and_loaded(tmp_path: Path) -> None:
    pair = pair_of("t5")
    wanted = [decode(method, settings, pair, SOURCES[:1], Request(14)) for method, settings in FEW]
    for round_ in range(2):
        cache = PredictionCache(pair, tmp_path)
        cache.open_source(SOURCES[0], "first")
        found = [decode(method, settings, replay_pair(pair, cache), SOURCES[:1], Request(14)) for method, settings in FEW]
        assert found == wanted
        cache.save("first")
        assert (cache.runs > 0) == (round_ == 0)
    cache = PredictionCache(pair, tmp_path)
    cache.open_source(SOURCES[1], "first")  # another source under the same name has a trie of its own
    assert not cache.trie.root.children


NODES = [[-1, -1, None, None], [0, 5, None, None]]
WHOLE = {"source": [3], "format": 3, "nodes": NODES}


@pytest.mark.parametrize(
    ("found", "nodes"),
    [
        (WHOLE, 2),
        ({"source": [3], "nodes": NODES}, 1),  # an older format
        ([], 1),
        ({}, 1),
        (None, 1),
        (WHOLE | {"nodes": [[9, 1]]}, 1),
        (WHOLE | {"nodes": [[-1, -1, 7]]}, 1),
        ("[" * 9000, 1),
    ],
    ids=repr,
)
def test_a_damaged_or_older_trie_is_started_anew(found: object, nodes: int, tmp_path: Path) -> None:
    file = tmp_path / "entry.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found), encoding="utf-8")
    assert len(list(load_trie(file, [3], lambda *_: (0.0, 0.0)).nodes())) == nodes


def test_a_saved_trie_reads_the_same(tmp_path: Path) -> None:
    trie = PrefixTrie([5, 1])
    position = trie.root.step(3).step(4)
    position.statistics[LARGE_MODEL] = CachedStatistics(
        7, 0.1, 0.25, {7: (0.1, 2.5), 9: (0.0, math.inf)}, lambda token: (0.0, 0.0)
    )
    trie.save(tmp_path / "page.json")
    damaged = tmp_path / "damaged.json"
    damaged.write_text((tmp_path / "page.json").read_text().replace("0.25", "0.26"))
    assert not load_trie(damaged, [5, 1], lambda *_: (0.0, 0.0)).root.children
    asked: list[tuple[list[int], int, int]] = []

    def ask(position: TrieNode, model: int, token: int) -> tuple[float, float]:
        asked.append((position.tokens(), model, token))
        return 0.5, 0.7

    again = load_trie(tmp_path / "page.json", [5, 1], ask).root.children[3].children[4]
    note = again.statistics[LARGE_MODEL]
    assert again.statistics[SMALL_MODEL] is None
    assert (note.argmax, note.top, note.entropy, note.surprisal(7), note.surprisal(9)) == (7, 0.1, 0.25, 2.5, math.inf)
    assert (note.of(2), note.surprisal(2)) == (0.5, 0.7)
    assert asked == [([3, 4], LARGE_MODEL, 2)]


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("beam_large", BeamSettings(beams=2), "step by step"),
        ("speculative_beam", SpeculativeBeamSettings(beams=2), "step by step"),
        ("speculative", SpeculativeSettings(), "draws its tokens"),
    ],
)
def test_beams_and_draws_are_refused(method: str, settings: Any, words: str) -> None:
    pair, request = pair_of("t5"), Request(5, SamplingSettings(temperature=float(method == "speculative")))
    with pytest.raises(NotReplayableError, match=words):
        decode(method, settings, replay_pair(pair, PredictionCache(pair)), SOURCES, request)
