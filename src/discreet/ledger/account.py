"""The releases of one run, counted in a ledger before they are made."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from discreet.accounting.event_serialization import event_from_dict
from discreet.accounting.events import ROW, Event, in_words
from discreet.accounting.guarantee import Condition
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.chain import OLD
from discreet.ledger.closing import end_line
from discreet.ledger.conditions import recorded, same_rows, together
from discreet.ledger.file import Ledger, LedgerFile, remedy, told_why
from discreet.ledger.identity import Identity, new_run
from discreet.ledger.opening import difference, opening_of
from discreet.ledger.state import Run
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import Layout

# Lines; releases, participations and what is counted ahead; the run.
News = tuple[tuple[bytes, ...], tuple[int, int, int], str]


class RunLedger:
    """The releases of one plan on one model, in a book.

    Guarantee: `spend` returns only after the release is counted, and with a file only after it is on disk. A crash
    can only over-count, by at most what was reserved.
    """

    def __init__(
        self, ledger: Ledger | None, plan: Plan, layout: Layout, audit: Mapping[str, Any] | None = None
    ) -> None:
        self._stages = (type(plan.mechanism.noise),)
        self._book = LedgerFile(ledger, self._stages)
        self._shared = self._book.shared
        self._reserve = 1 if ledger is None else ledger.reserve
        self._own: storage.Lock | None = None
        self._plan, self._unit = plan, plan.sampling.contract().unit
        self._opening = opening_of(plan, layout) | ({} if audit is None else {"audit": dict(audit)})
        self._new = Run(self._opening, event_from_dict(self._opening["phase"], self._stages))
        named = None if ledger is None else ledger.identity
        self._identity = Identity(new_run()) if named is None else named
        if not self._identity.attempts:
            self._identity = self._identity.taken_up()
        self._new_here = True  # whether the run is one that this process began
        self._signed_on = ledger is None  # whether a line of this run says that it is now this process's
        if ledger is not None and ledger.unit not in (None, self._unit):
            raise ConfigError(
                f"the ledger's unit is {ledger.unit!r}, and the plan protects each {in_words(self._unit)}; give the "
                f"plan a sampler with unit={ledger.unit!r}, or this run a ledger of its own."
            )
        if self._shared and plan.tuning is not None:
            raise ConfigError("a tuned plan's cost does not add up with other runs'; give it a ledger of its own.")
        self._book.acquire()
        try:
            self._book.sweep()
            self._book.catch_up()
            self._name = self._find(named)
        except BaseException:
            self._leave()
            self._book.let_go()
            raise
        if self._shared:
            self._book.let_go()
        self._go_on()

    # --- which run it is ---------------------------------------------------------------------------------------------

    def _find(self, named: Identity | None) -> str:
        """The run that is meant: the one that is named, or else the only one of a file; or a new one.

        A new run is written down at once, and counts from then on. Where it would not fit under the data set's cap, and
        an earlier one of this plan is not over, it is written down with its first release: a state that is loaded until
        then may name the earlier one.
        """
        content = self._book.content
        if named is not None and not named.run:
            return self._by_plan()
        if not self._shared:
            return self._only(named)
        name = self._identity.run
        if name in content.runs:
            self._take_over(name)
        else:
            self._begin(name, wait=named is None)
        return name

    def _only(self, named: Identity | None) -> str:
        """The run that a file of one run holds, or the one that it will."""
        content = self._book.content
        asked = None if named is None else named.run
        for name, run in content.runs.items():
            self._check_same(run)
            self._check_named(name, asked)
            run.protects(self._unit)
            return name
        self._check_named(content.asked_by, asked)
        self._identity = replace(self._identity, run=asked or content.asked_by or self._identity.run or new_run())
        self._open(self._identity.run)
        return self._identity.run

    def _check_named(self, found: str | None, asked: str | None) -> None:
        if asked is not None and found is not None and found != asked:
            raise PrivacyError(
                f"{self._book.path} is of run {found}, and this is run {asked}: one of the two was put in the other's "
                "place. Go on with the ledger that the run was made with."
            )

    def _by_plan(self) -> str:
        """The run of this plan, by the rule of earlier versions, whose folders do not say which run they hold."""
        content = self._book.content
        if not self._shared:
            return self._only(None)
        if content.lines and content.format != OLD:
            raise PrivacyError(
                f"{self._book.path} holds several runs, and nothing says which of them this is: its folder has lost "
                "its run.json. Put it back, or begin a new run."
            )
        for name, run in content.runs.items():
            left = run.released < self._plan.steps and run.participations < int(run.opening["participations"])
            if not self._differs(run) and run.opening.get("audit") == self._opening.get("audit") and left:
                try:
                    self._take_over(name)
                except PrivacyError:  # another process has it
                    continue
                return name
        self._identity = replace(self._identity, run=new_run())
        self._begin(self._identity.run)
        return self._identity.run

    def _begin(self, name: str, *, wait: bool = False) -> None:
        """Begin a new run of a shared file; `wait` for its first release where the cap is spent, perhaps by itself."""
        self._hold(name)
        try:
            self._open(name)
        except BudgetExhausted:
            mine = (r for r in self._book.content.runs.values() if r.end is None and r.released < r.steps)
            if not wait or all(self._differs(run) for run in mine):
                raise

    def _take_over(self, name: str) -> None:
        """Go on with a run of a shared file, which nobody else has, and which this folder has always had."""
        run = self._book.content.runs[name]
        self._check_same(run)
        known = self._identity.attempts[:-1]
        if known and run.attempt and run.attempt not in self._identity.attempts:
            raise PrivacyError(
                f"run {name} was continued from another folder since ({self._book.path} says so): this one is a copy. "
                "Go on with the other one, or begin a new run; all that either has released is counted."
            )
        self._hold(name)
        self._new_here = False
        run.protects(self._unit)

    def _hold(self, name: str) -> None:
        """Have one run of a shared file for this process, in place of any other."""
        lock = self._book.owner(name)
        with told_why(f"run {name} in {self._book.path}", "another process; wait for it, or stop it."):
            lock.acquire()
        self._leave()
        self._own = lock

    def check_adoption(self, state: Mapping[str, Any]) -> None:
        """Raise unless a state is of the run that counts here, or of one that can be taken up here."""
        named, runs = state.get("run"), self._book.content.runs
        if not state.get("ledger") or self._book.path is None or named == self._name:
            return
        if named is None and (not self._shared or self._book.content.format == OLD):
            return  # saved by an earlier version
        if named is None or not self._untouched or (named not in runs and state.get("released")):
            raise PrivacyError(
                f"the state is of run {named}, and here run {self._name} counts; attach with run= that run, and with "
                "the ledger that it was made with."
            )

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Go on with the run that a state was saved of, where no release was made here yet; a new one is withdrawn."""
        named = state.get("run")
        if not state.get("ledger") or named == self._name or not self._shared or not self._untouched:
            return
        before, origin_step = self._identity, self._begun
        with self._book.locked():
            try:
                if named is None:
                    named = self._by_plan()
                elif named in self._book.content.runs:
                    self._identity = Identity(named).taken_up()
                    self._take_over(named)
                else:
                    self._identity = Identity(named).taken_up()
                    self._hold(named)
            except BaseException:
                self._identity = before
                raise
            if origin_step:
                self._book.append(end_line(self._name, 0, {"files": {}, "lost": 0}))
            self._name, self._signed_on = named, False
        self._go_on()

    @property
    def _untouched(self) -> bool:
        """Whether this process has begun a new run, and released nothing of it."""
        return self._new_here and self._run.released == 0

    def _go_on(self) -> None:
        self._ahead = 0  # releases that are on disk and not made yet
        # how many releases have been counted and made, and how many of them one unit can have taken part in
        self.released, self.participations = self._run.released, self._run.participations

    def _differs(self, run: Run) -> str:
        return difference(run.opening, self._opening)

    def _check_same(self, run: Run) -> None:
        if what := self._differs(run):
            raise PrivacyError(
                f"{self._book.path} belongs to another {what}; what it has spent cannot be continued. Use a new "
                "ledger file for a new run, or attach the plan and model the file was made with."
            )
        if run.opening.get("audit") != self._opening.get("audit"):
            raise PrivacyError(
                f"{self._book.path} declares another audit ({run.opening.get('audit')}); what is tested is fixed "
                "before the first release. Go on with the same, or begin a new run."
            )

    # --- a new run ---------------------------------------------------------------------------------------------------

    def _check_new(self) -> None:
        """Raise unless a new run fits under the data set's cap as things stand."""
        book, own = self._book, self._book.content
        declared = self._declared()
        try:
            if declared:  # queries are then counted for the run's unit
                book.content = copy.copy(own)
                book.content.declare(self._unit, declared["rows"])
            book.check_cap(*self._new.horizon())
        finally:
            book.content = own

    def _open(self, name: str) -> None:
        """Write down the run, before anything of it."""
        if self._shared:
            self._check_new()
        noted = {} if self._book.ledger is None else self._book.ledger.notes
        self._append_signed({**self._opening, **self._declared(), **noted, "run": name})

    def _append_signed(self, line: Mapping[str, Any]) -> None:
        """Write a line; the first one of a process says that the run is now its own."""
        self._book.append(line if self._signed_on else {**line, "attempt": self._identity.attempts[-1]})
        self._signed_on = True

    def _declared(self) -> dict[str, int]:
        """The most rows that a unit has in earlier queries, where they protect rows and the ledger declares it."""
        content, ledger = self._book.content, self._book.ledger
        asked = zip(content.queries, content.askers, strict=True)
        own = [query for query, run in asked if content.adds_up or run == self._identity.run]
        others = [(what, event) for what, event in own if event.unit != self._unit and event.steps]
        if not others:
            return {}
        alike = {event.unit for _, event in others} == {ROW} and all(r.one.unit != ROW for r in content.runs.values())
        if ledger is not None and ledger.rows is not None and alike:
            return {"rows": ledger.rows}
        what, event = others[0]
        raise PrivacyError(
            f"{self._book.path} counts what protects each {in_words(event.unit)} ({what}), and the plan protects each "
            f"{in_words(self._unit)}. {remedy(event.unit, self._unit)} Nothing was released."
        )

    # --- what is counted ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The run's own name, which every line of it has."""
        return self._name

    @property
    def _begun(self) -> bool:
        """Whether the run is written down."""
        return self._name in self._book.content.runs

    @property
    def _run(self) -> Run:
        return self._book.content.runs.get(self._name, self._new)

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases that were made, equal ones in a row counted together."""
        ahead = self._run.participations - self.participations
        made: list[Event] = []
        for event in reversed(self._run.spent):  # what is counted ahead was counted last
            taken = min(ahead, event.steps)
            ahead -= taken
            made.insert(0, replace(event, steps=event.steps - taken))
        return tuple(made)

    @property
    def unprobed(self) -> bool:
        """Whether some release of this run was made before anything was probed."""
        return self._run.unprobed

    @property
    def rests_on(self) -> tuple[Condition, ...] | None:
        """What the run's lines say of how its releases were made; None where they say nothing."""
        return self._run.rests_on

    def together(self, ranks: int, shares: bool) -> tuple[Condition, ...]:
        """What the guarantee rests on where processes trained together, or so many will."""
        return together(max(ranks, self._run.ranks), self._run.shares and (shares or ranks == 1))

    def same_rows(self, ranks: int) -> tuple[Condition, ...]:
        """What is known of the rows of processes that trained together, or of so many that will."""
        return same_rows(max(ranks, self._run.ranks), self._run.rows, self._plan.sampling.contract().unit)

    @property
    def made_by(self) -> dict[str, Any]:
        """What a line says of processes that trained together, of all of this run's lines; nothing of one process."""
        run = self._run
        shares = {"noise_shares": True} if run.shares else {}
        return {} if run.ranks == 1 else {"ranks": run.ranks, "rows": " ".join(sorted(run.rows)), **shares}

    @property
    def queries(self) -> tuple[Event, ...]:
        """What else was asked of the data for this run."""
        return tuple(self._book.content.queries_of(self._name))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What this file adds to what a run's guarantee rests on."""
        return self._book.content.beside(self._name, self._run, self._unit)

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self._book.content.head

    def knows(self, head: str) -> bool:
        """Whether a line with this hash is in the file."""
        return self._book.knows(head)

    def spend(self, after: int = 0, rests_on: Sequence[Condition] | None = None, **notes: Any) -> None:
        """Count one release of the plan, before it is made.

        Args:
            after: how many releases this process has made before, since it took the run up (Plan.charges).
            rests_on: what is known of how releases are made, written down where it is new.
            **notes: what the line says beside.
        """
        if rests_on is not None:
            notes |= self._news_of(rests_on)
        charge = 1 if self._plan.charges_each_step else self._plan.charges(1, after=after)
        if self._ahead == 0:
            if self._shared:
                with self._book.locked():
                    self._count_ahead(after, charge, notes)
            else:
                self._count_ahead(after, charge, notes)
        self.participations += charge
        self._ahead -= 1
        self.released += 1

    def _count_ahead(self, after: int, charge: int, notes: Mapping[str, Any]) -> None:
        """Count one release, for which a unit is charged so much, or as many as are reserved, in one line."""
        run, count = self._book.content.runs.get(self._name, self._new), 1
        if self._reserve > 1:
            first = max(self.released, run.released)
            count = max(1, min(self._reserve, self._plan.steps - first, run.stretch(first)[0]))
            left = self._plan.charges(self._plan.steps) - run.participations
            while count > 1 and self._plan.charges(count, after=after) > left:  # there is no room for another pass
                count -= 1
            charge = self._plan.charges(count, after=after)
        self._append(run, count, charge, notes)
        self._ahead = count

    def _news_of(self, rests_on: Sequence[Condition]) -> dict[str, Any]:
        """What a line is to say of what the run rests on: nothing where the ledger has it already."""
        return {} if tuple(rests_on) == self._run.rests_on else {"conditions": recorded(rests_on)}

    def restore(self, released: int, participations: int, **notes: Any) -> None:
        """Count releases that a checkpoint knows of and this ledger does not, in one line.

        What was tested of them is not known: a checkpoint's word is not evidence.
        """
        # what was reserved is spent
        self.released, self.participations, self._ahead = self._run.released, self._run.participations, 0
        missing = released - self.released
        if missing > 0:
            taken = max(0, participations - self.participations)
            with self._held():
                self._append(self._run, missing, taken, {"restored": True, "unprobed": True, **notes})
            self.released, self.participations, self._ahead = released, self.participations + taken, 0

    # --- followed by other processes ---------------------------------------------------------------------------------

    def followed(self) -> "RunLedger":
        """This account as other processes have it: they write nothing, and follow what is written here."""
        found = copy.copy(self)
        found._book, found._own = self._book.copied(), None
        self._book.unsent_lines = []
        return found

    def unsent_lines(self) -> News:
        """What was written and read since the last time, for those who follow."""
        lines, self._book.unsent_lines = self._book.unsent_lines or [], []
        return tuple(lines), (self.released, self.participations, self._ahead), self._name

    def follow(self, unsent_lines: News) -> None:
        """Take over what the one who writes has written."""
        lines, (self.released, self.participations, self._ahead), self._name = unsent_lines
        for line in lines:
            self._book.content.take(line, None)

    def _held(self) -> AbstractContextManager[None]:
        """The file, with what others have added read: one's own is held anyway."""
        return self._book.locked() if self._shared else nullcontext()

    def _append(self, run: Run, count: int, participations: int, notes: Mapping[str, Any]) -> None:
        if run.released + count > self._plan.steps:  # counted by somebody else's recovery, or restored
            raise BudgetExhausted(f"all {self._plan.steps:,} steps of the plan are counted; nothing was released.")
        if run.end is not None:
            raise BudgetExhausted(f"run {self._name} has ended, as its ledger says; nothing was released.")
        if self._name not in self._book.content.runs:
            self._open(self._name)
            run = self._run
        while count:
            same, multiplier = run.stretch(run.released)
            piece = min(count, same)  # one line has one noise
            taken = participations if piece == count else min(piece, participations)
            line = run.line(self._name, multiplier, piece, taken, **notes)
            if self._signed_on:
                self._book.append(line)
            else:
                self._append_signed(line)
            count, participations = count - piece, participations - taken
            if count:
                notes = {name: value for name, value in notes.items() if name != "conditions"}  # said once

    def _leave(self) -> None:
        if self._own is not None:
            self._own.let_go(remove=True)
            self._own = None

    def close(self) -> None:
        """Let others open the file, or this run in it."""
        self._leave()
        if not self._shared:
            self._book.let_go()
