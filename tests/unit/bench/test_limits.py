"""What the benchmark says of the machine's limits."""

from __future__ import annotations

import pytest

from tasks.bench.limits import limit_lines, measure_limits, step_limits, step_lines
from tasks.bench.measuring import CaseResult
from tasks.bench.shares import MatrixSizes, matrix_sizes, shares
from tasks.bench.targets import as_json
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.choose import open_decoder
from tests.toys import toy_t5
from tests.unit.decoding.runtimes.odd import model_of

SOURCE = [3, 4, 5, 1]


def step(share: float) -> dict[str, object]:
    return {"step": {"step_ms": 1.0, "check_over_step": 1.1, "read_mib": 8.0, "bandwidth_share": share}}


def test_a_share_under_a_half_is_a_warning() -> None:
    assert not any("warning" in line for line in step_lines({"float32": step(0.51)}))
    [_, warning] = step_lines({"int8": step(0.49)})
    assert "warning" in warning and "int8" in warning


@pytest.mark.skipif(compiled.library() is None, reason="needs a C++ compiler")
def test_limits_and_steps_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.bench.limits._WORKING_SETS", {"32 KiB": 1 << 15})
    limits = measure_limits([1])
    assert limits["read_gb_s"]["32 KiB"]["1"] > 1
    assert "32 KiB" in "\n".join(limit_lines(limits))
    found = step_limits(open_decoder(toy_t5(0, 1, 2), "large"), SOURCE)
    assert found["step_ms"] > 0 and found["bandwidth_share"] > 0
    # Five tokens in one run are no cheaper than one, and no dearer than five runs, whatever the noise.
    assert 0.5 < found["check_over_step"] < 10


def test_a_runtime_that_declares_nothing_has_no_share() -> None:
    assert step_limits(open_decoder(toy_t5(0, 1, 2), "large", runtime=REFERENCE), SOURCE) == {}
    assert list(step_lines({"float32": {"step": {}}})) == []


def test_without_a_compiler_there_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.decoding.runtimes.compiled.library", lambda: None)
    assert measure_limits([1]) == {}
    assert "no C++ compiler" in "\n".join(limit_lines({}))


def test_the_last_line_has_the_step_of_its_own_case_in_float32() -> None:
    measured = CaseResult("4 layers d 256", formats={"float32": step(0.9), "int8": step(0.2)})
    found = as_json([CaseResult("2 layers d 64", formats={"float32": step(0.6)}), measured], {}, {"read_gb_s": {}}, 1, 1)
    assert (found["bandwidth_share"], found["check_over_step"], found["limits"]) == (0.9, 1.1, {"read_gb_s": {}})
    without = as_json([CaseResult("4 layers d 256")], {}, {}, 1, 1)
    assert without["bandwidth_share"] is None and without["check_over_step"] is None


def test_matrices_are_counted_by_the_tokens_that_they_multiply() -> None:
    model = toy_t5(0, 1, 2)
    config = model.config
    inner, width, feed = config.num_heads * config.d_kv, config.d_model, config.d_ff
    encoder = config.num_layers * (4 * width * inner + 2 * width * feed)
    read = config.num_decoder_layers * 2 * width * inner
    decoder = config.num_decoder_layers * (6 * width * inner + 2 * width * feed) + width * config.vocab_size
    assert matrix_sizes(model) == MatrixSizes(encoder + read, decoder)
    causal = matrix_sizes(model_of("gpt2"))
    assert causal.per_source_token == causal.per_token > 0


def test_shares_are_of_bytes_or_of_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.decoding.runtimes.compiled.multiply_rates", lambda: {"float32": 1e9})
    monkeypatch.setattr("tasks.decoding.runtimes.compiled.read_bandwidth", lambda size, threads: size * 100.0 * threads)
    settings = {"vanilla": "1 thread", "generate": "static cache, 2 threads", "batched": "2 threads", "drafter": "1 thread"}
    times = {"vanilla": 20.0, "generate": 20.0, "batched": 0.5, "drafter": 1.0}
    found = shares(settings, times, MatrixSizes(100_000, 300_000), 2.0)
    assert found == {"vanilla": 0.5, "generate": 0.25, "batched": 0.5}
    monkeypatch.setattr("tasks.decoding.runtimes.compiled.multiply_rates", lambda: None)
    assert shares(settings, times, MatrixSizes(1, 1), 1.0) == {}
