"""What a run is: a strict TOML file or flags, resolved into a plan before any data is touched."""

import inspect
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from discreet.stages.serialization import to_toml
from discreet.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from discreet.accounting.events import Event
    from discreet.features.pipeline import Pipeline
    from discreet.stages.plan import Plan

Table = dict[str, Any]
METHODS = ("dp_sgd", "tanh_filter", "belu", "adaptive_clipping", "encode_denoise", "band_mf", "dp_ftrl")


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; unknown keys are refused."""


def doc(description: str) -> Meta:
    """What a field means, beside its type."""
    return Meta(description=description)


class DataSection(Section, frozen=True):
    """What is trained on."""

    name: Annotated[
        str,
        doc(
            "digits, mnist, fashion-mnist, cifar10, a .csv, .parquet or .npz file, a folder of images, module:function"
        ),
    ] = "digits"
    folder: Annotated[str | None, doc("where the files are; otherwise DISCREET_DATA, a cache, or a download")] = None
    download: Annotated[bool, doc("whether files that are not there may be fetched")] = True
    label: Annotated[str | None, doc("the column that is to be predicted, of a table")] = None
    schema: Annotated[str | None, doc("a TOML file with each column's public range or categories")] = None
    test_fraction: Annotated[float, doc("how much of a table is held out, by a fixed random choice")] = 0.2
    validation: Annotated[
        float,
        doc(
            "how much of the training part is held out and tested on in place of the test part, to choose settings; "
            "a hash of an example itself decides"
        ),
    ] = 0.0
    examples: Annotated[
        int | None, doc("how many training examples there are, where planning is to know it before the data is read")
    ] = None
    settings: Annotated[Table, doc("what else the data takes: limit, classes, a function's own arguments")] = {}


class FeaturesSection(Section, frozen=True):
    """Public features of images, centred and whitened by private statistics: the model is trained on these rows.

    [budget] epsilon is that of the statistics and the training together.
    """

    extractors: Annotated[
        Table,
        doc(
            "tables by name, as [features.extractors.fine] with kind = 'patches' or 'scattering', its settings, and "
            "perhaps tables upright, as {spread = 0.5}, and rehearsed, as {power = 0.25}; their rows are put one "
            "behind the other"
        ),
    ]
    mean_noise: Annotated[float, doc("noise on the sum of rows of length 1")] = 20.0
    channel_noise: Annotated[float, doc("noise on the second moments of channels")] = 5.0
    place_noise: Annotated[float, doc("noise on the second moments of places")] = 5.0
    channel_power: Annotated[float, doc("how far channels are whitened: 0 not at all, 0.5 fully")] = 0.4
    place_power: Annotated[float, doc("how far places are whitened")] = 0.1
    share: Annotated[
        float | None,
        doc(
            "the part of the budget that all statistics get, as 1 / noise^2 adds up: the three noises are then only "
            "taken in proportion"
        ),
    ] = None
    leading: Annotated[
        int | None, doc("how many of the rehearsed directions with the largest moments are used; all if not given")
    ] = None
    length: Annotated[float, doc("of a row in the end; beside it a bias counts as a feature of 1")] = 3.0
    cache: Annotated[bool, doc("whether features are kept on disk; they are as private as the images")] = True
    workers: Annotated[int | None, doc("threads that extract; as many as processors if not given")] = None


class ModelSection(Section, frozen=True):
    """What is trained."""

    name: Annotated[str, doc("linear, mlp, cnn, abadi, belu, alexnet, wrn-16-4, or module:function")] = "mlp"
    settings: Annotated[Table, doc("the model's own settings, as hidden = [64] or activation = 'relu'")] = {}


class MethodSection(Section, frozen=True):
    """A preset of discreet.methods; or explicit stages in [stages]."""

    name: Annotated[str, doc("dp_sgd, tanh_filter, belu, adaptive_clipping, encode_denoise, band_mf or dp_ftrl")] = "dp_sgd"
    settings: Annotated[Table, doc("the preset's own settings, as norm = 0.5 or form = 'paper'")] = {}


class StagesSection(Section, frozen=True):
    """Stages one by one, as in a saved plan; they replace the preset."""

    sampling: Annotated[Table, doc("as type = 'Poisson'; examples and batch_size come from the data and the budget")]
    bound: Annotated[Table, doc("as type = 'Clip', norm = 1.0")]
    noise: Annotated[Table, doc("as type = 'Gaussian'; its scale is solved unless the budget gives noise")]
    denoise: Annotated[Table | None, doc("as type = 'Kalman', gain = 0.4")] = None
    allocation: Annotated[Literal["joint", "each", "power"], doc("how the noise is split over parts")] = "joint"
    microbatch: Annotated[int, doc("how many examples are bounded together")] = 1
    hardening: Annotated[Literal["idealised", "exact"], doc("whether sums and noise are whole numbers")] = "idealised"
    noise_schedule: Annotated[list[float], doc("factors on the noise in equal stretches of the run")] = []


class BudgetSection(Section, frozen=True):
    """What may be spent, and how long the run is."""

    epsilon: Annotated[float | None, doc("the budget; the noise is solved for it")] = None
    noise: Annotated[float | None, doc("the noise in units of the sensitivity, instead of epsilon")] = None
    delta: Annotated[float, doc("the probability left out of the guarantee")] = 1e-5
    epochs: Annotated[float, doc("how often each example takes part, on average")] = 20.0
    steps: Annotated[int | None, doc("how many releases, instead of epochs")] = None
    batch_size: Annotated[int, doc("how many examples take part in a step, on average")] = 256


class OptimizerSection(Section, frozen=True):
    """What is done with the private gradient; it costs nothing."""

    name: Annotated[Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"], doc("a torch optimizer")] = "sgd"
    learning_rate: Annotated[
        float | None, doc("its learning rate; if not given 0.5, or 1 for the server of a federated run")
    ] = None
    at_batch_size: Annotated[
        int | None, doc("the batch size at which that learning rate is good; it is scaled to the run's in proportion")
    ] = None
    momentum: Annotated[float, doc("for sgd and rmsprop")] = 0.0
    weight_decay: Annotated[float, doc("decay of the weights")] = 0.0
    settings: Annotated[Table, doc("what else the optimizer takes, as betas = [0.9, 0.99]")] = {}


class ScheduleSection(Section, frozen=True):
    """How the learning rate changes over the run."""

    name: Annotated[
        Literal["constant", "cosine", "linear"], doc("towards zero by a cosine or a line, or not at all")
    ] = "constant"
    warmup: Annotated[float, doc("the part of the run in which it grows from zero")] = 0.0


class AveragingSection(Section, frozen=True):
    """Averaging of the iterates, which costs nothing: the average is what is evaluated and saved."""

    decay: Annotated[float, doc("of the running average, as 0.99; 0 for none")] = 0.0


class AugmentationSection(Section, frozen=True):
    """Several changed copies of an example, whose gradients are averaged before they are bounded (De et al. 2022)."""

    copies: Annotated[int, doc("how many; 1 is the example itself, or one changed copy if anything below is set")] = 1
    flip: Annotated[bool, doc("mirror images left to right, by a coin")] = False
    shift: Annotated[int, doc("move images by up to so many pixels each way")] = 0


class FederatedSection(Section, frozen=True):
    """Training at user level: [budget] counts users and rounds, [optimizer] is the server's, and this is what users do.

    Without a table's user column, rows are dealt out to made-up users.
    """

    user: Annotated[str | None, doc("the column of a table that says whose a row is")] = None
    users: Annotated[int | None, doc("how many made-up users rows are dealt out to, where there is no such column")] = (
        None
    )
    partition: Annotated[
        Literal["iid", "shards", "dirichlet"],
        doc("how: at random, a few labels each (shards), or in shares drawn class by class (dirichlet)"),
    ] = "iid"
    shards: Annotated[int, doc("pieces of sorted labels a made-up user gets")] = 2
    alpha: Annotated[float, doc("how even dirichlet shares are: small is uneven")] = 0.5
    optimizer: Annotated[Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"], doc("a user's own optimizer")] = "sgd"
    learning_rate: Annotated[float, doc("a user's own learning rate")] = 0.1
    momentum: Annotated[float, doc("a user's own momentum")] = 0.0
    weight_decay: Annotated[float, doc("a user's own decay of the weights")] = 0.0
    epochs: Annotated[int, doc("passes a user makes over its records in a round")] = 1
    batch_size: Annotated[int | None, doc("records in a user's batch; all at once if not given")] = 10
    full_weight: Annotated[
        int | None, doc("records at which a user counts fully, those with fewer in proportion; if not given all do")
    ] = None
    total_weight: Annotated[
        float | None, doc("the public total weight of all users, which a round's share of is divided by")
    ] = None
    engine: Annotated[
        Literal["auto", "vectorised", "loop"], doc("all users of a round in one pass, or one after the other")
    ] = "auto"


class EvaluationSection(Section, frozen=True):
    """Accuracy on held-out data, which must not be private, or not the same data."""

    every: Annotated[float, doc("how many epochs lie between evaluations")] = 1.0
    batch_size: Annotated[int, doc("how many rows are evaluated at a time")] = 1000


class AuditSection(Section, frozen=True):
    """Canaries in the run, from which epsilon is measured from below; they cost some accuracy.

    A canary is a made-up row whose gradient is a direction of its own, in the run or not by a secret coin. The plan
    counts it as it counts every row, and its batches grow in proportion, so that each example takes part as often as
    without canaries.
    """

    canaries: Annotated[int, doc("how many canaries are put beside the data; 0 for none")] = 0
    level: Annotated[float, doc("the chance that a test rejects what is true, at most; 0.05 is confidence 0.95")] = 0.05
    score: Annotated[
        Literal["likelihood", "sum", "parameters"] | None,
        doc(
            "what the attacker sees: every gradient and all data but the canaries (likelihood), every gradient (sum), "
            "the first and the last model (parameters); the strongest that the plan allows if not given"
        ),
    ] = None


class RunSection(Section, frozen=True):
    """How it is run; nothing here changes what is proven."""

    seed: Annotated[int, doc("of the model's first weights; noise and sampling are secret and have none")] = 0
    chunk: Annotated[int | None, doc("how many rows are taken at a time; found by itself if not given")] = None
    checkpoint_every: Annotated[float, doc("seconds between checkpoints")] = 20.0
    preflight: Annotated[bool, doc("whether the first batch is probed for what would break the guarantee")] = True
    memory: Annotated[float, doc("memory of a step, in times an ordinary one's: more may be faster")] = 1.3
    tensorboard: Annotated[bool, doc("also write TensorBoard logs")] = False
    device: Annotated[str, doc("cpu, cuda or another torch device")] = "cpu"
    ledger: Annotated[str | None, doc("the ledger of a data set, which caps all its runs; the run's own otherwise")] = (
        None
    )
    reserve: Annotated[int, doc("steps a line of the ledger counts ahead: faster, but a stop wastes the rest")] = 1
    dataset: Annotated[str | None, doc("the data set's name in that ledger")] = None
    dataset_epsilon: Annotated[float | None, doc("the cap on all runs on the data set together")] = None
    dataset_delta: Annotated[float | None, doc("the delta of that cap")] = None


class Config(Section, frozen=True):
    """A run, as its file describes it."""

    data: DataSection = DataSection()
    features: FeaturesSection | None = None
    model: ModelSection = ModelSection()
    method: MethodSection | None = None
    stages: StagesSection | None = None
    budget: BudgetSection = BudgetSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    averaging: AveragingSection = AveragingSection()
    augmentation: AugmentationSection = AugmentationSection()
    federated: FederatedSection | None = None
    evaluation: EvaluationSection = EvaluationSection()
    audit: AuditSection = AuditSection()
    run: RunSection = RunSection()

    def to_toml(self) -> str:
        """Everything, defaults included, as the run folder keeps it."""
        return to_toml(_without_none(_plain(self)))

    def check(self) -> None:
        """Refuse what cannot be, before anything is made."""
        if self.stages is not None and self.method is not None:
            raise ConfigError("both [method] and [stages] are given; a run has a preset or stages of its own.")
        budget, method = self.budget, self.method or MethodSection()
        published = self.stages is None and method.settings.get("form") == "paper"
        given = (budget.epsilon is not None) + (budget.noise is not None)
        if given != 1 and not (published and given == 0):
            raise ConfigError(
                f"epsilon is {budget.epsilon} and noise is {budget.noise}: give one of them, the other follows."
            )
        if not (isinstance(self.audit.canaries, int) and self.audit.canaries >= 0):
            raise ConfigError(f"[audit] canaries is {self.audit.canaries}; it must be 0 for none, or more.")
        if method.name not in METHODS:
            raise ConfigError(f"the method {method.name!r} is not one of {', '.join(METHODS)}.")

    def plan(self, examples: int, model: "nn.Module | None" = None) -> "Plan":
        """The plan for so many training examples, its noise solved; with the model, for its parameters.

        Canaries are rows like all others, so it is a plan for the examples and all of them.
        """
        self.check()
        grown, rows = self.beside_canaries(examples), examples + self.audit.canaries
        if self.stages is not None:
            plan = grown._staged(self.stages, rows)
        else:
            plan = grown._preset(self.method or MethodSection(), rows, model)
        if self.federated is not None and plan.sampling.contract().unit == "example":
            sampling: Any = plan.sampling
            plan = replace(plan, sampling=replace(sampling, unit="user"))
        return plan if model is None else plan.fit_to(model)

    def beside(self, plan: "Plan") -> "list[Event]":
        """What is asked of the data beside training: statistics of features."""
        return [] if self.features is None else self.pipeline().cost(plan.sampling.contract().adjacency)

    def pipeline(self) -> "Pipeline":
        """What makes features, with the noise that its statistics have at this budget."""
        from discreet.accounting import gaussian as gdp
        from discreet.features.pipeline import Pipeline

        if self.features is None:
            raise ConfigError("there are no [features] in this run.")
        made, share, budget = Pipeline.of(self.features), self.features.share, self.budget
        if share is None:
            return made
        if budget.epsilon is None or not 0 < share < 1:
            raise ConfigError(
                f"[features] share is {share}: it must be between 0 and 1, a part of [budget] epsilon, which is "
                f"{budget.epsilon}; or leave it out and say the noises."
            )
        return made.spending(math.sqrt(share) * gdp.mu(budget.epsilon, budget.delta))

    def beside_canaries(self, examples: int) -> "Config":
        """The same with batches that are larger by the canaries' share, so that each example takes part as often.

        A learning rate of SGD is kept what it is to an example, whose gradient is divided by the batch size.
        """
        if self.audit.canaries == 0:
            return self
        budget, optimizer = self.budget, self.optimizer
        size = round(budget.batch_size * (examples + self.audit.canaries) / examples)
        if optimizer.name == "sgd" and optimizer.at_batch_size is None:
            optimizer = msgspec.structs.replace(optimizer, at_batch_size=budget.batch_size)
        budget = msgspec.structs.replace(budget, batch_size=size)
        return msgspec.structs.replace(self, budget=budget, optimizer=optimizer)

    def _preset(self, method: MethodSection, examples: int, model: "nn.Module | None") -> "Plan":
        from discreet.stages import presets as methods
        from discreet.accounting.calibrate import calibrate

        preset = getattr(methods, method.name)
        budget = self.budget
        length = {"epochs": budget.epochs} if budget.steps is None else {"steps": budget.steps}
        own = {
            "examples": examples,
            "batch_size": budget.batch_size,
            "delta": budget.delta,
            "epsilon": budget.epsilon,
            "noise": budget.noise,
            **length,
        }
        known = set(inspect.signature(preset).parameters) - {*own, "epochs", "steps"}
        wrong = set(method.settings) - known
        if wrong:
            raise ConfigError(
                f"{method.name} has no setting {', '.join(sorted(wrong))}; it has {', '.join(sorted(known))}, and "
                "[budget] has the rest."
            )
        if model is not None:
            sizes = [p.numel() for p in model.parameters() if p.requires_grad]
            facts = {"parameters": sum(sizes), "tensors": len(sizes)}
            own |= {k: v for k, v in facts.items() if k in known and k not in method.settings}
        total = budget.epsilon if self.features is not None else None
        if total is not None:  # solved below, beside the statistics of features
            own |= {"epsilon": None, "noise": 1.0}
        try:
            plan = preset(**own, **method.settings)
            return plan if total is None else calibrate(plan, total, beside=self.beside(plan))
        except TypeError as error:
            raise ConfigError(f"{method.name} cannot be made of {method.settings!r}: {error}") from error

    def _staged(self, stages: StagesSection, examples: int) -> "Plan":
        from discreet.accounting.calibrate import calibrate
        from discreet.stages.plan import Plan

        budget = self.budget
        sampling = {**stages.sampling, "batch_size": budget.batch_size}
        if "rate" not in sampling:
            sampling["examples"] = examples
        values: Table = {
            "format": "discreet-plan/1",
            "steps": 0 if budget.steps is None else budget.steps,
            "delta": budget.delta,
            "sampling": sampling,
            "bound": stages.bound,
            "noise": stages.noise,
            "allocation": stages.allocation,
            "microbatch": stages.microbatch,
            "hardening": stages.hardening,
            **({} if stages.denoise is None else {"denoise": stages.denoise}),
        }
        plan = Plan.from_dict(values)
        if budget.steps is None:
            plan = replace(plan, steps=plan.sampling.steps_for(budget.epochs))
        if stages.noise_schedule:
            plan = replace(plan, noise_schedule=tuple(stages.noise_schedule))
        if budget.epsilon is not None:
            return calibrate(plan, budget.epsilon, beside=self.beside(plan))
        assert budget.noise is not None
        return replace(plan, mechanism=plan.mechanism.with_scale(budget.noise))


def load(path: str | Path) -> Config:
    """Read a file, strictly."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def from_dict(values: Mapping[str, Any]) -> Config:
    """A run of plain values."""
    _check_plain(values, "the file")
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_in_words(str(error))) from error


def _check_plain(value: Any, where: str) -> None:
    """Refuse what a file could not hold again: dates, and numbers that are none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_plain(inner, f"{where}, {key}" if where != "the file" else f"[{key}]")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_plain(inner, where)
    elif isinstance(value, float) and not abs(value) < 1e300:
        raise ConfigError(f"{where} is {value}; it must be a finite number.")
    elif not (value is None or isinstance(value, (bool, int, float, str))):
        raise ConfigError(f"{where} is {value!r}; it must be a number, a text, true or false, or a list of them.")


def merged(config: Config, changes: Mapping[str, Any]) -> Config:
    """The same with some values replaced, given as "section.field"."""
    values = _without_none(_plain(config))
    for path, value in changes.items():
        if value is None:
            continue
        *tables, name = path.split(".")
        inner = values
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{path} is no field: {table} has a value and no fields of its own.")
        inner[name] = value
    if changes.get("budget.epochs") is not None and changes.get("budget.steps") is None:
        values.get("budget", {}).pop("steps", None)  # the length is said by one of them
    return from_dict(values)


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Values given as "section.field=value", with the value in TOML; plain words need no quotes.

    >>> assignments(["model.settings.hidden=[64, 64]", "data.name=mnist"])
    {'model.settings.hidden': [64, 64], 'data.name': 'mnist'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or "." not in path:
            raise ConfigError(f"{text!r} is no assignment; write section.field=value.")
        try:
            found[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[path.strip()] = value
    return found


SHAPES = {  # of an example, and how many classes there are; public
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
}
EXAMPLES = {"digits": 1_437, "mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}  # to train on; public


def documented() -> Iterator[tuple[str, str, str, Any]]:
    """Each field: its section, name, description and default."""
    for section in msgspec.structs.fields(Config):
        kind = next((t for t in getattr(section.type, "__args__", ()) if isinstance(t, type)), section.type)
        for entry in msgspec.structs.fields(kind):
            meta = next(m for m in entry.type.__metadata__ if isinstance(m, Meta))
            default = entry.default
            if default is msgspec.NODEFAULT and callable(entry.default_factory):
                default = entry.default_factory()
            yield section.name, entry.name, str(meta.description), default


def _plain(config: Any) -> dict[str, Any]:
    return {
        f.name: _plain(value) if isinstance(value := getattr(config, f.name), Struct) else value
        for f in msgspec.structs.fields(config)
    }


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    cleaned = {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}
    return {k: v for k, v in cleaned.items() if v != {}}


def _in_words(message: str) -> str:
    """msgspec's message with the place in front: `$.budget.epsilon` becomes [budget] epsilon."""
    what, _, place = message.partition(" - at ")
    path = place.strip("`").removeprefix("$").strip(".").split(".") if place else []
    where = f"[{path[0]}] " + ".".join(path[1:]) if path and path != [""] else "the file"
    return f"{where.strip()}: {what[0].lower()}{what[1:]}."
