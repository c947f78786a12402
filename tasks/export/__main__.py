"""Write a pair in the form that another engine opens: `python -m tasks.export results/translation/pair --to transformers OUT`.

OUT is a new folder with the models, what the engine needs to draft as the pair's certificate says, and a README.md that shows a
call. What the form cannot carry is printed in one line and written there.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.console import add_json, answer, command_parser
from tasks.decoding.pair_folder import DRAFTER, LARGE, PairManifest, engine_draft_length, read_examples, read_manifest
from tasks.errors import InputError, stage
from tasks.export.llama_cpp import write_gguf_model
from tasks.files import SUMS, atomic_folder
from tasks.models.card import markdown_templates
from tasks.models.extras import FILES as EXTRAS
from tasks.models.pruned_head import FILE as DRAFT_TOKENS
from tasks.models.settings import SOURCE
from tasks.verify import draft_constantly

TOKENIZER, VLLM_CONFIG = "tokenizer", "speculative_config.json"
_ONLY_HERE = shutil.ignore_patterns(*EXTRAS, DRAFT_TOKENS, SUMS)
"""Files of a model's folder that only this project reads."""
_NO_MODEL = shutil.ignore_patterns(
    *EXTRAS, DRAFT_TOKENS, SUMS, "config.json", "generation_config.json", "*.safetensors*", "README.md"
)
_KEPT_METHODS = ("speculative", "vanilla_large")
"""Methods whose greedy output and drafts are those of any engine with a fixed draft length."""


@dataclass(frozen=True)
class ExportSource:
    """A pair folder that is to be exported."""

    folder: Path
    manifest: PairManifest
    config: dict[str, Any]
    """`config.json` of the large model."""

    @property
    def models(self) -> dict[str, Path]:
        """The folders of the large model and of the drafter, by the names that they have in a pair folder."""
        return {name: self.folder / name for name in (LARGE, DRAFTER)}

    @property
    def encoder_decoder(self) -> bool:
        """Whether the models are encoder-decoders."""
        return bool(self.config.get("is_encoder_decoder"))

    @property
    def draft_length(self) -> int:
        """Tokens that an engine should draft at a time."""
        return engine_draft_length(self.manifest)

    def left_behind(self) -> list[str]:
        """Say what of a pair only this project reads, one clause each."""
        point, found = self.manifest.point, []
        if point.method not in _KEPT_METHODS or getattr(point.settings, "drafter", "small") != "small":
            found.append(f"the operating point ({point}), in place of which the engine drafts at a fixed length or not at all")
        if (self.models[DRAFTER] / DRAFT_TOKENS).is_file():
            found.append("the draft vocabulary, so the drafter is slower and may draft other tokens")
        if any((folder / name).is_file() for folder in self.models.values() for name in EXTRAS):
            found.append("draft heads and exit classifier")
        if self.manifest.text.chat_template:
            said = "the instruction and system message around a source, which README.md shows"
            found.append(f"{said}; the chat template is carried")
        found.append("measurements and certificate, which stay in pair.json")
        return found


def read_source(folder: Path) -> ExportSource:
    """Read what a pair folder says of itself.

    Raises:
        InputError: there is no such folder, it is damaged, or a model is missing.
    """
    manifest, file = read_manifest(folder), folder / LARGE / "config.json"
    try:
        return ExportSource(folder, manifest, json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); copy the folder again") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); copy the folder again") from None


# --- the page of an exported pair -----------------------------------------------------------------------------------------


def readme(source: ExportSource, form: str, lost: Sequence[str]) -> str:
    """Return the page: what was written, a call that decodes an example of the pair, and what was not carried over."""
    page = markdown_templates("tasks.export", "pages").get_template(f"{form}.md.j2")
    example = [*read_examples(source.folder), "A text."][0]
    return page.render(source=source, settings=source.manifest.text, SOURCE=SOURCE, example=example, lost=lost)


# --- the forms ------------------------------------------------------------------------------------------------------------


def to_transformers(source: ExportSource, out: Path) -> None:
    """Write two folders for assisted generation of `transformers`, the drafter's with the draft length in it."""
    from transformers import GenerationConfig

    for name, folder in source.models.items():
        shutil.copytree(folder, out / name, ignore=_ONLY_HERE)
    settings = GenerationConfig.from_pretrained(source.models[DRAFTER])
    draft_constantly(settings, source.draft_length)
    settings.save_pretrained(out / DRAFTER)


def to_ctranslate2(source: ExportSource, out: Path) -> None:
    """Convert both models by CTranslate2's own converter, in float32, with the real vocabulary.

    Raises:
        InputError: CTranslate2 is not installed, does not know the architecture, or cannot run a model of this shape.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        raise InputError("this needs CTranslate2, which is not installed: pip install ctranslate2")
    from ctranslate2.converters import TransformersConverter

    for name, folder in source.models.items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads, width, size = (config.get(key) for key in ("num_attention_heads", "hidden_size", "head_dim"))
        if config.get("model_type") == "llama" and size is not None and heads * size != width:
            said = "CTranslate2 runs Llama models only where heads times their size is the width"
            raise InputError(f"{folder} has {heads} heads of {size} in a width of {width}; {said}")
        try:
            TransformersConverter(str(folder)).convert(str(out / name))
        except ValueError as error:
            raise InputError(f"CTranslate2 does not convert {folder}: {str(error).splitlines()[0]}") from None
        written = json.loads((out / name / "config.json").read_text(encoding="utf-8"))
        if "bos_token" in written and written["bos_token"] is None:
            # CTranslate2 opens no model without a start token, even where no prompt uses one.
            written["bos_token"] = written["eos_token"]
            (out / name / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    shutil.copytree(source.models[LARGE], out / TOKENIZER, ignore=_NO_MODEL)


def to_gguf(source: ExportSource, out: Path) -> None:
    """Write two GGUF files for llama.cpp in float32, each with shape, weights and tokenizer.

    Raises:
        InputError: the package `gguf` is not installed, or llama.cpp does not draft for these models.
    """
    _require_decoder_only(source, "llama.cpp drafts for")
    for name, folder in source.models.items():
        write_gguf_model(folder, out / f"{name}.gguf", f"{source.manifest.task} {name}".strip())
    shutil.copytree(source.models[LARGE], out / TOKENIZER, ignore=_NO_MODEL)


def to_vllm(source: ExportSource, out: Path) -> None:
    """Write two folders and the `speculative_config` that names the drafter.

    vLLM does not run here. The keys and their meaning are those of its documentation
    (https://docs.vllm.ai/en/latest/features/speculative_decoding/draft_model/) and of its class `SpeculativeConfig`.

    Raises:
        InputError: the models are encoder-decoders.
    """
    _require_decoder_only(source, "vLLM runs")
    for name, folder in source.models.items():
        shutil.copytree(folder, out / name, ignore=_ONLY_HERE)
    config = {"method": "draft_model", "model": DRAFTER, "num_speculative_tokens": source.draft_length}
    (out / VLLM_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _require_decoder_only(source: ExportSource, engine: str) -> None:
    """Raise `InputError` where the models are encoder-decoders."""
    if source.encoder_decoder:
        kind = source.config.get("model_type")
        raise InputError(f"{engine} no encoder-decoder such as {kind}; export to transformers or ctranslate2 instead")


_LOST = {"ctranslate2": ["drafting, which CTranslate2 does not have: each model decodes alone"]}
"""What a form cannot carry, beyond what no engine reads; one clause each."""
FORMS = {"transformers": to_transformers, "ctranslate2": to_ctranslate2, "gguf": to_gguf, "vllm": to_vllm}


def main() -> None:
    """Export the pair and say what was left behind."""
    parser = command_parser(__doc__)
    parser.add_argument("pair", type=Path, metavar="PAIR", help="a folder with pair.json, which the report stage writes")
    parser.add_argument("--to", required=True, choices=FORMS, help="the engine that is to open the pair")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; it must not exist")
    add_json(parser)
    arguments = parser.parse_args()
    source, out = read_source(arguments.pair), arguments.out
    if out.exists():
        raise InputError(f"{out} exists; name a new folder, or remove it")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.absolute().parent} is no folder; make it, or name another")
    with atomic_folder(out.absolute()) as partial:
        FORMS[arguments.to](source, partial)
        lost = [*_LOST.get(arguments.to, ()), *source.left_behind()]
        (partial / "README.md").write_text(readme(source, arguments.to, lost), encoding="utf-8")
    said = f"{out}: for {arguments.to}; not carried over: {'; '.join(lost)}"
    answer(arguments, said, folder=str(out), engine=arguments.to, not_carried_over=lost)


if __name__ == "__main__":
    with stage():
        main()
