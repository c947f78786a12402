"""Bounded, documented settings."""

import dataclasses

import pytest

from tasks.settings import setting, settings


@settings
class Sample:
    """A sample."""

    share: float = setting("A share.", default=0.5, ge=0, lt=1)
    name: str = setting("A name.", default="a", choices=("a", "b"))
    loss: float = setting("A loss.", default=0.0, ge=0)
    most: float = setting("A limit.", default=0.0, infinite=True)
    sizes: list[int] = setting("Sizes.", default_factory=list, gt=0, le=9)

    def validate(self) -> None:
        if self.name == "b" and self.share == 0:
            raise ValueError("b needs a share; give more than 0")


def test_defaults_and_values() -> None:
    assert Sample() == Sample(share=0.5, name="a", sizes=[])
    assert Sample(sizes=[9]).sizes == [9]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sample().share = 0.1  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"share": 1.0}, "share is 1.0; it must be less than 1"),
        ({"share": -0.1}, "share is -0.1; it must be at least 0"),
        ({"share": float("nan")}, "share is nan"),
        ({"loss": float("inf")}, "loss is inf; it must be a finite number"),
        ({"most": float("nan")}, "most is nan; it must be a number"),
        ({"name": "c"}, "name is 'c'; it must be one of a, b"),
        ({"sizes": [3, 0]}, "sizes is 0; it must be more than 0"),
        ({"sizes": [3, 10]}, "sizes is 10; it must be at most 9"),
        ({"name": "b", "share": 0.0}, "b needs a share"),
    ],
)
def test_values_out_of_bounds_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        Sample(**values)  # type: ignore[arg-type]  # wrong on purpose
