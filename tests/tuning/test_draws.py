"""What is drawn: by its law, in secret, once."""

import pytest

from discreet import ConfigError, PrivacyError
from discreet.runs.schema import TuneSection
from discreet.tuning.draws import DRAWS, draw, drawn

ASKED = TuneSection(space={"budget.epochs": [1.0, 2.0]}, runs=20.0, distribution="poisson")


def test_trials_have_names_settings_and_keys_of_their_own():
    trials = draw(ASKED).trials
    assert 1 <= len(trials) <= 80  # a chance of 2e-9 to be outside
    assert len({t.name for t in trials}) == len({t.key for t in trials}) == len(trials)
    assert {t.settings["budget.epochs"] for t in trials} <= {1.0, 2.0}
    assert draw(ASKED).search != draw(ASKED).search


def test_what_was_drawn_is_read_again_and_is_for_its_owner_alone(tmp_path):
    first = drawn(tmp_path, ASKED, begun=False)
    assert drawn(tmp_path, ASKED, begun=True) == first
    assert (tmp_path / DRAWS).stat().st_mode & 0o077 == 0


def test_it_is_not_drawn_twice(tmp_path):
    with pytest.raises(PrivacyError, match="begin a new search"):
        drawn(tmp_path, ASKED, begun=True)
    assert not (tmp_path / DRAWS).exists()


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other"}', '{"format": "discreet-draws/1", "trials": [1]}'])
def test_a_file_that_holds_no_draws(text, tmp_path):
    (tmp_path / DRAWS).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        drawn(tmp_path, ASKED, begun=False)
