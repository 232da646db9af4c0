"""What benchmarks/papers_under_attack.py prints: forms that do not keep what they claim are refuted, sound ones not."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import papers_under_attack as script


def test_a_form_without_a_bound_is_refuted_and_the_sound_one_is_not(monkeypatch):
    """A false alarm has a chance of 0.002; the form's own gradients are many times what it claims."""
    monkeypatch.setattr(script, "GAMES", 400)
    monkeypatch.setattr(script, "LEVEL", 1e-3)
    published, sound = script.tanh()
    assert published.curve
    assert published.least > published.claimed
    assert not sound.curve
    assert not sound.refuted
    assert str(published).count("**yes**") == 2
