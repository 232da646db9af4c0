"""Events and tunings as plain values and back: what plans, ledgers and guarantees write down of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from discreet.accounting.events import Event, Magnitudes
from discreet.accounting.serialization import build, describe
from discreet.accounting.tuning import Tuning


def event_to_dict(event: Event) -> dict[str, Any]:
    """A event as plain values; what is as usual is left out."""
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    values["law"] = None if event.law is None else describe(event.law)
    values["shifts"] = None if event.shifts is None else asdict(event.shifts)
    values["best"] = None if event.best is None else tuning_to_dict(event.best)
    return {f.name: values[f.name] for f in fields(event) if values[f.name] != f.default}


def event_from_dict(values: Mapping[str, Any], laws: Sequence[type[Any]] = ()) -> Event:
    """The event that `phase_to_dict` described; `laws` are your own noises, by class."""
    from discreet.stages import noise

    settings: dict[str, Any] = dict(values)
    if settings.get("law") is not None:
        settings["law"] = build(settings["law"], [*(getattr(noise, name) for name in noise.__all__), *laws]).law
    if settings.get("shifts") is not None:
        settings["shifts"] = Magnitudes(**{k: tuple(v) for k, v in settings["shifts"].items()})
    if settings.get("best") is not None:
        settings["best"] = tuning_from_dict(settings["best"], laws)
    return Event(**settings)


def tuning_to_dict(tuning: Tuning) -> dict[str, Any]:
    """That a run is the best of several, as plain values."""
    several = [[event_to_dict(event) for event in events] for events in tuning.candidates]
    return describe(replace(tuning, candidates=())) | ({"candidates": several} if several else {})


def tuning_from_dict(values: Mapping[str, Any], laws: Sequence[type[Any]] = ()) -> Tuning:
    """The tuning that `tuning_to_dict` described."""
    tuning = build({k: v for k, v in values.items() if k != "candidates"}, [Tuning])
    several = tuple(tuple(event_from_dict(p, laws) for p in events) for events in values.get("candidates", ()))
    return replace(tuning, candidates=several)
