"""The readings of a pair of models, page by page; what is not noted yet is read by running the model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, StopRule, can_continue
from tasks.decoding.method import Pair
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, SMALL_MODEL, PrefixTrie, TrieNode, load_trie
from tasks.decoding.token_statistics import CachedStatistics, TokenScore


class _Model:
    """A decoder, and where its cache stands: on which page, with which tokens."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.trie: PrefixTrie | None = None
        self.start: list[int] = []
        self.cached: list[int] = []


class PredictionCache:
    """Readings of both models on one source at a time."""

    def __init__(self, pair: Pair, folder: Path | None = None) -> None:
        """Takes the models, and where pages are kept between runs, if anywhere."""
        self._models = (_Model(pair.small), _Model(pair.large))
        self._shares_encoder = pair.shares_encoder
        self._folder = folder
        self.trie = PrefixTrie([])
        self.runs = 0
        """Forward runs that it took so far, of either model."""

    def open(self, source: list[int], name: str = "") -> None:
        """Turns to the page of `source`, kept under `name`."""
        path = self._path(name)
        self.trie = PrefixTrie(source) if path is None else load_trie(path, source, self._ask)

    def close(self, name: str) -> None:
        """Keeps the open page under `name`."""
        path = self._path(name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.trie.save(path)

    def _path(self, name: str) -> Path | None:
        return self._folder / f"{name}.json" if self._folder is not None and name else None

    def start(self, side: int) -> list[int]:
        """What each text on the open page begins with."""
        return self._started(side).start

    def read(self, side: int, places: Sequence[TrieNode]) -> list[CachedStatistics]:
        """The readings of one model at `places`, each of which is one token longer than the one before."""
        first = next((number for number, place in enumerate(places) if place.statistics[side] is None), None)
        if first is not None:
            self._note(side, places[first:])
        return [note for place in places if (note := place.statistics[side]) is not None]

    @torch.inference_mode()
    def continued(self, side: int, place: TrieNode, budget: int) -> CachedStatistics:
        """The reading at `place`; a runtime that can goes on from there by itself, and up to `budget` places are noted."""
        model = self._started(side)
        decoder = model.decoder
        if budget > 1 and can_continue(decoder):
            self.runs += 1
            tokens = model.start + place.tokens()
            kept = min(_common(model.cached, tokens), len(tokens) - 1)
            decoder.rewind([kept])
            model.cached = tokens[:kept]
            found = decoder.continue_greedily(tokens[kept:], budget, StopRule())
            model.cached = tokens + found.tokens[:-1]
            places = [place]
            for token in found.tokens[:-1]:
                places.append(places[-1].step(token))
            self._write(side, places, found.logits[0].float())
        [reading] = self.read(side, [place])
        return reading

    def _note(self, side: int, places: Sequence[TrieNode]) -> None:
        self._write(side, places, self._run(side, places[-1], len(places)))

    def _write(self, side: int, places: Sequence[TrieNode], logits: Tensor) -> None:
        """Notes what was predicted at these places: float32 (places, vocabulary)."""
        wanted = [[_next(places, index), _other_best(place, side)] for index, place in enumerate(places)]
        best = logits.argmax(-1, keepdim=True)
        asked = torch.tensor(wanted, device=logits.device)
        tokens = torch.cat((best, torch.where(asked < 0, best, asked)), dim=-1)
        scores, nats = torch.softmax(logits, -1), -torch.log_softmax(logits, -1)
        columns = (tokens, scores.gather(-1, tokens), nats.gather(-1, tokens), torch.special.entr(scores).sum(-1))
        for place, ids, chances, surprisals, entropy in zip(places, *(one.tolist() for one in columns), strict=True):
            noted = dict(zip(ids, zip(chances, surprisals, strict=True), strict=True))
            place.statistics[side] = CachedStatistics(
                ids[0], chances[0], entropy, noted, functools.partial(self._ask, place, side)
            )

    def _ask(self, place: TrieNode, side: int, token: int) -> TokenScore:
        [logits] = self._run(side, place, 1)
        return float(torch.softmax(logits, -1)[token]), -float(torch.log_softmax(logits, -1)[token])

    @torch.inference_mode()
    def _run(self, side: int, last: TrieNode, positions: int) -> Tensor:
        """What a model predicts after `last` and the prefixes before it: float32 (positions, vocabulary)."""
        self.runs += 1
        model = self._started(side)
        tokens = model.start + last.tokens()
        kept = min(_common(model.cached, tokens), len(tokens) - positions)
        model.decoder.rewind([kept])
        model.cached = tokens[:kept]  # all that is sure to be there if the run fails
        step = model.decoder.forward([tokens[kept:]])
        model.cached = tokens
        return step.last([positions])[0].float()

    def _started(self, side: int) -> _Model:
        """The model, on the open page."""
        model = self._models[side]
        if model.trie is not self.trie:
            encoder = self._models[LARGE_MODEL] if self._shares_encoder else model
            [model.start] = model.decoder.start(encoder.decoder.encode([self.trie.source]))
            model.trie, model.cached = self.trie, []
        return model


def _next(places: Sequence[TrieNode], index: int) -> int:
    """The token by which the path goes on, which a rule will ask about; -1 at its end."""
    return places[index + 1].token if index + 1 < len(places) else -1


def _other_best(place: TrieNode, side: int) -> int:
    """What the other model would put, which rules compare; -1 where that is not known."""
    other = place.statistics[SMALL_MODEL + LARGE_MODEL - side]
    return -1 if other is None else other.best


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
