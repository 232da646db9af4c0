"""What torch is asked for by name is there, or the error says which torch is not."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from discreet import PrivacyError
from discreet.gradients import Engine, ops, torch_internals
from discreet.gradients.graph import FreePasses
from discreet.gradients.rules import registry
from discreet.gradients.torch_internals import check_fields, check_one_field


def test_a_field_that_torch_does_not_have_is_an_error_that_names_its_version(monkeypatch):
    monkeypatch.setattr(registry, "RULES", {})
    with pytest.raises(PrivacyError) as error:
        registry.rule("AddmmBackward0", 2, saves=("mat1", "left_factor"))
    assert f"torch {torch.__version__} has no '_saved_left_factor' in the op 'AddmmBackward0'" in str(error.value)


@pytest.mark.parametrize("op", ["Slice", "SliceBackward0"])
def test_fields_are_checked_with_and_without_the_variant(op):
    check_fields(op, ("start", "step", "dim"))
    with pytest.raises(PrivacyError, match="_saved_begin"):
        check_fields(op, ("begin",))


def test_what_is_declared_of_an_op_is_checked(monkeypatch):
    monkeypatch.setattr(ops, "_OPS", {})
    with pytest.raises(PrivacyError, match="_saved_axis"):
        ops.keeps("Softmax", reads=("axis",))(lambda step: step.place)


def test_fields_of_ones_own_functions_and_of_ops_that_torch_does_not_have_are_not_known():
    check_fields("ScaleBackward", ("anything",))
    check_fields("FutureBackward0", ("anything",))


def test_every_rule_for_an_op_of_torchs_own_finds_what_it_reads():
    variants = torch_internals._variants()
    ours = [(op, rule) for (op, _), rule in registry.RULES.items() if torch_internals.base_name(op)]
    assert ours
    for op, rule in ours:
        assert op in variants, op  # or it is never used
        check_fields(op, rule.saves)


@pytest.mark.parametrize(
    ("names", "changed", "missing"),
    [
        ("_OF_EVERY_OP", ("_sequence_nr", "_age"), "_age"),
        ("_OF_EVERY_OUTPUT", ("shape", "is_ragged"), "is_ragged"),
        ("_INPUTS", {"AddmmBackward0": ("left",)}, "_saved_left"),
        ("_INPUTS", {"FutureBackward0": ("self",)}, "FutureBackward0"),
        ("LEAF", "torch::autograd::Leaf", "torch::autograd::Leaf"),
    ],
)
def test_what_is_asked_of_every_op_output_and_leaf_is_checked(monkeypatch, names, changed, missing):
    monkeypatch.setattr(torch_internals, names, changed)
    with pytest.raises(PrivacyError, match=missing):
        torch_internals._check_torch()


def test_of_fields_that_only_some_variants_have_one_is_there():
    check_one_field("Sum", ("dim", "dims"))  # SumBackward1 has it
    check_one_field("FutureBackward0", ("dim",))
    with pytest.raises(PrivacyError, match="no '_saved_axis or _saved_axes' in the op 'Sum'"):
        check_one_field("Sum", ("axis", "axes"))


def test_every_field_that_is_named_in_the_engine_is_checked_when_it_is_imported():
    source = Path(torch_internals.__file__).parent
    named = {name for path in source.rglob("*.py") for name in re.findall(r"\b_saved_([a-z]\w*)", path.read_text())}
    named -= {"result", "mat1"}  # what names begin with; an example
    assert {"training", "scale_grad_by_freq", "mode"} <= named
    assert named <= {field for _, field in torch_internals.CHECKED}


def test_torch_is_one_of_those_that_the_package_asks_for_and_that_errors_name():
    project = Path(__file__).parents[2] / "pyproject.toml"
    asked = tomllib.loads(project.read_text())["project"]["dependencies"]
    assert f"torch{torch_internals.TESTED}" in asked


@pytest.mark.parametrize("before", [False, True])
def test_probes_add_up_in_one_order_and_leave_torch_as_it_was(before):
    torch._C._set_deterministic_algorithms(before)
    try:
        with torch_internals.in_one_order():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is not before
        assert torch.are_deterministic_algorithms_enabled() is before
        with pytest.raises(ZeroDivisionError), torch_internals.in_one_order():
            raise ZeroDivisionError
        assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch._C._set_deterministic_algorithms(False)


def test_the_graph_is_probed_in_one_order(monkeypatch):
    """Messages of many graphs are added up by several threads, else in an order of chance."""
    seen = []
    run = FreePasses.run

    def noted(*args, **more):
        seen.append((torch.are_deterministic_algorithms_enabled(), more["retain"]))
        return run(*args, **more)

    monkeypatch.setattr(FreePasses, "run", noted)
    model = torch.nn.Linear(3, 2)
    Engine(model).gradients(model(torch.randn(4, 3)).square().sum(1), 4)
    assert (True, True) in seen
    assert not torch.are_deterministic_algorithms_enabled()
