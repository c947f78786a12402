"""Exports a decoder-only pair for OpenVINO GenAI: two folders that `LLMPipeline` opens, the draft length in the large one's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.export.readme import encoding, example, readme
from tasks.export.source import ExportSource, left_behind
from tasks.export.to_transformers import ONLY_HERE
from tasks.models.openvino_model import check_convertible, require_openvino, write_openvino_model
from tasks.verify.transformers_engine import draft_constantly

_WEIGHTS = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", "README.md")


def write(source: ExportSource, out: Path) -> list[str]:
    """Write the folder `out`, which exists and is empty, and return what was left behind.

    Raises:
        InputError: OpenVINO GenAI is not installed, or cannot draft for these models.
    """
    from transformers import GenerationConfig

    require_openvino()
    models = ((source.large, out / LARGE), (source.drafter, out / DRAFTER))
    for folder, _ in models:
        check_convertible(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    for folder, written in models:
        shutil.copytree(folder, written, ignore=lambda at, names: ONLY_HERE(at, names) | _WEIGHTS(at, names))
        write_openvino_model(folder, written)
    settings = GenerationConfig.from_pretrained(source.large)
    draft_constantly(settings, source.draft_length)
    settings.max_new_tokens, settings.do_sample = source.manifest.text.max_target_tokens, False
    settings.save_pretrained(out / LARGE)
    lost = left_behind(source)
    (out / "README.md").write_text(readme(source, "OpenVINO GenAI", _how(source), _code(source), lost), encoding="utf-8")
    return lost


def _how(source: ExportSource) -> str:
    return (
        f"`{LARGE}/` and `{DRAFTER}/` hold networks in float32 with tokenizers of OpenVINO and of `transformers`. The\n"
        f"settings in `{LARGE}/generation_config.json` make GenAI draft {source.draft_length} tokens at a time; a pipeline\n"
        "with a drafter does not read that file by itself. The output is the large model's own as long as both\n"
        "precisions below are `f32`: by itself OpenVINO computes in bfloat16 where the processor does, and keeps the past\n"
        "in 8 bits. Give prompts as token ids, as below: those are what the models were trained on."
    )


def _code(source: ExportSource) -> str:
    return (
        "import numpy as np\nimport openvino\nimport openvino_genai\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{LARGE}")\n'
        'exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}\n'
        f'drafter = openvino_genai.draft_model("{DRAFTER}", "CPU", **exact)\n'
        f'pipeline = openvino_genai.LLMPipeline("{LARGE}", "CPU", draft_model=drafter, **exact)\n\n'
        f"{example(source)}{encoding(source)}"
        f'settings = openvino_genai.GenerationConfig("{LARGE}/generation_config.json")\n'
        "found = pipeline.generate(openvino.Tensor(np.array([ids])), settings)\n"
        "print(tokenizer.decode(found.tokens[0], skip_special_tokens=True))\n"
    )
