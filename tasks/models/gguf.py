"""Opens GGUF files, the format of llama.cpp: weights, configuration, tokenizer and chat template in one file.

`transformers` reads the file and turns quantised weights back into floating-point ones. Nothing but the load reads the file:
what is saved afterwards is a plain `transformers` folder.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from struct import error as TruncatedError

_PACKAGES = ("gguf", "accelerate")
_SCALING_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that stretch rotary positions."""
_T5 = ("t5", "t5encoder")


def is_gguf(source: str | Path) -> bool:
    """Whether a name means a GGUF file, by its ending."""
    return Path(source).suffix.lower() == ".gguf"


def location(source: str | Path) -> dict[str, str]:
    """Return the arguments by which a `from_pretrained` finds a GGUF file.

    Raises:
        ValueError: the file cannot be opened, or transformers would read it wrongly; says why.
    """
    file = Path(source)
    if not file.is_file():
        raise ValueError("there is no such file")
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
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
    if metadata.get("general.architecture") in _T5:
        raise ValueError("it is a T5, of which transformers does not read the activation from GGUF; use the model's folder")
    scaled = [name for name in tensors if name in _SCALING_FACTORS]
    scaled += [key for key, value in metadata.items() if key.endswith(".rope.scaling.type") and value != "none"]
    if scaled:
        raise ValueError(
            f"its rotary positions are scaled ({scaled[0]}), which transformers does not read from GGUF; use the model's folder"
        )
