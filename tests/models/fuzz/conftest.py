"""The time for fuzzing."""

from __future__ import annotations

import pytest

from .targets import TARGETS

PARTS = len(TARGETS) + 1  # REST is one more
STARTING_SECONDS = 120  # at most, and to report findings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=0.0,
        help="of all targets together, each as long; 0: the same few inputs each time",
    )


@pytest.fixture(scope="session")
def seconds(pytestconfig: pytest.Config) -> float:
    """Return the seconds for each part."""
    return float(pytestconfig.getoption("fuzz_seconds")) / PARTS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "seconds" in getattr(item, "fixturenames", ()):
            each = config.getoption("fuzz_seconds") / PARTS
            item.add_marker(pytest.mark.timeout(2 * each + STARTING_SECONDS))
