"""What torch is asked for by name is there, or the error says which torch is not."""

import pytest
import torch

from discreet import PrivacyError
from discreet.gradients import ops, torch_internals
from discreet.gradients.rules import registry
from discreet.gradients.torch_internals import check_fields


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


def test_what_every_op_is_asked_for_is_checked(monkeypatch):
    monkeypatch.setattr(torch_internals, "_OF_EVERY_OP", ("_sequence_nr", "_age"))
    with pytest.raises(PrivacyError, match="_age"):
        torch_internals._check_torch()
