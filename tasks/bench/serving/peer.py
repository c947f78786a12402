"""The same server with another engine behind it: `generate` of transformers, or CTranslate2.

`python -m tasks.bench.serving.peer ctranslate2 --pair FOLDER --converted FOLDER` is started by the benchmark. Routes, queue,
batches and the choice between one text at a time and side by side are those of `tasks.serve`, so that engines are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.bench import ctranslate
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.pair_folder import read_examples
from tasks.errors import InputError, stage
from tasks.serve.executing import Batch
from tasks.serve.pacing import Way
from tasks.serve.running import ServerSettings, listen, serve

Decode = Callable[[Rows, int], Rows]
"""Greedy texts of some sources, side by side: rows and length to tokens, the end token included where it was reached."""


@dataclass(frozen=True)
class PeerEngine:
    """Decodes greedily by a peer."""

    name: str
    decode: Decode
    ends: frozenset[int]
    drafts: bool = False

    def described(self, way: Way) -> str:  # noqa: ARG002 (the protocol's)
        """Return the peer's name."""
        return self.name

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch, side by side or one text after the other. A peer is not watched, and draws nothing."""
        positions = list(range(len(batch.rows)))
        for part in [positions] if way.together else [[one] for one in positions]:
            texts = self.decode([batch.rows[one] for one in part], batch.request.max_new_tokens)
            for position, tokens in zip(part, texts, strict=True):
                batch.finish(position, Generation(tokens, "l" * len(tokens), Counts(tokens=len(tokens))))


def transformers_engine(pair: DecodingPair, large: Path) -> PeerEngine:
    """Return `generate` of transformers with its static arguments: greedy, keys and values cached."""
    import torch

    from tasks.models.checkpoints import load_model

    model, pad = load_model(large), pair.tokenizer.pad_token_id
    ends = frozenset(pair.opened.pair.large.end_tokens)

    @torch.inference_mode()
    def decode(rows: Rows, limit: int) -> Rows:
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        found = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=limit)
        return [_until_end(one, ends) for one in found[:, 1:].tolist()]

    return PeerEngine("transformers", decode, ends)


def ctranslate2_engine(pair: DecodingPair, converted: Path, threads: int) -> PeerEngine:
    """Return CTranslate2 on converted weights."""
    translator = ctranslate.open_translator(str(converted), threads)
    ends = frozenset(pair.opened.pair.large.end_tokens)
    [end] = ends

    def decode(rows: Rows, limit: int) -> Rows:
        _, texts = ctranslate.translate(translator, rows, limit, batched=True)
        return [tokens if len(tokens) >= limit else [*tokens, end] for tokens in texts]

    return PeerEngine("ctranslate2", decode, ends)


def _until_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    return next((tokens[: place + 1] for place, token in enumerate(tokens) if token in ends), tokens)


def main() -> None:
    """Open the pair's large model in a peer and serve it on any free port."""
    parser = argparse.ArgumentParser(prog="python -m tasks.bench.serving.peer")
    parser.add_argument("kind", choices=("transformers", "ctranslate2"))
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--converted", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    pair = load_pair(arguments.pair, threads=arguments.threads)
    if pair.opened.models["large"].config.model_type != "t5":
        raise InputError(f"{arguments.pair} holds no T5; this benchmark compares encoder-decoders")
    if arguments.kind == "transformers":
        engine = transformers_engine(pair, arguments.pair / "large")
    else:
        engine = ctranslate2_engine(pair, arguments.converted, arguments.threads)
    with listen("127.0.0.1", 0) as bound:
        serve(bound, pair, engine, engine.name, read_examples(arguments.pair), ServerSettings())


if __name__ == "__main__":
    if sys.argv[1:2] == ["ctranslate2"]:
        for variable in ctranslate.OUR_THREAD_VARIABLES:
            os.environ.pop(variable, None)
    with stage():
        main()
