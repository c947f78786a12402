"""The fused runtime on its own: the reference's tokens with recorded graphs and without, and what it records and fetches."""

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, BrokenLogitsError, Draws, GreedyAcceptance, Runtime
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import total
from tasks.decoding.loop import SpeculativeLoop, continue_sampled, executor_for, generate
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import ConfidentSettings, SpeculativeSettings
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.runtimes import fused as fused_runtime
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.decoding.runtimes.cuda_graphs import CudaGraphRecorder, GraphCache, fetch, rounded
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, FusedDecoder, SyncPolicy
from tasks.decoding.runtimes.fused_stack import assign_slots
from tasks.errors import InputError
from tasks.models.layers import shares_encoder
from tests.acceptance import kept_by
from tests.architectures import models
from tests.branching import BranchingSource
from tests.methods import DRAWN, SETTINGS
from tests.tape import TapeRecorder
from tests.toys import toy_sources
from tests.unit.decoding.runtimes.odd import fused

LIMIT = 14
AGREED = GreedyAcceptance(-1.0, keep_agreed=True)
GREEDY: list[tuple[str, Any]] = [
    ("vanilla_large", VanillaSettings()),
    ("vanilla_small", VanillaSettings()),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=0.2, max_draft=4)),
    ("speculative", SpeculativeSettings(draft_length=4)),
    ("speculative_confident", ConfidentSettings(max_draft=4, stop_below=0.5)),
    ("beam_large", BeamSettings(beams=3)),
    ("speculative_beam", SpeculativeBeamSettings(beams=2, draft_beams=4, draft_length=2)),
]


# Every method recorded and not, on two architectures; the other two with two methods. `test_fast_runtimes` compares numbers.
COVERING = [
    *(("t5", True, *case) for case in GREEDY),
    *(("llama", False, *case) for case in GREEDY),
    *((name, True, *GREEDY[method]) for name in ("mt5", "gpt2") for method in (2, 6)),
]


def fused_pair(name: str, *, recorded: bool, sync_policy: SyncPolicy) -> Pair:
    small, large = (fused(one, recorder=TapeRecorder() if recorded else None, sync_policy=sync_policy) for one in models(name))
    return Pair(small, large, shares_encoder=shares_encoder(*models(name)))


def reference_pair(name: str) -> Pair:
    return open_decoders(*models(name), runtime=REFERENCE)


@pytest.mark.parametrize(("name", "recorded", "method", "settings"), COVERING)
def test_tokens_and_counts_are_the_references(name: str, recorded: bool, method: str, settings: Any) -> None:
    sources = toy_sources(4)
    ours = fused_pair(name, recorded=recorded, sync_policy=ONE_AHEAD if recorded else EACH_STEP)
    expected = decode(method, settings, reference_pair(name), sources, Request(LIMIT))
    assert decode(method, settings, ours, sources, Request(LIMIT)) == expected
    alone = [decode(method, settings, ours, [source], Request(LIMIT), [example])[0] for example, source in enumerate(sources)]
    assert alone == expected
    if method in ("bild", "speculative"):
        assert total(expected).rollbacks > 2


FULLY = ("speculative", "bild")
"""Methods whose drafts are drawn otherwise than the target's tokens in the quick tests too."""
SAMPLED = [
    *("vanilla_large", "speculative", "speculative_lossy", "bild"),
    *("speculative_confident", "speculative_cascade", "sequence_cascade"),
]


WAYS = [
    pytest.param(
        method, drawn, id=f"{method}-{name}", marks=() if "drafts" not in name or method in FULLY else pytest.mark.slow
    )
    for method in SAMPLED
    for name, drawn in DRAWN.items()
]


@pytest.mark.parametrize(("method", "drawn"), WAYS)
def test_sampled_tokens_and_counts_are_the_references(method: str, drawn: tuple[SamplingSettings, dict[str, Any]]) -> None:
    sources, settings, (sampling, rest) = toy_sources(3), SETTINGS[method][-1], drawn
    request = Request(LIMIT, sampling, **rest)
    for name, recorded in (("t5", True), ("llama", False)):
        expected = decode(method, settings, reference_pair(name), sources, request)
        ours = fused_pair(name, recorded=recorded, sync_policy=ONE_AHEAD if recorded else EACH_STEP)
        assert decode(method, settings, ours, sources, request) == expected
        alone = [decode(method, settings, ours, [one], request, [example])[0] for example, one in enumerate(sources)]
        assert alone == expected


@pytest.mark.parametrize("sampling", [DRAWN["plain"][0], DRAWN["truncated"][0]])
def test_a_sampled_turn_waits_for_fetched_numbers_alone(sampling: SamplingSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without numbers, of which any read but `fetch` is refused; the tokens that it gives are then all 2."""
    fetched = MagicMock(side_effect=lambda tensor: lambda: torch.full(tensor.shape, 2, dtype=tensor.dtype))
    monkeypatch.setattr(fused_runtime, "fetch", fetched)
    small, large = (fused(copy.deepcopy(model).to("meta"), sync_policy=SyncPolicy(8)) for model in models("llama"))
    request = Request(7, sampling)
    for method, shapes in (("vanilla_large", [(3, 7)]), ("speculative", [(3, 3), (6,)] * 2 + [(3,)])):
        settings = SpeculativeSettings(draft_length=3) if method == "speculative" else VanillaSettings()
        [text] = decode(method, settings, Pair(small, large), toy_sources(1), request)
        assert set(text.tokens) == {2}
        assert [tuple(call.args[0].shape) for call in fetched.call_args_list] == shapes
        fetched.reset_mock()


def test_what_is_not_drawn_in_one_call() -> None:
    def executor(sampling: SamplingSettings, rows: int = 1, **rest: Any) -> Any:
        pair = fused_pair("t5", recorded=False, sync_policy=EACH_STEP)
        method = METHODS["vanilla_large"].make(VanillaSettings(), pair, Request(5, sampling, **rest))
        assert isinstance(method, SpeculativeLoop)
        return executor_for(method, rows)

    hot = SamplingSettings(temperature=1.0)
    assert executor(hot) is continue_sampled
    assert executor(hot, 2) is executor(hot, draws=BranchingSource()) is generate


def test_broken_logits_of_drawn_tokens_are_reported() -> None:
    """A nucleus of broken logits has no tokens, and their index of -1 would end the process on a GPU."""
    model, draws = copy.deepcopy(models("t5")[1]), Draws(SamplingSettings(temperature=1.0, top_p=0.9), [0.5] * 3)
    decoder = fused(model)
    start = decoder.start(decoder.encode([[5, 9, 1]]))[0]
    model.decoder.final_layer_norm.weight.data.fill_(torch.nan)
    with pytest.raises(BrokenLogitsError, match=r"at step 1$"):
        decoder.continue_sampled(start, draws, DraftRule())


@pytest.mark.parametrize("name", ["t5", "mt5", "llama", "gpt2"])
def test_bfloat16_is_close(name: str) -> None:
    """Its distance from float32 is at most 1.5 times that of the reference in bfloat16."""
    exact = models(name)[1]
    model = copy.deepcopy(exact).bfloat16()
    sources = toy_sources(8)
    steps = []
    for decoder in (fused(exact), fused(model), open_decoder(model, "toy", runtime=REFERENCE)):
        starts = decoder.start(decoder.encode(sources))
        steps.append(decoder.forward([[*row, 4, 5, 6] for row in starts]).logits[:, -3:].float())
    ours, theirs = ((steps[0] - other).norm() / steps[0].norm() for other in steps[1:])
    assert 0 < ours < max(2e-2, 1.5 * float(theirs))


def test_a_cut_vocabulary_and_padding_past_the_positions() -> None:
    decoder = fused(models("gpt2")[1], vocabulary=20)
    decoder.start(decoder.encode([[2] * 60]))
    assert decoder.forward([[2] * 60]).logits.shape[-1] == decoder.vocabulary == 20
    # The padding of the row without new tokens lies past the last position, and is not refused.
    decoder.reorder([0, 0])
    assert decoder.forward([[3, 3, 3, 3], []]).lengths == [4, 0]
    with pytest.raises(ValueError, match="a text of 65 tokens, but the model has 64 positions"):
        decoder.forward([[3], []])


def test_which_models_the_fused_runtime_takes() -> None:
    model = models("llama")[1]
    assert isinstance(open_decoder(model, "large", runtime=Runtime("fused")), FusedDecoder)
    assert not isinstance(open_decoder(model, "large"), FusedDecoder)
    with pytest.raises(InputError, match="the fused runtime does not know models of type bloom configured like the large one"):
        open_decoder(models("bloom")[1], "large", runtime=Runtime("fused"))
    with pytest.raises(InputError, match="the fused runtime takes float32 and bfloat16, not float16; set"):
        open_decoder(copy.deepcopy(model).half(), "large", runtime=Runtime("fused"))


def test_few_recordings_serve_many_runs() -> None:
    recorder = TapeRecorder()
    decoder = fused(models("t5")[1], recorder=recorder)
    for source in toy_sources(10):
        decoder.forward(decoder.start(decoder.encode([source])))
        for token in range(2, 12):
            decoder.forward([[token]])
        decoder.forward([[5, 6, 7]])
    # One each for the encoder, one new token and three.
    assert (recorder.recordings, recorder.replays) == (3, 130)


def test_a_replaced_table_is_recorded_again() -> None:
    """A recording does not keep its inputs alive; on a GPU their memory could hold other tensors by then."""
    recorder = TapeRecorder()
    decoder = fused(models("t5")[1], recorder=recorder)
    for length, recordings in ((5, 1), (60, 1), (70, 2), (5, 3), (6, 3)):
        decoder.encode([[3] * length])
        assert recorder.recordings == recordings


class _Cuda:
    """Graphs and their pools as `torch.cuda` has them: a pool lives as long as a graph in it, and is made once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools: dict[int, weakref.WeakSet[Any]] = {}
        stream = SimpleNamespace(wait_stream=lambda _: None)
        for name, value in {
            "device": lambda _: nullcontext(),
            "current_stream": lambda: stream,
            "Stream": lambda: stream,
            "stream": lambda _: nullcontext(),
            "CUDAGraph": type("CUDAGraph", (), {"replay": lambda _: None}),
            "graph_pool_handle": lambda: len(self.pools),
            "graph": self._capture,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextmanager
    def _capture(self, graph: object, pool: int) -> Iterator[None]:
        assert len(self.pools.setdefault(pool, weakref.WeakSet([graph]))), "the pool was freed with its last graph"
        self.pools[pool].add(graph)
        yield


def test_a_pool_of_graphs_is_not_used_after_its_last_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs share a pool, and all of them go when a cache grows. Seen on a GPU with the second batch of a calibration set."""
    cuda = _Cuda(monkeypatch)
    recorder = CudaGraphRecorder(torch.device("cuda"))
    graphs, other = GraphCache(recorder), GraphCache(recorder)
    assert [graphs.run(("step", size), lambda: 7) for size in (1, 2)] == [7, 7]
    other.run(("encode",), lambda: None)
    graphs.forget()
    graphs.run(("step", 1), lambda: None)
    assert [len(pool) for pool in cuda.pools.values()] == [2]
    graphs.forget()
    other.forget()
    graphs.run(("step", 4), lambda: None)
    assert [len(pool) for pool in cuda.pools.values()] == [0, 1]


def test_results_outlive_the_next_run() -> None:
    decoder = fused(models("t5")[1], recorder=TapeRecorder())
    decoder.forward(decoder.start(decoder.encode(toy_sources(1))))
    for steps in (
        [decoder.forward([[token]]) for token in (4, 6)],
        [decoder.check_draft([token], [5], AGREED).step for token in (4, 6)],
    ):
        assert not torch.equal(steps[0].logits, steps[1].logits)
        assert bool(steps[0].logits.isfinite().all())
        assert steps[0].hidden is not None and bool(steps[0].hidden.isfinite().all())


def test_slots_are_assigned_with_few_copies() -> None:
    assert assign_slots([0, 1, 2], 3) == ([0, 1, 2], [])
    assert assign_slots([2, 0], 4) == ([2, 0], [])
    assert assign_slots([1, 1, 0], 4) == ([1, 2, 0], [(1, 2)])
    assert assign_slots([3, 2], 2) == ([0, 1], [(3, 0), (2, 1)])
    assert assign_slots([3, 3, 0], 4) == ([3, 1, 0], [(3, 1)])
    assert assign_slots([5, 1, 5, 1], 4) == ([0, 1, 2, 3], [(5, 0), (5, 2), (1, 3)])
    assert [rounded(number) for number in (1, 2, 3, 5, 8, 33)] == [1, 2, 4, 8, 8, 64]
    assert [rounded(number, 64) for number in (0, 1, 64, 65, 129)] == [64, 64, 64, 128, 256]


def test_a_draft_is_checked_in_float32_in_any_number_format() -> None:
    decoder = fused(copy.deepcopy(models("t5")[1]).bfloat16(), recorder=TapeRecorder())
    decoder.start(decoder.encode([[5, 9, 1]]))
    drafted = decoder.continue_greedily([0], 5, DraftRule()).tokens
    decoder.rewind([0])
    logits = decoder.check_draft([0], drafted, AGREED).step.logits[0].float()
    distances = [-float(row.log_softmax(-1)[token]) for row, token in zip(logits, drafted, strict=False)]
    for max_surprisal in distances:
        for near in (max_surprisal - 1e-4, max_surprisal + 1e-4):
            decoder.rewind([0])
            keep = GreedyAcceptance(near, keep_agreed=False)
            assert decoder.check_draft([0], drafted, keep).accepted == kept_by(logits, drafted, keep)


def test_a_check_fetches_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transfer brings the argmax tokens and the accepted count; drafts of one length share a recording."""
    fetched = MagicMock(side_effect=fetch)
    monkeypatch.setattr(fused_runtime, "fetch", fetched)
    recorder = TapeRecorder()
    decoder = fused(models("t5")[1], recorder=recorder)
    decoder.start(decoder.encode(toy_sources(1)))
    for turn in range(12):
        decoder.check_draft([4], [5 + turn] * (turn % 2 + 3), GreedyAcceptance(float(turn), keep_agreed=False))
        decoder.rewind([turn])
    assert [call.args[0].shape for call in fetched.call_args_list] == [(5,), (6,)] * 6
    # The encoder, three tokens and four.
    assert recorder.recordings == 3
