"""The tokenizer of a pair: SentencePiece trained with T5's special tokens, or a published one.

Tokenizers and models are loaded from a folder, from the hub, or from a GGUF file, the format of llama.cpp: weights,
configuration, tokenizer and chat template in one file. `transformers` reads it and turns quantised weights back into
floating-point ones; what is saved afterwards is a plain folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import error as TruncatedError
from typing import TYPE_CHECKING, TypeVar

from tasks.errors import InputError, hub_answers
from tasks.files import damage
from tasks.models.settings import TokenizerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_T = TypeVar("_T")
PAD, END, UNKNOWN = 0, 1, 2
_GGUF_PACKAGES = ("gguf", "accelerate")
_SCALING_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that stretch rotary positions."""
_T5_OF_GGUF = ("t5", "t5encoder")
_MOST_EXTRA = 10_000
"""Extra tokens that a configuration may ask for; T5 has 100."""


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
        InputError: neither the folder nor the hub holds a tokenizer of that name, the GGUF file cannot be read, or a value of
            its configuration makes no sense.
    """
    from transformers import AutoTokenizer

    _check_extra(Path(source) / "tokenizer_config.json")
    tokenizer = load_from(AutoTokenizer.from_pretrained, source, "tokenizer")
    try:
        tokenizer.all_special_ids  # noqa: B018 (the library looks an unknown token up as the unknown token)
    except RecursionError:
        raise InputError(f"the tokenizer at {source} lacks its own unknown token; copy it anew") from None
    # Every fast tokenizer is saved as tokenizer.json, also one that is published as other files, such as GPT-2's.
    files = dict.fromkeys([*tokenizer.vocab_files_names.values(), "tokenizer.json"])
    # From a folder with a model configuration but no tokenizer, transformers makes an empty tokenizer.
    if Path(source).is_dir() and not any((Path(source) / name).is_file() for name in files):
        fix = "name a folder, a GGUF file or a hub model"
        raise InputError(f"no tokenizer at {source}: none of {', '.join(files)} is there; {fix}")
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer at {source} has no end token; name a tokenizer that has one")
    if tokenizer.pad_token_id is None:
        # Decoder-only models often lack a padding token; attention masks distinguish padding from text.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_extra(file: Path) -> None:
    """Refuse a number of extra tokens whose names alone fill the memory.

    Raises:
        InputError: there are too many.
    """
    extra = None
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the library says what is wrong with the file
        extra = json.loads(file.read_text(encoding="utf-8")).get("extra_ids")
    if isinstance(extra, int | float) and extra > _MOST_EXTRA:
        raise InputError(f"{file} asks for {extra} extra tokens (extra_ids), more than {_MOST_EXTRA}; copy it anew")


def load_from(load: Callable[..., _T], source: str | Path, kind: str, **options: object) -> _T:
    """Call `load`, a `from_pretrained`, for a folder or a GGUF file, or for a name of the hub if there is no such folder.

    No code of a checkpoint is run: neither Python files that it names (`auto_map`) nor pickles.

    Raises:
        InputError: there is nothing loadable. Without a network this is reported at once, while the hub's own client retries
            for half a minute.
    """
    if (Path(source) / "large").is_dir() and not (Path(source) / "config.json").exists():
        raise InputError(f"{source} holds several models; append the name of one, such as /large")
    there = is_gguf(source) or Path(source).is_dir()
    if not there and isinstance(source, Path):
        raise InputError(f"no {kind} at {source}: there is no such folder; run the stage that makes it (dvc repro)")
    if there and (changed := damage(Path(source))):
        raise InputError(f"{kind} at {source}: {changed}; make it again (dvc repro), or copy it anew")
    offline = not there and not hub_answers()
    try:
        names = _gguf_location(source) if is_gguf(source) else {"pretrained_model_name_or_path": str(source)}
        # Without this answer `transformers` asks on standard input, where it may read a text of the user's as a yes.
        return load(**names, local_files_only=there or offline, trust_remote_code=False, **options)
    except (InputError, MemoryError):
        raise
    except ImportError as error:
        raise InputError(f"{kind} at {source} needs what is not installed: {' '.join(str(error).split())}") from None
    except Exception as error:  # noqa: BLE001 (a damaged file fails wherever a library first uses a value, and in its own way)
        if "can't start new thread" in str(error):
            raise MemoryError(str(error)) from None
        reason = (str(error) or type(error).__name__).strip().split("\n")[0].rstrip(". ")
        if reason.endswith(":"):  # the head of a list of what transformers has tried
            reason = "its files are missing or damaged"
        if "trust_remote_code" in str(error):
            reason = "it needs Python code of its own (auto_map), which is never run"
        elif pickles := sorted(file.name for file in Path(source).glob("pytorch_model*.bin")):
            reason = f"{pickles[0]} is a pickle, which can run code; convert it to safetensors"
        if offline:
            reason = "there is no such folder, the hub does not answer, and nothing of that name was downloaded before"
        raise InputError(f"no {kind} at {source}: {reason}; name a folder, a GGUF file or a hub model") from None


def is_gguf(source: str | Path) -> bool:
    """Whether a name means a GGUF file, by its ending."""
    return Path(source).suffix.lower() == ".gguf"


def _gguf_location(source: str | Path) -> dict[str, str]:
    """Return the arguments by which a `from_pretrained` finds a GGUF file.

    Raises:
        ValueError: the file cannot be opened, or transformers would read it wrongly; says why.
    """
    file = Path(source)
    if not file.is_file():
        raise ValueError("there is no such file")
    if missing := [name for name in _GGUF_PACKAGES if importlib.util.find_spec(name) is None]:
        raise ValueError(f"reading it needs the package {missing[0]}: pip install 'draftline[gguf]'")
    _check_what_is_dropped(file)
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


def _check_what_is_dropped(file: Path) -> None:
    """Refuse what transformers drops from a GGUF file without a word, since the model would write nonsense.

    That is the scaling of rotary positions, and the activation of a T5: transformers 5.23 reads each as one of gated ReLU.

    Raises:
        ValueError: the positions are scaled, the model is a T5, or the header cannot be read.
    """
    from transformers.integrations.gguf import read_gguf_metadata

    try:
        metadata, tensors = read_gguf_metadata(str(file))
    except (TruncatedError, IndexError):
        raise ValueError("the file ends within its header; copy it again") from None
    if metadata.get("general.architecture") in _T5_OF_GGUF:
        raise ValueError("it is a T5, of which transformers does not read the activation from GGUF; use the model's folder")
    scaled = [name for name in tensors if name in _SCALING_FACTORS]
    scaled += [key for key, value in metadata.items() if key.endswith(".rope.scaling.type") and value != "none"]
    if scaled:
        fix = "use the model's folder"
        raise ValueError(f"its rotary positions are scaled ({scaled[0]}), which transformers does not read from GGUF; {fix}")
