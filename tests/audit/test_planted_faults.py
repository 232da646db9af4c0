"""Faults planted in the pipeline are found by the tools that planted.py names, and an unbroken one passes them all."""

import pytest
from planted import FAULTS, TOOLS, UNBROKEN, found


@pytest.mark.parametrize(
    ("fault", "tool"),
    [pytest.param(fault, tool, id=f"{fault.name}: {tool}") for fault in FAULTS for tool in fault.found_by],
)
def test_a_planted_fault_is_found(fault, tool):
    assert found(fault, tool)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unbroken_pipeline_passes_every_tool(tool):
    """A false alarm has a chance of at most planted.LEVEL, none for those that do not measure; the seed is fixed."""
    assert not found(UNBROKEN[0], tool)


@pytest.mark.parametrize("fault", UNBROKEN[1:], ids=lambda fault: fault.name)
def test_unbroken_pipelines_of_other_kinds_pass_too(fault):
    assert not found(fault, "checks while it runs")
    assert not found(fault, "preflight")
    assert not found(fault, "games of one release")


def test_there_are_faults_of_every_kind_and_each_tool_is_needed():
    assert len(FAULTS) >= 8
    assert all(fault.found_by for fault in FAULTS)
    assert {tool for fault in FAULTS for tool in fault.found_by} == set(TOOLS)
