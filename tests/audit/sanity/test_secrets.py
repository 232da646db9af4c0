"""Secrets in sequences: learned without privacy, not with it, and judged by rank."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from discreet import methods
from discreet.audit.sanity.secrets import Reader, SequenceSetting, secrets
from discreet.cli.app import app
from discreet.errors import ConfigError


def setting(**more):
    plan = methods.dp_sgd(examples=120, batch_size=40, epochs=more.pop("epochs", 1), noise=more.pop("noise", 4.0))
    return SequenceSetting(plan, **{"vocabulary": 16, "length": 10, "secrets": 4} | more)


class Knows(nn.Module):
    """Finds the secrets that it was told likelier than any other."""

    def __init__(self, records):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.records = records

    def forward(self, tokens):
        scores = torch.zeros(len(tokens), 16, tokens.shape[1])
        for row, record in enumerate(tokens):
            for known in self.records:
                if torch.equal(known[:3], record[:3]):
                    scores[row].scatter_(0, known[1 : tokens.shape[1] + 1][None], 9.0)
        return scores + self.weight


def test_a_secret_that_a_model_knows_is_the_likeliest():
    torch.manual_seed(0)
    made = setting()
    drawn = made.draw(2)
    records = made.hidden(drawn, torch.arange(2))
    found = made.perplexity(Knows(records), torch.cat([drawn[:1], made.draw(50)]), 0)
    assert int(found.argmin()) == 0
    assert float(found[0]) < 1
    blind = made.perplexity(Knows([]), torch.cat([drawn[:1], made.draw(50)]), 0)
    assert float(blind.std()) < 1e-9


def test_records_hold_their_secret_behind_a_beginning_of_their_own():
    made = setting()
    drawn = made.draw(4)
    records = made.hidden(drawn, torch.arange(4))
    assert torch.equal(records[:, 3:9], drawn)
    assert len({tuple(row.tolist()) for row in records[:, :3]}) == 4
    text = made.text(50)
    assert set(((text[:, 1:] - text[:, :-1]) % 16).unique().tolist()) <= {1, 2, 3}


def test_what_is_memorised_without_privacy_is_not_with_it():
    torch.manual_seed(0)
    made = setting(
        epochs=80, noise=8.0, secrets=20, optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01)
    )
    # of 20 secrets that nobody knows, more than 8 stand in the first tenth by chance once in 16,000 runs
    found = secrets(made, runs=1, candidates=60, tolerance=0.3)
    assert found.verdict.plain == (1.0,)
    assert found.verdict.word == "pass"
    assert found.plain[0] > 4 > found.private[0]
    assert 0.1 < found.verdict.ceiling < 1
    assert "bits with privacy" in str(found)


def test_a_model_of_ones_own_and_bad_settings():
    found = secrets(setting(make=lambda: Reader(16, width=8)), runs=1, candidates=20)
    assert found.records == 120
    with pytest.raises(ConfigError, match="no room"):
        setting(length=8)
    with pytest.raises(ConfigError, match="vocabulary"):
        setting(vocabulary=5)


def test_the_command():
    flags = ["check", "--sequences", "16,10", "--examples", "60", "--batch-size", "30", "--steps", "2", "--noise", "4"]
    out = CliRunner().invoke(app, [*flags, "--runs", "1", "--json"])
    assert out.exit_code in (0, 1), out.output
    values = json.loads(out.stdout.splitlines()[-1])
    assert values["verdict"]["chance"] == 0.1
    assert values["records"] == 60
