"""A pair as a Python object: open it, generate text with it, read what that took.

    from tasks.decoding import load_pair

    pair = load_pair("results/translation/pair")
    [output] = pair.generate("Maria hat damals keine interessanten Feste verpasst.")
    output.text, output.counts.large_calls

Arguments have the names of `GenerationMixin.generate` of transformers where they mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.loop import watched
from tasks.decoding.method import CALIBRATED, GREEDY, DecodingMethod, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.pair_folder import DRAFTER, LARGE, PairManifest, read_calibration, read_manifest
from tasks.decoding.registry import METHODS, ConfiguredMethod, configure_method
from tasks.decoding.runtimes.choose import open_decoders
from tasks.decoding.turn import RowState
from tasks.errors import InputError
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_lengths, check_pair, vocabulary_size
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VANILLA = ConfiguredMethod("vanilla_large", VanillaSettings())
"""The large model alone."""
DEFAULT = configure_method("speculative", {})
"""Of a pair without a sweep: its output is the large model's own."""
OWN_TEXT = TextSettings(max_source_tokens=512, max_target_tokens=128)
"""Lengths of a pair of the user's own."""


@dataclass(frozen=True)
class GeneratedText:
    """One output and what its decoding took."""

    text: str
    """Without special tokens."""
    tokens: list[int]
    """Generated ids, the end token included if it was reached."""
    proposers: str
    """One letter a token: s (small), l (large), c (large, in place of a small one)."""
    counts: Counts
    """Model runs, drafted and accepted tokens, fallbacks and rollbacks."""


class Streamer(Protocol):
    """What receives tokens as they become final; the streamers of transformers fit."""

    def put(self, value: torch.Tensor) -> None:
        """Take token ids, shape (tokens,), int64: the prompt's in the first call, then those of each turn."""

    def end(self) -> None:
        """Learn that the text is whole."""


class StreamedTurns:
    """Gives a streamer the tokens of each turn."""

    def __init__(self, streamer: Streamer) -> None:
        self._streamer = streamer
        self._given: int | None = None
        """Generated tokens that the streamer has; None before the prompt."""

    def put(self, row: RowState) -> None:
        """Take a row after one of its turns."""
        if self._given is None:
            # The streamers of transformers expect the prompt first, and skip it.
            self._give(row.tokens[: row.prompt])
            self._given = 0
        self._new(row.tokens[row.prompt :])

    def finish(self, generation: Generation) -> None:
        """Give what is left: all of it where the method has no turns to watch."""
        if self._given is None:
            self._give([])
        self._new(generation.tokens)
        self._streamer.end()

    def _new(self, tokens: list[int]) -> None:
        begin = self._given or 0
        if len(tokens) > begin:
            self._give(tokens[begin:])
        self._given = len(tokens)

    def _give(self, tokens: list[int]) -> None:
        self._streamer.put(torch.tensor(tokens, dtype=torch.int64))


@dataclass(frozen=True)
class DecodingPair:
    """A drafter and a large model with their operating point. One thread at a time may generate with it: models hold caches."""

    decoders: Pair
    """Both models in a runtime, as the methods take them."""
    models: dict[str, PreTrainedModel]
    """`small` and `large` as `transformers` loaded them."""
    tokenizer: PreTrainedTokenizerBase
    """The large model's tokenizer."""
    device: str
    """`cpu` or `cuda`."""
    manifest: PairManifest
    """The operating point and lengths; of a folder that the report stage wrote also measurements and origin."""

    def __repr__(self) -> str:
        """One line: task, operating point, runtime and device."""
        name = self.manifest.task or "of two models"
        return f"<pair {name}: {self.manifest.point}; {self.decoders.described}, {self.device}>"

    def generate(
        self,
        texts: str | Sequence[str],
        *,
        method: str | None = None,
        settings: Mapping[str, object] | None = None,
        max_new_tokens: int | None = None,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        streamer: Streamer | None = None,
    ) -> list[GeneratedText]:
        """Generate an output for each text, side by side.

        Args:
            texts: What the models read, as a user writes it; a chat template is applied where the pair has one.
            method: A method of `python -m tasks.config --methods`; none takes the pair's operating point.
            settings: Settings of that method by name; the others have their defaults.
            max_new_tokens: Most tokens to generate, the end token included; none takes the pair's length.
            do_sample: Whether tokens are drawn. Without it decoding is greedy and the next three arguments are not used.
            temperature: Softmax temperature, above 0.
            top_k: Keep the k most probable tokens; 0 keeps all.
            top_p: Keep the smallest set of tokens with at least this probability.
            seed: Keys the draws, with the position of a text in `texts`: equal calls give equal texts.
            streamer: Receives tokens as they become final, of a single text. A method of several passes gives them at the end.

        Raises:
            InputError: a text is missing or empty, a method or setting is wrong or does not fit the pair, or several texts are
                to be streamed.
        """
        sampling = _sampling(do_sample=do_sample, temperature=temperature, top_k=top_k, top_p=top_p)
        sources = [texts] if texts is None or isinstance(texts, str) else list(texts)
        if not all(isinstance(text, str) and text.strip() for text in sources):
            raise InputError("a text is missing or empty; give one, or a list of some")
        # 1. What is asked for, 2. the method that answers it, 3. all texts side by side.
        request = Request(self.manifest.text.max_target_tokens if max_new_tokens is None else max_new_tokens, sampling, seed)
        running = self.method(self.point(method, settings), request)
        found = self._run(running, self.encode(sources), request.max_new_tokens, streamer)
        return [self.output(generation) for generation in found]

    def point(self, method: str | None, settings: Mapping[str, object] | None = None) -> ConfiguredMethod:
        """Return a method at settings, or the pair's operating point where none is named.

        Raises:
            InputError: a method or setting is wrong, or settings have no method.
        """
        if method is None:
            if settings:
                raise InputError(f"the setting {next(iter(settings))} needs a method; name the method that has it")
            return self.manifest.point
        return configure_method(method, settings or {})

    def method(self, point: ConfiguredMethod, request: Request) -> DecodingMethod:
        """Return a method that is ready to run on encoded texts.

        Raises:
            InputError: it does not fit the pair or the sampling, or the length is under 2.
        """
        if request.max_new_tokens < 2:
            raise InputError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 2")
        if getattr(point.settings, "drafter", None) in CALIBRATED and not self.decoders.calibration:
            raise InputError(f"drafter is {point.settings.drafter}, which reads a calibration set, and this pair has none")
        return METHODS[point.method].make(point.settings, self.decoders, request)

    def encode(self, texts: list[str]) -> Rows:
        """Return the token ids of each text, as the models read them."""
        return encode_sources(self.tokenizer, texts, self.manifest.text) if texts else []

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def output(self, generation: Generation) -> GeneratedText:
        """Return a generation with its text."""
        return GeneratedText(self.decode(generation.tokens), generation.tokens, generation.proposers, generation.counts)

    def _run(self, method: DecodingMethod, rows: Rows, limit: int, streamer: Streamer | None) -> list[Generation]:
        if streamer is None:
            return method.run(rows, range(len(rows)), limit) if rows else []
        if len(rows) != 1:
            raise InputError(f"a streamer takes one text, but there are {len(rows)}; call generate for each")
        # Only one loop can be watched turn by turn; other methods give the whole text in `finish`.
        turns = StreamedTurns(streamer)
        [generation] = watched(method, turns.put).run(rows, [0], limit)
        turns.finish(generation)
        return [generation]


def _sampling(*, do_sample: bool, temperature: float, top_k: int, top_p: float) -> SamplingSettings:
    if not do_sample:
        return GREEDY
    if temperature == 0:
        raise InputError("temperature is 0, which is greedy; leave out do_sample, or raise it")
    try:
        return SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    except ValueError as error:
        raise InputError(str(error)) from None


def load_pair(
    folder: str | Path | None = None,
    *,
    large: str | Path | None = None,
    drafter: str | Path | None = None,
    text: TextSettings | None = None,
    device: str = "auto",
    dtype: str = "float32",
    drafter_dtype: str = "same",
    runtime: str = "auto",
    threads: int = 0,
    beside: DecodingPair | None = None,
) -> DecodingPair:
    """Open a pair: a folder that the report stage wrote, or two models of one's own.

    Args:
        folder: The folder, with `pair.json` in it.
        large: In place of a folder: a folder, a GGUF file or a name on the hub of the large model, with its tokenizer.
        drafter: The small model that drafts for it.
        text: With `large`: lengths and chat template; none takes 512 source and 128 target tokens without a template.
        device: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        dtype: `float32`, `bfloat16`, or `int8` (native runtime only).
        drafter_dtype: `same`, or `int8` for the small model alone.
        runtime: `native`, `fused`, `reference`, or `auto` for the fastest one that supports the models.
        threads: CPU threads, set for the whole process; 0 leaves torch's number.
        beside: A pair of the same large model, which is then in memory once where its runtime allows.

    Raises:
        InputError: a model is missing, the two do not fit each other, or `pair.json` is damaged.
    """
    try:
        machine = MachineSettings(device=device, dtype=dtype, drafter_dtype=drafter_dtype, runtime=runtime, threads=threads)
    except ValueError as error:
        raise InputError(str(error)) from None
    calibration: Rows = []
    if folder is None:
        if large is None or drafter is None:
            missing = "large" if large is None else "drafter"
            raise InputError(f"{missing} is missing; give the folder of a pair, or both large and drafter")
        manifest = PairManifest(DEFAULT, text or OWN_TEXT, chosen="the default for a pair of your own")
    else:
        if large is not None or drafter is not None or text is not None:
            raise InputError(f"{folder} is a pair; leave out large, drafter and text")
        path = Path(folder)
        manifest, calibration = read_manifest(path), read_calibration(path)
        large, drafter = path / LARGE, path / DRAFTER
    # 1. Both tokenizers, which have to be one.
    chosen_device, chosen_dtype = set_up(machine)
    tokenizer = load_tokenizer(large)
    check_pair(load_tokenizer(drafter), tokenizer, str(drafter), str(large))
    # 2. Both models, which have to fit each other and the lengths.
    # Of a pair whose two models share an encoder the large one is bound to its small one.
    shared = beside if beside is not None and not beside.decoders.shares_encoder else None
    models = {"small": load_model(drafter, chosen_device, chosen_dtype)}
    if shared is None:
        models["large"] = load_model(large, chosen_device, chosen_dtype, spread=True)
    else:
        models["large"] = shared.models["large"]
    check_architectures(models["small"], models["large"])
    for name, model in models.items():
        check_lengths(model, name, manifest.text)
    # 3. A runtime for each.
    wanted = {name: Runtime(machine.runtime, machine.int8(name)) for name in models}
    vocabulary = vocabulary_size(tokenizer, *models.values())
    opened = None if shared is None else shared.decoders.large
    runtimes = wanted["large"], wanted["small"]
    decoders = open_decoders(models["small"], models["large"], vocabulary, calibration, *runtimes, opened)
    return DecodingPair(decoders, models, tokenizer, chosen_device.type, manifest)
