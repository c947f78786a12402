"""Check what a pair's certificate promises: how many drafted tokens the large model accepts, in `transformers` or a newer one.

`python -m tasks.verify results/translation/pair --engine transformers` decodes texts greedily, here and by assisted generation
of `transformers`, with the same fixed number of drafted tokens, and compares how much is accepted and the texts, token by
token. Texts are the folder's examples or the lines of `--file`; for the certificate's own numbers, give the sources of the
validation split. The exit status is 0 where the certificate holds and 1 where it does not.

The models are opened by `from_pretrained` alone, as a user of that library opens them. Whatever of a pair only this project
reads, such as a draft vocabulary, therefore has no effect there.

`--large NEW` asks whether the drafter still fits a large model that has changed (quantised, fine-tuned further): the same texts
are decoded with both, each writing its own outputs. The status is 1 where the accepted share falls by more than `--bound`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.console import add_json, answer, command_parser, log, progress
from tasks.decoding.decoder import MARGIN_TOLERANCE, Mismatch, Rows, find_mismatches
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.method import Request
from tasks.decoding.pair_folder import DRAFTER, LARGE, certified, engine_draft_length, read_examples, read_manifest
from tasks.decoding.runtimes.layout import FORMATS
from tasks.errors import InputError, read_lines, stage
from tasks.evaluation.scoring.statistics import Interval, percentile_interval, resampled_sums
from tasks.models.pair import check_sizes
from tasks.models.prompting import common_prefix
from tasks.models.pruned_head import pruned_head
from tasks.models.tokenizers import load_from

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

TOLERANCE = 0.02
"""Greatest difference of the accepted share at which a certificate holds. Equal tokens give equal counts; the rest covers texts
that split where two logits are equal but for rounding."""
_OF_LARGE = {"dtype": "float32", "bound": TOLERANCE}
"""Options that go with --large alone, and their defaults."""
_COMPARED = ("drafted", "accepted", "large_calls", "tokens")


# --- the engine -----------------------------------------------------------------------------------------------------------


class TransformersEngine:
    """A pair in `transformers`: float32 on the CPU, greedy, a constant number of drafted tokens."""

    name = "transformers"

    def __init__(self, folder: Path, draft_length: int) -> None:
        """Open the two models of a pair folder.

        Raises:
            InputError: there is no loadable model.
        """
        self._large, self._drafter = (_plain_model(folder / name) for name in (LARGE, DRAFTER))
        draft_constantly(self._drafter.generation_config, draft_length)

    @torch.inference_mode()
    def decode(self, source: list[int], limit: int) -> Generation:
        """Decode one source; the counts follow the definitions of `tasks.decoding`, and no proposers are given.

        Args:
            source: Token ids.
            limit: Most new tokens, the end token included.
        """
        ids, settings = torch.tensor([source]), self._large.generation_config
        prompt = 1 if self._large.config.is_encoder_decoder else len(source)
        ends = settings.eos_token_id
        # No text is padded, so that the end token does where a model has no padding token.
        pad = settings.pad_token_id if settings.pad_token_id is not None else ends[0] if isinstance(ends, list) else ends
        with _recorded(self._large) as calls:
            output = self._large.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **assisting_masks(self._large),
                max_new_tokens=limit,
                do_sample=False,
                num_beams=1,
                pad_token_id=pad,
                assistant_model=self._drafter,
            )
        tokens = output[0, prompt:].tolist()
        return Generation(tokens, "", count_drafts(calls, prompt, tokens))


def assisting_masks(large: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the arguments of `generate` without which assisted generation drafts worse than the drafter can.

    From the second draft on, the drafter of an encoder-decoder would read the whole text once more behind what its cache holds
    of it: `_prefill` of transformers 5.23 leaves out the cached part only where a mask is as long as the text.
    """
    return {"decoder_attention_mask": torch.ones(1, 1, dtype=torch.long)} if large.config.is_encoder_decoder else {}


def draft_constantly(settings: GenerationConfig, draft_length: int) -> None:
    """Make the drafter of this configuration draft `draft_length` tokens at a time, however unsure it is.

    `generate` reads these three values from the drafter's configuration and ignores them among its own arguments.
    """
    settings.num_assistant_tokens = draft_length
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0


def _plain_model(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = load_from(AutoConfig.from_pretrained, folder, "model")
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return load_from(kind.from_pretrained, folder, "model", dtype=torch.float32, use_safetensors=True).eval()


@contextmanager
def _recorded(model: PreTrainedModel) -> Iterator[list[list[int]]]:
    """Give the token ids that each call of the model's decoder reads, as the calls happen."""
    calls: list[list[int]] = []
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"

    def note(_: object, __: object, arguments: dict[str, Any]) -> None:
        calls.append(arguments[name][0].tolist())

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


def count_drafts(calls: Sequence[Sequence[int]], prompt: int, tokens: Sequence[int]) -> Counts:
    """Count the drafts of one greedy text from what the large model read, call by call.

    An engine's own statistics follow its own definitions: `transformers` subtracts an accepted end token from its number of
    matches, for one. What the large model reads and what it finally wrote suffice to count as `tasks.decoding` counts.

    Args:
        calls: Token ids that each call of the large model read: in the first the prompt and a draft, in each other one the
            last final token and a draft. A draft may be empty.
        prompt: Tokens of the prompt; of an encoder-decoder, its start token alone.
        tokens: New tokens of the text, the end token included if it was reached.

    Returns:
        `tokens`, `large_calls`, `drafted`, `accepted`, `rollbacks`, `verified` and `kept`.

    Raises:
        ValueError: the calls are not those of this text.
    """
    counts = Counts(tokens=len(tokens))
    final = 0  # new tokens so far, those that no later call can change
    for number, read in enumerate(calls):
        if number and (final >= len(tokens) or read[0] != tokens[final - 1]):
            raise ValueError(f"call {number + 1} does not continue the text after {final} tokens")
        draft = read[1:] if number else read[prompt:]
        accepted = common_prefix(draft, tokens[final:])
        counts.large_calls += 1
        counts.verified[len(draft) + 1] += 1
        if draft:
            counts.drafted += len(draft)
            counts.accepted += accepted
            counts.rollbacks += accepted < len(draft)
            counts.kept[len(draft), accepted] += 1
        # The call also gave the token after the accepted ones, unless the draft ended the text.
        final = min(final + accepted + 1, len(tokens))
    if final != len(tokens):
        raise ValueError(f"{len(calls)} calls account for {final} of {len(tokens)} tokens")
    return counts


# --- the comparison -------------------------------------------------------------------------------------------------------


def accepted_share(counts: Counts) -> float:
    """Return the accepted share of the drafted tokens; 0 where none was drafted."""
    return counts.accepted / counts.drafted if counts.drafted else 0.0


@dataclass(frozen=True)
class Comparison:
    """What was accepted in both on the same texts."""

    draft_length: int
    texts: int
    ours: Counts
    theirs: Counts
    mismatches: list[Mismatch]
    """Texts that differ, with the large model's top-2 logit margin at the first difference."""
    certificate: dict[str, Any] | None
    """The record of the pair folder at this draft length."""

    @property
    def difference(self) -> float:
        """Difference of the accepted shares, at least 0."""
        return abs(accepted_share(self.ours) - accepted_share(self.theirs))

    @property
    def differing(self) -> list[Mismatch]:
        """Texts that differ by more than rounding."""
        return [mismatch for mismatch in self.mismatches if mismatch.margin >= MARGIN_TOLERANCE]

    @property
    def holds(self) -> bool:
        """Whether the engine accepts what this project's runtime does and writes the same texts."""
        return self.difference <= TOLERANCE and not self.differing

    @property
    def reproduced(self) -> bool | None:
        """Whether our counts are the certificate's; None unless it has as many texts, so that they may be the same ones."""
        record = self.certificate
        if record is None or record["examples"] != self.texts:
            return None
        return all(record[name] == getattr(self.ours, name) for name in _COMPARED)


def decode_here(pair: DecodingPair, draft_length: int, sources: Rows, limit: int) -> list[Generation]:
    """Decode each source by itself with greedy speculative decoding in this project's runtime.

    Raises:
        InputError: the draft length is out of bounds, or the method does not fit the pair.
    """
    method = pair.method(pair.point("speculative", {"draft_length": draft_length}), Request(limit))
    return _each("here", sources, lambda source: method.run([source], [0], limit)[0])


def _each(where: str, sources: Rows, decode: Callable[[list[int]], Generation]) -> list[Generation]:
    return [decode(source) for source in progress(sources, desc=where, unit="text")]


def described(found: Comparison) -> str:
    """Return the counts of both, and of the certificate where there is one."""
    rows = [("", "drafted", "accepted", "share", "mean accepted length", "calls of the large model")]
    counts = {"Draftline": vars(found.ours), "transformers": vars(found.theirs)}
    if found.certificate is not None:
        counts["certificate"] = found.certificate
    for name, one in counts.items():
        drafted, accepted, calls = one["drafted"], one["accepted"], one["large_calls"]
        share, length = (accepted / part if part else 0.0 for part in (drafted, calls))
        rows.append((name, str(drafted), str(accepted), f"{share:.4f}", f"{length:.3f}", str(calls)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{found.texts} texts, greedy, float32, {found.draft_length} tokens drafted at a time"]
    lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    record = found.certificate
    if record is None:
        lines.append(f"certificate: the pair has none for {found.draft_length} drafted tokens")
    elif found.reproduced is None:
        said = f"so its counts are not those of these {found.texts} texts"
        lines.append(f"certificate: of {record['examples']} texts of {record['split']}, {said}")
    else:
        said = f"Draftline's counts on these texts {'equal it' if found.reproduced else 'differ from it'}"
        lines.append(f"certificate: of {record['examples']} texts of {record['split']}; {said}")
    if not found.mismatches:
        return "\n".join([*lines, "tokens: equal in every text"])
    rounding = len(found.mismatches) - len(found.differing)
    close = f", {rounding} of them where the large model's two highest logits are within {MARGIN_TOLERANCE:g}"
    return "\n".join([*lines, f"tokens: {len(found.mismatches)} of {found.texts} texts differ{close if rounding else ''}"])


def verdict(found: Comparison) -> str:
    """Return the last line: whether the certificate holds, and why not."""
    shares = f"the accepted share differs by {found.difference:.4f} (at most {TOLERANCE:g})"
    if found.holds:
        return f"holds: {shares}"
    reasons = [shares] if found.difference > TOLERANCE else []
    if found.differing:
        first = found.differing[0].example + 1
        reasons.append(f"{len(found.differing)} texts differ by more than rounding, the first of them text {first}")
    return f"does not hold: {'; '.join(reasons)}"


def as_json(found: Comparison) -> dict[str, Any]:
    """Return everything that was compared, as plain values."""
    import transformers

    def plain(counts: Counts) -> dict[str, float]:
        length = counts.accepted / counts.large_calls if counts.large_calls else 0.0
        numbers = {name: getattr(counts, name) for name in _COMPARED}
        return {**numbers, "accepted_share": accepted_share(counts), "mean_accepted_length": length}

    return {
        "engine": TransformersEngine.name,
        "version": str(transformers.__version__),
        "holds": found.holds,
        "texts": found.texts,
        "draft_length": found.draft_length,
        "difference": found.difference,
        "tolerance": TOLERANCE,
        "draftline": plain(found.ours),
        TransformersEngine.name: plain(found.theirs),
        "mismatches": [vars(mismatch) for mismatch in found.mismatches],
        "certificate": found.certificate,
        "reproduced": found.reproduced,
    }


# --- another large model --------------------------------------------------------------------------------------------------

_RESAMPLES = 2000


@dataclass(frozen=True)
class Change:
    """How a drafter does for another large model than its pair's, on the same texts."""

    draft_length: int
    old: Sequence[Generation]
    new: Sequence[Generation]
    bound: float
    """By how much the accepted share may fall."""

    @property
    def differing(self) -> int:
        """Texts that the two large models write differently."""
        return sum(one.tokens != other.tokens for one, other in zip(self.old, self.new, strict=True))

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        """`[old and new, counts of _COMPARED, 1 + resamples]`: summed over all texts, and over each resample of them."""
        both = [(one.counts, other.counts) for one, other in zip(self.old, self.new, strict=True)]
        table = np.array([[getattr(one, name) for one in counts for name in _COMPARED] for counts in both], dtype=np.float64)
        sums = np.vstack([table.sum(axis=0), resampled_sums(table, _RESAMPLES, 0)])
        return sums.T.reshape(2, len(_COMPARED), -1).clip(1e-9)  # a resample may hold no draft

    @property
    def fall(self) -> tuple[float, Interval]:
        """Of the accepted share, from the old model to the new, with its 95 % interval over texts."""
        shares = self._sums[:, 1] / self._sums[:, 0]
        return _with_interval(shares[0] - shares[1])

    @property
    def calls(self) -> tuple[float, Interval]:
        """Calls of the large model for each token, the new one's over the old one's, with its interval."""
        calls = self._sums[:, 2] / self._sums[:, 3]
        return _with_interval(calls[1] / calls[0])

    @property
    def holds(self) -> bool:
        """Whether the accepted share has not fallen beyond the bound."""
        return self.fall[0] <= self.bound

    def described(self) -> str:
        """Return the shares, whether the certificate holds, and what a drafter that is aligned anew might win back."""
        (fall, (least, most)), (ratio, (low, high)) = self.fall, self.calls
        shares = " → ".join(f"{accepted_share(total(one)):.4f}" for one in (self.old, self.new))
        by = f"a fall of {fall:.4f} [{least:.4f}, {most:.4f}], at most {self.bound:g}"
        times = f"{ratio:.2f} [{low:.2f}, {high:.2f}] times as many calls of the large model a token"
        realigned = "may win that back" if low > 1 else "has nothing to win back that these texts show"
        texts = f"{len(self.old)} texts, greedy, {self.draft_length} tokens drafted at a time"
        lines = [f"{texts}; {self.differing} of the texts differ"]
        lines += [f"{'holds' if self.holds else 'does not hold'}: accepted share {shares}, {by}"]
        return "\n".join([*lines, f"with the new model {times}: a drafter that is aligned with it {realigned}"])

    def as_json(self) -> dict[str, Any]:
        """Return what was compared, as plain values."""
        (fall, fall_interval), (calls, calls_interval) = self.fall, self.calls
        found: dict[str, Any] = {"holds": self.holds, "texts": len(self.old), "differing": self.differing, "bound": self.bound}
        found |= {"draft_length": self.draft_length, "fall": fall, "fall_interval": fall_interval}
        return found | {"calls_ratio": calls, "calls_ratio_interval": calls_interval}


def _with_interval(values: NDArray[np.float64]) -> tuple[float, Interval]:
    return float(values[0]), percentile_interval(values[1:])


def compare_large(pair: DecodingPair, asked: argparse.Namespace, texts: list[str], draft_length: int) -> Change:
    """Decode texts with the pair in a folder, and with its drafter and another large model.

    Raises:
        InputError: there is no such model, its tokenizer is not the drafter's, or the bound is no share.
    """
    folder, new = asked.pair, asked.large
    if not 0 <= asked.bound <= 1:
        raise InputError(f"--bound is {asked.bound:g}; it must be between 0 and 1")
    text = pair.manifest.text
    other = load_pair(large=new, drafter=folder / DRAFTER, text=text, device="cpu", dtype=asked.dtype)
    check_sizes(other.models["small"], other.models["large"], f"the drafter of {folder}", f"--large {new}")
    if not other.decoders.shares_encoder:  # the large model alone differs, not the number format of the drafter
        other = dataclasses.replace(other, decoders=dataclasses.replace(other.decoders, small=pair.decoders.small))
    sources, limit = pair.encode(texts), text.max_target_tokens
    old, found = (decode_here(one, draft_length, sources, limit) for one in (pair, other))
    return Change(draft_length, old, found, asked.bound)


# --- the command ----------------------------------------------------------------------------------------------------------


def read_texts(pair: Path, file: Path | None) -> list[str]:
    """Return the texts of a file, or the examples of a pair folder.

    Raises:
        InputError: there is none, one is empty, or the file cannot be read.
    """
    if file is None:
        if found := read_examples(pair):
            return found
        raise InputError(f"{pair} has no examples; name a file of texts with --file")
    return read_lines(file)


def main() -> int:
    """Compare, and return the exit status."""
    parser = command_parser(__doc__)
    parser.add_argument("pair", type=Path, metavar="PAIR", help="a folder with pair.json, which the report stage writes")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--engine", choices=(TransformersEngine.name,), help="the engine to run the pair in")
    asked.add_argument("--large", metavar="NEW", help="another large model: a folder, a GGUF file or a name on the hub")
    parser.add_argument("--dtype", choices=FORMATS, help=f"of that model (default: {_OF_LARGE['dtype']})")
    parser.add_argument("--bound", type=float, help=f"fall of the accepted share there (default: {_OF_LARGE['bound']})")
    parser.add_argument("--file", type=Path, metavar="TEXTS", help="texts, one a line, UTF-8 (default: the folder's examples)")
    parser.add_argument("--draft-length", type=int, metavar="N", help="tokens drafted at a time (default: the point's)")
    add_json(parser)
    arguments = parser.parse_args()
    for name, default in _OF_LARGE.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif arguments.large is None:
            raise InputError(f"--{name} is of --large, but --engine is {arguments.engine}; leave it out")
    manifest = read_manifest(arguments.pair)
    draft_length = engine_draft_length(manifest) if arguments.draft_length is None else arguments.draft_length
    texts = read_texts(arguments.pair, arguments.file)
    pair = load_pair(arguments.pair, device="cpu")
    if arguments.large is not None:
        change = compare_large(pair, arguments, texts, draft_length)
        answer(arguments, change.described(), **change.as_json())
        return 0 if change.holds else 1
    sources, limit = pair.encode(texts), manifest.text.max_target_tokens
    ours = decode_here(pair, draft_length, sources, limit)
    engine = TransformersEngine(arguments.pair, draft_length)
    if pruned_head(pair.models["small"]) is not None:
        log.warning("%s does not read the drafter's draft vocabulary, and may draft other tokens", engine.name)
    theirs = _each(engine.name, sources, lambda source: engine.decode(source, limit))
    tokens = ([one.tokens for one in texts_of] for texts_of in (theirs, ours))
    mismatches = find_mismatches(pair.decoders.large, sources, *tokens)
    record = certified(manifest, draft_length)
    found = Comparison(draft_length, len(sources), total(ours), total(theirs), mismatches, record)
    answer(arguments, f"{described(found)}\n{verdict(found)}", **as_json(found))
    return 0 if found.holds else 1


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
