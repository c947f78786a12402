"""The fused runtime as on a GPU, on a machine without one: tensors have a device and a shape, and no numbers.

What a CUDA graph repeats reads no tensor of the host and never waits for the device, and the loop around it waits in the listed
lines alone.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance, Runtime
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.method import GREEDY, Pair, Request, SamplingSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.runtimes import blueprint
from tasks.decoding.runtimes.choose import open_decoders
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.runtimes.fused_stack import FusedStack
from tests.fake_cuda import FakeCuda, RefusedError, fake_cuda
from tests.unit.decoding.runtimes.odd import model_of

KINDS = (
    *("t5 relu", "t5 gated-gelu", "mt5", "bart", "marian"),
    *("gpt2", "llama, llama3", "qwen2", "qwen3, windows", "gemma2", "gemma3"),
)
SOURCE = [3, 4, 5, 1]
BILD = BildSettings(fallback_threshold=0.5, max_draft=2)
FETCHED = "tasks/decoding/runtimes/cuda_graphs.py fetch.wait: arrived.synchronize()"
STEP = "tasks/decoding/runtimes/fused.py FusedDecoder.forward: best = predicted.best.tolist()"
WAITS = {
    # The tokens of a continuation or of a check arrive at the host.
    FETCHED,
    # The tokens of a run that the general loop asked for.
    STEP,
    # The drafter's confidence, argmax and draws, and the target's.
    "tasks/decoding/drafters/base.py StepwiseDrafter._confidence: "
    "top: list[float] = block.scores.amax(-1).squeeze(-1).tolist()  # max q of each row",
    "tasks/decoding/distributions.py PredictionBlock.argmax_rows: self._argmax = self.logits.argmax(-1).tolist()",
    "tasks/decoding/distributions.py TokenSource.draw: "
    "tokens: list[int] = invert(dist, uniforms.to(dist.device, non_blocking=True)).tolist()",
    # Which drafted tokens are accepted, and the greedy token behind a draft that a cascade accepted.
    "tasks/decoding/loop.py _accept: "
    "for row, drafted, chances in zip(rows, draft.tokens, result.accept.tolist(), strict=True):",
    "tasks/decoding/loop.py _take: chosen: list[int] = dist.argmax(-1).tolist()",
    # How confident the small model is of a whole answer.
    "tasks/decoding/loop.py _score: "
    "row.log_probabilities += probability(torch.log_softmax(p.logits[index, :new].float(), -1), tokens).tolist()",
    # Beams are ranked on the host, which also says where their predictions lie.
    "tasks/decoding/methods/beam.py rank: rows = zip(top.values.tolist(), top.indices.tolist(), strict=True)",
    "tasks/decoding/methods/beam.py BeamSearch._verify: "
    "for (owner, text), ranked in zip(cells, rank(step.logits[list(rows), list(columns)], count), strict=True):",
}
"""Where the loop waits, because it decides on the host."""
BOUNDS = {"draft_length": 2, "max_draft": 2, "beams": 2, "draft_beams": 2}
"""Settings with which a draft and the token behind it are a whole text of three tokens."""


def opened(cuda: FakeCuda) -> Pair:
    small, large = cuda.models
    pair = open_decoders(small, large, runtime=Runtime("fused"))
    # What waits while a model is opened does so once.
    cuda.waits.clear()
    return pair


def test_every_architecture_is_run() -> None:
    assert {model_of(kind).config.model_type for kind in KINDS} == set(blueprint._READERS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_for_fetched_tokens_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of some tokens, a check that reads scores, and a greedy loop that reads entropies too, all captured."""
    with fake_cuda(monkeypatch, model_of(kind), model_of(kind)) as cuda:
        pair = opened(cuda)
        large = pair.large
        assert isinstance(large, FusedDecoder)
        [prompt] = large.start(large.encode([SOURCE]))
        large.forward([prompt])
        assert cuda.waits == {STEP}
        cuda.waits.clear()
        # The drafter goes on, and two of its tokens are accepted.
        cuda.answer = 2
        large.check_draft([4], [5, 6], GreedyAcceptance(1.0, keep_agreed=True))
        large.continue_greedily([7], 2, DraftRule(fallback_threshold=0.1, max_entropy=3.0))
        decode("bild", BILD, pair, [SOURCE], Request(3))
        assert cuda.waits == {FETCHED}
        assert cuda.captures >= 5


@pytest.mark.parametrize("kind", ["t5 gated-gelu", "llama, llama3"])
def test_rows_are_moved_and_cut_without_a_wait(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(kind)
    with fake_cuda(monkeypatch, model, model) as cuda:
        large = opened(cuda).large
        large.forward(large.start(large.encode([SOURCE, [3, 1]])))
        # Exchanged, copied, and moved from a slot that is given up.
        for rows in ([1, 0], [1, 1, 0], [2]):
            large.reorder(rows)
            large.rewind([length - 1 for length in large.lengths])
            large.forward([[5, 6]] * len(rows))
        assert cuda.waits == {STEP}


def test_methods_wait_in_listed_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method of the fused runtime, greedy and drawn, on one row and on two that begin with prompts of unequal length."""
    model = model_of("llama, llama3")
    drawn = SamplingSettings(temperature=1.0, top_k=5, top_p=0.9)
    with fake_cuda(monkeypatch, model, model) as cuda:
        pair = opened(cuda)
        for name, method in METHODS.items():
            if method.t5_only:  # it leaves out layers, in the reference runtime
                continue
            settings = method.settings(**{bound: value for bound, value in BOUNDS.items() if hasattr(method.settings, bound)})
            for sampling in (GREEDY,) if method.greedy_only else (GREEDY, drawn):
                # Numbers that reject every draft, and that accept it.
                for cuda.answer in (0, 2):
                    decode(name, settings, pair, [SOURCE, [3, 1]], Request(3, sampling))
                # A runtime that checks the draft of one row would accept two tokens of a cascade's answer, which drafts none.
                if name != "sequence_cascade":
                    decode(name, settings, pair, [SOURCE], Request(3, sampling))
        assert cuda.waits == WAITS


def operand_of_the_host(hidden: Tensor) -> Tensor:
    return hidden + torch.ones(hidden.shape)


def number_of_the_host(hidden: Tensor) -> Tensor:
    return hidden * torch.tensor(2.0)


def hidden_read(hidden: Tensor) -> Tensor:
    return hidden * hidden.sum().item()


def branch(hidden: Tensor) -> Tensor:
    return hidden if hidden.sum() > 0 else -hidden


def list_of_numbers(hidden: Tensor) -> Tensor:
    return hidden * len(hidden[0, 0].tolist())


def copy_to_the_host(hidden: Tensor) -> Tensor:
    return hidden.cpu().to(hidden.device)


def elements_of_a_mask(hidden: Tensor) -> Tensor:
    return hidden + hidden[hidden > 0].sum()


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (operand_of_the_host, "return hidden + torch.ones(hidden.shape)", "aten.ones on a tensor of the host"),
        (number_of_the_host, "return hidden * torch.tensor(2.0)", "on a tensor of the host"),
        (hidden_read, "return hidden * hidden.sum().item()", "the host reads a tensor"),
        (branch, "return hidden if hidden.sum() > 0 else -hidden", "the host reads a tensor"),
        (list_of_numbers, "return hidden * len(hidden[0, 0].tolist())", "the host reads a tensor"),
        (copy_to_the_host, "return hidden.cpu().to(hidden.device)", "a copy to the host waits"),
        (elements_of_a_mask, "return hidden + hidden[hidden > 0].sum()", "the number of elements"),
    ],
)
def test_a_broken_step_is_refused_with_its_line(
    change: Callable[[Tensor], Tensor], line: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = FusedStack.predict
    monkeypatch.setattr(FusedStack, "predict", lambda self, hidden: predict(self, change(hidden)))
    model = model_of("llama, llama3")
    with fake_cuda(monkeypatch, model, model) as cuda:
        large = opened(cuda).large
        large.start(large.encode([SOURCE]))
        with pytest.raises(RefusedError) as refused:
            large.forward([SOURCE])
    assert f"{change.__name__}: {line}: " in str(refused.value)
    assert reason in str(refused.value)
