"""The tokenizer of a pair: SentencePiece trained with T5's special tokens, or a published one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.errors import InputError
from tasks.hub import hub_answers
from tasks.models.gguf import is_gguf, location
from tasks.models.settings import TokenizerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_T = TypeVar("_T")
PAD, END, UNKNOWN = 0, 1, 2


def train_tokenizer(text: Iterable[str], settings: TokenizerSettings) -> PreTrainedTokenizerBase:
    """Train a unigram SentencePiece model of exactly `settings.vocabulary` pieces and return a T5 tokenizer over it.

    Raises:
        InputError: the text is too small for that many pieces, or has more distinct characters.
    """
    import sentencepiece
    from transformers import T5Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "spiece"
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_prefix=str(prefix),
                model_type="unigram",
                normalization_rule_name="identity",
                vocab_size=settings.vocabulary,
                character_coverage=1.0,
                pad_id=PAD,
                eos_id=END,
                unk_id=UNKNOWN,
                bos_id=-1,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise InputError(_untrainable(str(error).split("] ")[-1], settings.vocabulary)) from None
        pieces = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        scored = [(pieces.id_to_piece(index), pieces.get_score(index)) for index in range(len(pieces))]
    return T5Tokenizer(vocab=scored, extra_ids=0)


def _untrainable(reason: str, vocabulary: int) -> str:
    """Express SentencePiece's reason in terms of the settings."""
    if "too high" in reason:
        return (
            f"tokenizer.vocabulary is {vocabulary}: the training text does not support that many pieces ({reason}); "
            "lower it in params.yaml"
        )
    if "required_chars" in reason:
        return (
            f"tokenizer.vocabulary is {vocabulary}: the training text has more different characters than that ({reason}); "
            "raise it in params.yaml"
        )
    return f"no tokenizer can be trained: {reason or 'the training text is empty'}; look at the training text"


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local folder or a GGUF file, or of the hub if there is no such folder.

    Raises:
        InputError: neither the folder nor the hub holds a tokenizer of that name, or the GGUF file cannot be read.
    """
    from transformers import AutoTokenizer

    tokenizer = load_from(AutoTokenizer.from_pretrained, source, "tokenizer")
    files = tokenizer.vocab_files_names.values()
    # From a folder with a model configuration but no tokenizer, transformers makes an empty tokenizer.
    if Path(source).is_dir() and files and not any((Path(source) / name).is_file() for name in files):
        raise InputError(
            f"no tokenizer at {source}: none of {', '.join(files)} is there; name a folder, a GGUF file or a hub model"
        )
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer at {source} has no end token; name a tokenizer that has one")
    if tokenizer.pad_token_id is None:
        # Decoder-only models often lack a padding token; attention masks distinguish padding from text.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_from(load: Callable[..., _T], source: str | Path, kind: str, **options: object) -> _T:
    """Call `load`, a `from_pretrained`, for a folder or a GGUF file, or for a name of the hub if there is no such folder.

    Raises:
        InputError: there is nothing loadable. Without a network this is reported at once, while the hub's own client retries
            for half a minute.
    """
    from safetensors import SafetensorError

    there = is_gguf(source) or Path(source).is_dir()
    if not there and isinstance(source, Path):
        raise InputError(f"no {kind} at {source}: there is no such folder; run the stage that makes it (dvc repro)")
    offline = not there and not hub_answers()
    try:
        names = location(source) if is_gguf(source) else {"pretrained_model_name_or_path": str(source)}
        return load(**names, local_files_only=there or offline, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        if offline:
            reason = "there is no such folder, the hub does not answer, and nothing of that name was downloaded before"
        raise InputError(f"no {kind} at {source}: {reason}; name a folder, a GGUF file or a hub model") from None


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str], limit: int) -> list[list[int]]:
    """Return the token ids of each text, ending with the end token, truncated to `limit` tokens in all.

    Tokenizers of decoder-only models add no end token by themselves; there it separates the source from the target.
    """
    end = tokenizer.eos_token_id
    rows: list[list[int]] = tokenizer(texts, max_length=limit, truncation=True)["input_ids"]
    return [row if row and row[-1] == end else [*row[: limit - 1], end] for row in rows]
