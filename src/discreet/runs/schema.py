"""What a run's file may say: its tables, field by field, with types, defaults and descriptions."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Table = dict[str, Any]


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
            "digits, mnist, fashion-mnist, cifar10, a .csv, .parquet or .npz file, a folder of images, "
            "module:function (which runs that code)"
        ),
    ] = "digits"
    folder: Annotated[str | None, doc("where the files are; otherwise DISCREET_DATA, a cache, or a download")] = None
    download: Annotated[bool, doc("whether files that are not there may be fetched")] = True
    label: Annotated[str | None, doc("the column that is to be predicted, of a table")] = None
    schema: Annotated[
        str | None,
        doc("a TOML file with each column's range or words; if not given people.schema.toml beside people.csv"),
    ] = None
    private_share: Annotated[
        float,
        doc("the part of the budget, as 1 / noise^2 adds up, that is spent on what a table's schema marks as private"),
    ] = 0.1
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
            "tables by name, as [features.extractors.fine] with kind = 'patches', 'scattering' or 'backbone' (a public "
            "network, as network = 'efficientnet-lite0'), its settings, and "
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

    name: Annotated[
        str,
        doc(
            "linear, mlp, cnn, abadi, belu, alexnet, wrn-16-4, efficientnet-lite0, minilm-l6, or module:function "
            "(which runs that code)"
        ),
    ] = "mlp"
    settings: Annotated[Table, doc("the model's own settings, as hidden = [64] or activation = 'relu'")] = {}


class MethodSection(Section, frozen=True):
    """A preset of discreet.methods; or explicit stages in [stages]."""

    name: Annotated[str, doc("dp_sgd, tanh_filter, belu, adaptive_clipping, encode_denoise, band_mf or dp_ftrl")] = (
        "dp_sgd"
    )
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
    batch_share: Annotated[
        float | None, doc("how much of the examples takes part in a step, on average, instead of batch_size")
    ] = None


class OptimizerSection(Section, frozen=True):
    """What is done with the private gradient; it costs nothing."""

    name: Annotated[Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"], doc("a torch optimizer")] = "sgd"
    learning_rate: Annotated[
        float | None, doc("its learning rate; if not given 0.5, or 1 for the server of a federated run")
    ] = None
    at_batch_size: Annotated[
        int | None, doc("the batch size at which that learning rate is good; it is scaled to the run's in proportion")
    ] = None
    noise_walk: Annotated[
        float | None,
        doc(
            "how far the noise of all steps together may move the model, as a length: where it would be farther, the "
            "learning rate of sgd is lowered until it is not; no data is asked for that"
        ),
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


class TuneSection(Section, frozen=True):
    """A search over settings whose cost is inside the guarantee: discreet tune.

    A number of trials is drawn, each with settings drawn from the space, and only the best is released. [budget]
    epsilon is that of everything together.
    """

    space: Annotated[
        Table,
        doc(
            "the settings that are drawn: a list to choose from, as budget.epochs = [10.0, 30.0], or a range, as "
            "optimizer.learning_rate = {low = 0.1, high = 4.0, log = true}"
        ),
    ] = {}
    runs: Annotated[float, doc("how many trials there are, on average; their number itself is drawn in secret")] = 10.0
    distribution: Annotated[
        Literal["logarithmic", "geometric", "poisson"],
        doc("of their number; logarithmic costs least, and poisson varies least but may be none"),
    ] = "logarithmic"
    score: Annotated[
        Literal["noisy", "held-out"],
        doc("by what the best is known: right answers on the training rows with noise, or on held-out rows without"),
    ] = "noisy"
    score_noise: Annotated[
        float | None, doc("noise on the number of right answers; if not given such that it takes 2 % of the budget")
    ] = None


class SweepSection(Section, frozen=True):
    """A grid of settings on data that is public, or stands for private data: discreet sweep. Nothing is charged."""

    space: Annotated[
        Table,
        doc("the settings that are tried, each a list, as budget.epsilon = [1.0, 3.0] or run.seed = [0, 1]"),
    ] = {}
    public: Annotated[bool, doc("that the data is public or made up; data that discreet knows by name is")] = False


class EvaluationSection(Section, frozen=True):
    """Accuracy on held-out data, which must not be private, or not the same data."""

    every: Annotated[float, doc("how many epochs lie between evaluations")] = 1.0
    batch_size: Annotated[int, doc("how many rows are evaluated at a time")] = 1000
    group: Annotated[
        str | None,
        doc(
            "a column of a table by whose words figures on held-out rows are told, as sex; the words are those that "
            "the schema declares, or that were found with noise"
        ),
    ] = None
    groups: Annotated[
        list[str] | None, doc("these words, where the schema does not say them; the column need not be an input")
    ] = None


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
    callbacks: Annotated[list[str], doc("trackers that are told how it goes, as module:Class")] = []
    device: Annotated[str, doc("cpu, cuda or another torch device")] = "cpu"
    ledger: Annotated[
        str | None, doc("the file that counts it; if not given the data set's in datasets/ beside the run's folder")
    ] = None
    alone: Annotated[
        bool, doc("do not count it with the other runs on its data, but in a ledger of its own; the guarantee says so")
    ] = False
    reserve: Annotated[int, doc("steps a line of the ledger counts ahead: faster, but a stop wastes the rest")] = 1
    dataset: Annotated[str | None, doc("the data set's name; if not given that of its file, without the ending")] = None
    dataset_epsilon: Annotated[float | None, doc("the most that all runs on the data set may come to together")] = None
    dataset_delta: Annotated[
        float | None, doc("the delta at which these are added up; if not given that of the first run")
    ] = None


class StatementSection(Section, frozen=True):
    """What only people can say of a run: it goes on its page and into its registry entry. Nothing here is checked."""

    name: Annotated[str | None, doc("of what is published")] = None
    description: Annotated[str | None, doc("what it is, in a sentence")] = None
    curators: Annotated[list[str], doc("who publishes it and answers for it")] = []
    purpose: Annotated[str | None, doc("what it is meant for")] = None
    region: Annotated[str | None, doc("the region that the data are about, or whose laws apply")] = None
    sector: Annotated[
        Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None,
        doc("the industry or domain"),
    ] = None
    published: Annotated[str | None, doc("the day of publication, as 2026-11-19")] = None
    authors: Annotated[list[str], doc("who filled this table in")] = []
    domain: Annotated[str | None, doc("which data sets could have been there")] = None
    collection: Annotated[str | None, doc("how the data were collected, and who sees them on the way")] = None
    unit: Annotated[str | None, doc("what a unit is in words, as a person or a visit")] = None
    public: Annotated[str | None, doc("what else of the data is public, or released without noise")] = None
    released_to: Annotated[str | None, doc("who gets the model, and who could")] = None
    releases: Annotated[Literal["one", "many"] | None, doc("whether there will be more releases of the same data")] = (
        None
    )
    data_source: Annotated[Literal["static", "dynamic"] | None, doc("whether new data keep coming in")] = None
    actors: Annotated[str | None, doc("who sees what, and why they are trusted with it")] = None
    key: Annotated[str | None, doc("where the key that signs the ledger is, and who has it")] = None
    security: Annotated[str | None, doc("how data, machines and checkpoints are protected, and who has access")] = None
    tuning: Annotated[str | None, doc("how settings were chosen, on which data, and whether that was counted")] = None
    exploration: Annotated[str | None, doc("what was looked at in the data before, and whether that was counted")] = (
        None
    )
    timing: Annotated[str | None, doc("who could see times, sizes of batches or logs")] = None
    evaluation: Annotated[str | None, doc("what the held-out data are, and whether they are private")] = None
    bias: Annotated[str | None, doc("whom the model serves badly, and how that was looked at")] = None
    justification: Annotated[str | None, doc("why epsilon, unit and method are what they are")] = None
    sources: Annotated[str | None, doc("where more can be read")] = None
    notes: Annotated[str | None, doc("anything else")] = None
