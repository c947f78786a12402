"""The tokenizer of a pair: trained SentencePiece with T5's special tokens, or a published one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.errors import InputError
from tasks.models.settings import TokenizerSettings

PAD, END, UNKNOWN = 0, 1, 2


def train_tokenizer(text: Iterable[str], settings: TokenizerSettings) -> Any:
    """A T5 tokenizer over a unigram SentencePiece model of exactly `settings.vocabulary` pieces.

    Raises:
        InputError: the text is too small for that many pieces.
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
            raise InputError(
                f"tokenizer.vocabulary is {settings.vocabulary}: the training text does not support that many pieces "
                f"({str(error).split('] ')[-1]}); lower it in params.yaml"
            ) from None
        pieces = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        scored = [(pieces.id_to_piece(index), pieces.get_score(index)) for index in range(len(pieces))]
    return T5Tokenizer(vocab=scored, extra_ids=0)


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a local folder, or of the hub where no such folder exists.

    Raises:
        InputError: neither the folder nor the hub holds a tokenizer of that name.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        raise InputError(
            f"no tokenizer at {source}: {str(error).splitlines()[0]}; name a folder or a hub model"
        ) from None


def encode(tokenizer: Any, texts: list[str], limit: int) -> list[list[int]]:
    """Token ids of each text, the end token last, cut to `limit` tokens in all."""
    batches: list[list[int]] = tokenizer(texts, max_length=limit, truncation=True)["input_ids"]
    return batches
