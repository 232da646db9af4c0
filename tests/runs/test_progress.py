import io
import signal

import pytest
from rich.console import Console

from discreet.runs.progress import display, in_words, watching

RECORD = {"step": 2, "epsilon": 1.5, "accuracy": 0.9, "epsilon_left": 0.5, "examples_per_second": 1234.0}


@pytest.fixture
def log():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=200, force_terminal=True)


def said(console):
    return console.file.getvalue()


def test_a_log_has_a_line_for_what_is_done(log):
    with display(log) as shown:
        shown.only("first", 1, 2)
        shown.only("first", 2, 2)
        assert list(shown.follow("ab", "letters")) == ["a", "b"]
        shown.bar("hidden", completed=1, total=3)
        shown.say("and a word")
    assert said(log).splitlines() == ["first: 2 steps", "and a word"]


def test_a_terminal_has_bars_and_no_lines(terminal):
    with display(terminal) as shown:
        shown.bar("one", completed=1, total=4)
        shown.bar("two", completed=2, total=5)
        assert len(shown._tasks) == 2
        shown.only("three", 3, 6)
        assert set(shown._tasks) == {"three"}
        shown.say("a line")
    assert "three" in said(terminal)
    assert "3/6" in said(terminal)
    assert "a line" not in said(terminal)


def test_a_run_in_a_log_says_nothing_before_its_first_record(log):
    with watching(log) as (watch, stopped):
        watch.stage("reading the data")
        watch.begin(0, 8)
        watch.step(1)
        assert said(log) == ""
        assert watch.download is None
        watch.record(RECORD)
    assert said(log).strip() == "step 2 of 8: accuracy 90.0%, ε 1.500, 0.5 left, 1,234 examples/s"
    assert not stopped()


def test_a_run_that_is_continued_says_so(log):
    with watching(log) as (watch, _):
        watch.begin(3, 8)
    assert said(log).strip() == "continuing after step 3 of 8"


def test_a_run_on_a_terminal_is_one_bar(terminal):
    with watching(terminal) as (watch, _):
        watch.stage("training")
        watch.begin(0, 8)
        watch.step(5)
        watch.record(RECORD)
    assert "training" in said(terminal)
    assert "5/8" in said(terminal)
    assert in_words(RECORD) in said(terminal)


def test_a_signal_stops_a_run_and_a_second_one_ends_it(log):
    with watching(log) as (watch, stopped):
        assert not watch.stop()
        signal.raise_signal(signal.SIGTERM)
        assert watch.stop()
        assert stopped() == signal.SIGTERM
        with pytest.raises(SystemExit):
            watch.count("features", 1, 2)  # nothing has begun that would have to be saved
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
