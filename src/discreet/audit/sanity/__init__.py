"""The sanity checks of paper 003: what a model memorises under a plan, before any private data is touched.

They are unit tests of a choice of privacy, not guarantees: a check that passes proves nothing, and one that finds more
than the guarantee allows shows that the guarantee, or the code, is wrong.

    verdict.py          pass, too weak or broken, and by which test at which level
    setting.py          what is trained: a model, a plan, optimizers; and plain training to compare with
    memorisation.py     random labels on noise: is what was trained on known better than chance?
    generalisation.py   a stand-in data set: is what was trained on known better than what was not?
    patterns.py         users: does one user's pattern show, and everybody's?
    secrets.py          sequences: is a secret likelier than others it might have been?
    search.py           the smallest noise that passes
    running.py          all of them for a run's config, small or at full size
    render.py           what was measured, in tables, words and pictures
"""

from discreet.audit.sanity.generalisation import generalisation
from discreet.audit.sanity.memorisation import memorisation
from discreet.audit.sanity.patterns import patterns
from discreet.audit.sanity.search import smallest_noise
from discreet.audit.sanity.secrets import SequenceSetting, secrets
from discreet.audit.sanity.setting import Setting
from discreet.audit.sanity.verdict import Verdict

__all__ = [
    "SequenceSetting",
    "Setting",
    "Verdict",
    "generalisation",
    "memorisation",
    "patterns",
    "secrets",
    "smallest_noise",
]
