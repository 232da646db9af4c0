"""Stages of one's own, as somebody writes them in a module of theirs."""

from dataclasses import dataclass

from discreet.stages.bounds import Clip
from discreet.stages.noise import Gaussian


@dataclass(frozen=True)
class MyClip(Clip):
    """A bound under another name."""


@dataclass(frozen=True)
class MyGaussian(Gaussian):
    """A noise under another name."""


class Unrelated:
    """No stage."""
