"""Where modules have gone: their old paths are found here, and are the same modules, for one release.

The first few are public spellings, which stay: `discreet.methods`, `discreet.losses`, `discreet.sklearn`,
`discreet.lightning`, `discreet.transformers`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

MOVED = {
    "_limits": "_check",
    "_storage": "ledger.storage",
    "_terminal": "runs.terminal",
    "accounting.domination": "accounting.gaussian",
    "accounting.gaussian_domination": "accounting.gaussian",
    "accounting.gdp": "accounting.gaussian",
    "accounting.hops": "accounting.group_privacy",
    "accounting.losses": "accounting.pld_grid",
    "accounting.meaning": "accounting.tradeoff",
    "accounting.pairs": "accounting.dominating_pairs",
    "accounting.product": "accounting.coordinate_pld",
    "aggregate": "release.private_sum",
    "attachment": "release.guards",
    "audit.finished": "audit.audit_run",
    "audit.showing": "audit.render",
    "augmentation": "training.augmentation",
    "bounds": "stages.bounds",
    "bounds.adaptive": "stages.bounds.adaptive",
    "bounds.automatic": "stages.bounds.automatic",
    "bounds.bounded_network": "stages.bounds.bounded_network",
    "bounds.certificate": "stages.bounds.certificate",
    "bounds.clip": "stages.bounds.clip",
    "bounds.encode": "stages.bounds.encode",
    "bounds.envelope": "stages.bounds.envelope",
    "bounds.gate": "stages.bounds.gate",
    "bounds.per_layer": "stages.bounds.per_layer",
    "bounds.tanh": "stages.bounds.tanh",
    "checkpoint": "training.checkpoint",
    "checks": "audit.sanity",
    "checks.generalisation": "audit.sanity.generalisation",
    "checks.memorisation": "audit.sanity.memorisation",
    "checks.patterns": "audit.sanity.patterns",
    "checks.running": "audit.sanity.running",
    "checks.search": "audit.sanity.search",
    "checks.secrets": "audit.sanity.secrets",
    "checks.setting": "audit.sanity.setting",
    "checks.showing": "audit.sanity.render",
    "checks.verdict": "audit.sanity.verdict",
    "claims": "papers.claims",
    "config": "runs.config runs.schema",
    "contracts": "stages.sensitivity accounting.events",
    "data_digest": "distributed.data_digest",
    "demo": "cli.demo",
    "data.known": "data.mnist",
    "data.own": "data.custom",
    "data.places": "data.download",
    "denoise": "stages.denoise",
    "description": "accounting.serialization",
    "evidence": "release.preflight.evidence",
    "features.rehearsal": "features.public_whitening",
    "features.upright": "features.deskew",
    "federated.flower": "integrations.flower",
    "gathering": "distributed.fsdp_backward",
    "gradients.convolution": "gradients.forms.convolution",
    "gradients.passes": "gradients.graph",
    "gradients.preparation": "gradients.forms.reparametrized gradients.forms.combined gradients.structure",
    "gradients.products": "nn.rnn.products",
    "gradients.rows": "gradients.layout",
    "gradients.sites": "gradients.locate gradients.graph gradients.refusals",
    "gradients.slots": "release.microbatches",
    "gradients.uses": "gradients.forms.base gradients.forms.materialized gradients.forms.outer",
    "inversion": "accounting.numerics",
    "isolation": "release.preflight.isolation release.preflight.check",
    "lightning": "integrations.lightning",
    "loading": "release.batching",
    "losses": "training.losses",
    "mechanism": "stages.mechanism",
    "memory": "release.chunk_size",
    "methods": "stages.presets",
    "nn.recurrence": "nn.rnn",
    "nn.text": "models.text",
    "noise": "stages.noise",
    "noise.airy": "stages.noise.airy",
    "noise.discrete": "stages.noise.discrete",
    "noise.family": "stages.noise.distribution",
    "noise.gaussian": "stages.noise.gaussian",
    "noise.hyperbolic": "stages.noise.hyperbolic",
    "noise.laplace": "stages.noise.laplace",
    "noise.source": "stages.noise.random",
    "noise.student_t": "stages.noise.student_t",
    "papers.course": "papers.train_case",
    "papers.showing": "papers.render",
    "plan": "stages.plan",
    "planning": "stages.planning",
    "plots": "report.plots",
    "private": "release.private release.attachment release.loop",
    "probes": "release.preflight.replay release.preflight.exactness",
    "release.batches": "release.epochs release.loop",
    "release.weights": "release.sums",
    "repeats": "integrations.fit_registry",
    "run_folder": "runs.folder",
    "sampling": "stages.sampling",
    "sharding": "distributed.fsdp",
    "sklearn": "integrations.sklearn",
    "state": "release.preflight.model_state",
    "stages.own": "stages.custom",
    "stages.serialization": "accounting.serialization",
    "storage": "ledger.storage",
    "sums": "release.sums",
    "transformers": "integrations.transformers",
    "verification": "ledger.verification",
    "watching": "runs.progress",
}


# names that have changed, by the old module that had them
RENAMED = {
    "contracts": {"Phase": "Event"},
    "gradients.preparation": {"Way": "ParamPath"},
    "gradients.sites": {"Site": "SplitPoint"},
    "gradients.uses": {"Kept": "Stored", "Known": "KnownNorms", "Use": "PerExampleGrad"},
    "noise.family": {"Family": "NoiseDistribution"},
    "noise.source": {"Root": "KeyTree", "Source": "SecureStream"},
}


class _Finder(MetaPathFinder):
    """Finds `discreet.old.path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        return spec_from_loader(fullname, _Alias(old)) if package == "discreet" and old in MOVED else None


class _Alias(Loader):
    """Hands out the module at its new path; where there are several, one with the names of all."""

    def __init__(self, old: str) -> None:
        self._modules = [import_module(f"discreet.{path}") for path in MOVED[old].split()]
        self._renamed = RENAMED.get(old, {})
        self._spec = self._modules[0].__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if len(self._modules) == 1:
            return self._modules[0]
        module = ModuleType(spec.name)
        for each in self._modules:
            vars(module).update({name: value for name, value in vars(each).items() if not name.startswith("__")})
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({old: vars(module)[new] for old, new in self._renamed.items()})
        if len(self._modules) == 1:
            module.__spec__ = self._spec  # importing by another name has written its own over it


def install() -> None:
    """Have old paths found, before a package that has moved is searched for its parts."""
    sys.meta_path.insert(0, _Finder())
