"""The executors of one method compared."""

from tasks.decoding import loop, native_loop
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.loop import SpeculativeLoop, executor_for


def same_in_the_kernel(method: SpeculativeLoop, sources: Rows, limit: int) -> list[Generation]:
    """Require that the kernel decodes sources as the general loop does, side by side and one by one; return what it decodes."""
    assert executor_for(method, 1) is executor_for(method, len(sources)) is native_loop.generate
    expected = loop.generate(method, sources, range(len(sources)), limit)
    assert method.run(sources, range(len(sources)), limit) == expected
    assert [method.run([source], [example], limit)[0] for example, source in enumerate(sources)] == expected
    return expected
