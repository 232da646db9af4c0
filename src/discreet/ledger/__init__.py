"""What has been spent, in memory or on disk: one line a release, written before the release exists.

Each line is JSON and carries the hash of the one before it, so that a line cannot be changed, moved or taken out of the
middle unnoticed. Kinds of lines:

    dataset   what the file counts, and may cap: all runs and queries on one data set, together
    cap       what they may spend in all, where that was said later
    run       a run's name, its plan, the model's parameters and contract, what one step costs, versions; an audit, as
              it was declared
    release   one step of a run (or `count` of them, reserved ahead); what the run rests on, where that is new
    query     something else that was asked of the data, with its cost: a covariance, an audit
    declared  what is taken to be so of a run's data, before it is read
    evidence  what a run rests on, where that is new and no release follows
    end       that a run has ended, and the hashes of the files it leaves

    storage.py      files that a crash cannot tear, and locks
    chain.py        how lines follow one another, and which could have been cut off by a crash
    state.py        what they add up to
    identity.py     which run it is
    file.py         a ledger, its file and its lock
    reading.py      its lines, checked and added up; what a crash cut off
    opening.py      the line that opens a run
    account.py      the releases of one run
    closing.py      the line that closes it
    extract.py      a run's own lines of a data set's ledger, to go with its folder
    budget.py       what all runs on a data set have spent, and what is left
    forks.py        whether two ledgers are two continuations of one run
    verification.py whether a ledger is as it was written, and what it proves, from the file alone
    conditions.py   what a guarantee rests on by what lines say

Whoever can rewrite the whole file can forge it: a chain without a secret proves no more. A key closes that (every line
is then signed), and so does an anchor: the last line's hash, kept elsewhere.
"""

from discreet.ledger.account import RunLedger
from discreet.ledger.chain import FORMAT, chained
from discreet.ledger.closing import conclude, withdraw
from discreet.ledger.conditions import SEEDED, same_rows, together
from discreet.ledger.file import Ledger, LedgerFile, named, totals
from discreet.ledger.identity import Identity, new_run
from discreet.ledger.opening import steps_in_a_pass
from discreet.ledger.reading import read
from discreet.ledger.state import LedgerState, Run

__all__ = [
    "FORMAT",
    "SEEDED",
    "Identity",
    "Ledger",
    "LedgerFile",
    "LedgerState",
    "Run",
    "RunLedger",
    "chained",
    "conclude",
    "named",
    "new_run",
    "read",
    "same_rows",
    "steps_in_a_pass",
    "together",
    "totals",
    "withdraw",
]
