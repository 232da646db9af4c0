"""What the ranks of test_distributed.py do: functions of a rank, each run by several processes at once."""

import os
import signal
from dataclasses import replace

import torch
import torch.distributed as dist
import typer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from discreet import (
    AdaptiveClip,
    BandedGaussian,
    BLTGaussian,
    BoundedNetwork,
    Clip,
    ConfigError,
    CyclicPoisson,
    Encode,
    FixedOrder,
    FixedSize,
    Gaussian,
    Kalman,
    Mechanism,
    MinSeparation,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    StudentT,
    Tanh,
    attach,
    fit,
    load_checkpoint,
    methods,
    save_checkpoint,
)
from discreet.cli.running import carry_out
from discreet.distributed import data_digest
from discreet.distributed import ranks as distributed
from discreet.federated import Rounds
from discreet.release.sums import FloatSums
from discreet.runs.config import from_dict
from discreet.runs.progress import Watch
from discreet.runs.run import resume
from discreet.runs.run import train as begin

EXAMPLES, STEPS = 30, 5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 6, generator=generator), torch.randint(3, (EXAMPLES,), generator=generator)


class Counted(Dataset):
    """Rows that note who read them."""

    def __init__(self):
        self.x, self.y = data()
        self.read = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[i], self.y[i]


class Broken(Counted):
    """Rows of which some cannot be read."""

    def __getitem__(self, i):
        if len(self.read) > 20:
            raise ValueError("no such row")
        return super().__getitem__(i)


def plan(bound=None, noise=None, batch_size=12, sampling=None, steps=STEPS, **settings):
    mechanism = Mechanism(bound or Clip(0.3), noise or Gaussian(0.0), **settings)
    sampling = sampling or Poisson(examples=EXAMPLES, batch_size=batch_size)
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


PLANS = {
    "clip": plan,
    "shares that are empty": lambda: plan(batch_size=2),
    "per layer": lambda: plan(PerLayerClip(0.3), allocation="each"),
    "adaptive": lambda: plan(AdaptiveClip(0.3)),
    "adaptive, mean, by layer": lambda: plan(AdaptiveClip(0.3, "mean", per_layer=True)),
    "elements": lambda: plan(Encode(0.2)),
    "tanh": lambda: plan(Tanh(0.2, 1.0)),
    "inside the network": lambda: plan(BoundedNetwork(2.0, 1.5)),
    "fixed size": lambda: plan(sampling=FixedSize(examples=EXAMPLES, batch_size=7)),
    "microbatches": lambda: plan(microbatch=3),
    "microbatches, adaptive": lambda: plan(AdaptiveClip(0.3), microbatch=5),
    "exact": lambda: plan(noise=Gaussian(0.5), hardening="exact"),
    "noise": lambda: plan(noise=Gaussian(0.5)),
    "other noise": lambda: plan(Encode(0.2), noise=StudentT(3.0, 2.0)),
    "denoised": lambda: plan(noise=Gaussian(0.5), denoise=Kalman(gain=0.5)),
    "bands": lambda: plan(noise=BandedGaussian(0.5, bands=2), sampling=CyclicPoisson(EXAMPLES, 7, groups=2)),
    "buffers": lambda: plan(noise=BLTGaussian(0.5, buffers=2), sampling=FixedOrder(EXAMPLES, 7)),
}


IN_CHUNKS = "clip", "shares that are empty", "per layer", "adaptive", "microbatches"


def step(private, model, x, y, optimizer, released):
    if private.backward(F.cross_entropy(model(x), y, reduction="none")):
        released.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        optimizer.step()


def train(made, at_most=None, rows=None, seed=3, loader=False, **settings):
    """Run a plan; what was released, how often a batch came, and the guarantee."""
    model = network()
    private = attach(model, made, seed=seed, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    released, batches = [], 0
    rows = data() if rows is None else rows
    if loader:
        sampler = private.batch_sampler()
        handed = DataLoader(rows, batch_sampler=sampler, collate_fn=private.collate(rows))
    else:
        handed = private.batches(rows, at_most=at_most)
    for x, y in handed:
        batches += 1
        step(private, model, x, y, optimizer, released)
    private.detach()
    return torch.stack(released), batches, private


def same_as_one(rank):
    """Every plan, and some of them in chunks."""
    found = {}
    for name, at_most in [*((name, None) for name in PLANS), *((name, 2) for name in IN_CHUNKS)]:
        released, batches, private = train(PLANS[name](), at_most)
        found[name, at_most] = released, batches, private.released
    return found


# --- ranks that drift ------------------------------------------------------------------------------------------------


def differ(rank, what):
    """Rank 1 has something else."""
    model, made, settings = network(), plan(noise=Gaussian(1.0)), {}
    odd = rank == 1
    if what == "weights" and odd:
        model[0].weight.data[0, 0] += 1e-3
    if what == "plan":
        made = plan(noise=Gaussian(1.1 if odd else 1.0))
    if what == "seed":
        settings["seed"] = 1 + odd
    if what == "preflight":
        settings["preflight"] = not odd
    if what == "model" and odd:
        model = nn.Sequential(model, nn.Identity())
    if what == "code" and odd:
        distributed._code = lambda: "another version"
    if what in ("bound", "released"):
        made = plan(AdaptiveClip(0.3), noise=Gaussian(1.0))
    if what == "attendance":
        made = plan(noise=Gaussian(1.0), sampling=MinSeparation(EXAMPLES, 5, separation=2, most=3, unit="example"))
    private = attach(model, made, **settings)
    rows = data()
    if what == "attendance":  # of a checkpoint of another time
        state = private.state_dict()
        state["attendance"]["last"][0] += odd
        private.load_state_dict(state)
    if what in ("bound", "released"):  # a checkpoint that is another one's on rank 1
        state = private.state_dict()
        state["bound"] = state["bound"] | ({"norms": [3.0]} if what == "bound" and odd else {})
        taken = int(what == "released" and odd)
        private.load_state_dict(state | {"released": taken, "participations": taken})
    if what == "rows" and odd:
        rows = Broken()
    if what == "number of examples" and odd:
        rows = rows[0][:-1], rows[1][:-1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + (what == "parameters" and odd))
    for x, y in private.batches(rows, at_most=5 + (what == "at_most" and odd)):
        if odd and private.released == 2:
            if what == "mixing":
                losses = F.cross_entropy(model(x), y, reduction="none")
                private.backward(losses - losses.mean())
            elif what == "break":
                break
            elif what == "skip":
                continue
            elif what == "losses":
                private.backward(model(x).sum())
        step(private, model, x, y, optimizer, [])
    if what == "break":
        private.batches(rows)
    return private.released


def drift(rank):
    """All of them, one after another in the same group: an error leaves ranks in step."""
    found = {}
    for what in DRIFTS:
        try:
            found[what] = differ(rank, what)
        except (RuntimeError, ValueError) as error:
            found[what] = error
        distributed._code = CODE
    return found


CODE = distributed._code
DRIFTS = (
    "weights", "plan", "seed", "preflight", "model", "code", "number of examples", "at_most", "parameters", "mixing",
    "break", "skip", "losses", "rows", "bound", "released", "attendance", "nothing",
)  # fmt: skip


# --- one ledger ------------------------------------------------------------------------------------------------------


def counted(rank, ledger, steps):
    """Some steps of a run; what each rank knows of it, and whether the state can be loaded again."""
    model = network()
    private = attach(model, plan(noise=Gaussian(1.0), steps=12), ledger=ledger)
    released = []
    for x, y in private.batches(data(), steps=steps):
        step(private, model, x, y, torch.optim.SGD(model.parameters(), lr=0.1), released)
    state = private.state_dict()
    private.load_state_dict(state)
    private.detach()
    return private.released, private.anchor, str(private.guarantee()), state, torch.stack(released)


def too_many(rank, ledger):
    """A second run on a data set that has no room for it."""
    attach(network(), plan(noise=Gaussian(1.0), steps=12), ledger=ledger)


# --- noise -----------------------------------------------------------------------------------------------------------


REMEMBERS = BandedGaussian(2.0, bands=2, coefficients=(1.0, 0.75))


def only_noise(rank, noise_shares, remembers=False):
    """What is released where nobody is drawn, or where gradients are 0: the noise."""
    model = nn.Linear(200, 100, bias=False)
    made = plan(Clip(1.0), Gaussian(2.0), sampling=Poisson(rate=1e-9, batch_size=1), steps=2)
    if remembers:
        made = plan(Clip(1.0), REMEMBERS, sampling=FixedOrder(4, 1), steps=3)
    private = attach(distributed_start(model), made, noise_shares=noise_shares)
    released = []
    for x in private.batches(torch.zeros(4, 200) if remembers else torch.randn(4, 200)):
        private.backward(model(x).sum(1))
        released.append(model.weight.grad.flatten())
    return torch.stack(released), [str(c) for c in private.guarantee().conditions]


def distributed_start(model):
    distributed.same_weights(model)
    return model


def refused_shares(rank):
    found = []
    for made in (PLANS["other noise"](), PLANS["exact"]()):
        try:
            attach(network(), made, noise_shares=True)
        except ConfigError as error:
            found.append(str(error))
    return found


# --- who reads what --------------------------------------------------------------------------------------------------


def reads(rank):
    """A data set of which each rank reads its share; a loader of one's own; and parts that ranks have to themselves."""
    rows, again = Counted(), Counted()
    shared = train(plan(), rows=rows)[0]
    loaded = train(plan(), rows=again, loader=True)[0]
    x, y = data()
    cuts = [0, 9, EXAMPLES] if dist.get_world_size() == 2 else [0, EXAMPLES]
    mine = slice(cuts[rank], cuts[rank + 1])
    model, released = network(), []
    private = attach(model, plan(batch_size=3), seed=3)
    for a, b in private.batches((x[mine], y[mine]), sharded=True, at_most=4):
        step(private, model, a, b, torch.optim.SGD(model.parameters(), lr=0.5), released)
    told = [c.text for c in private.guarantee().conditions]
    return shared, loaded, torch.stack(released), train(plan(batch_size=3))[0], rows.read, again.read, told


# --- a rank dies -----------------------------------------------------------------------------------------------------


def mortal(rank, say, folder):
    """Train on, from the checkpoint if there is one, and say each release aloud."""
    model = network()
    private = attach(model, plan(noise=Gaussian(1.0), steps=40), ledger=folder / "ledger.jsonl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        load_checkpoint(checkpoint, model=model, private=private, optimizer=optimizer)
    say(private.released)
    for x, y in private.batches(data()):
        step(private, model, x, y, optimizer, [])
        say(private.released)
        if private.released % 4 == 0:
            save_checkpoint(checkpoint, model=model, private=private, optimizer=optimizer)
    return private.guarantee().epsilon


def fails_at_noise(rank):
    """Rank 0 cannot draw the noise of the second step, and tries to go on."""
    model = network()
    private = attach(model, plan(noise=Gaussian(1.0)))
    add_noise, errors, draws = FloatSums._add_noise, [], []

    def failing(*arguments):
        draws.append(1)
        if len(draws) == 2:
            raise RuntimeError("no noise")
        return add_noise(*arguments)

    FloatSums._add_noise = failing
    for _ in range(2):
        try:
            for x, y in private.batches(data()):
                step(private, model, x, y, torch.optim.SGD(model.parameters(), lr=0.1), [])
        except RuntimeError as error:
            errors.append(error)
    return errors, private.released, [p.grad for p in model.parameters()]


# --- alone -----------------------------------------------------------------------------------------------------------


def apart(rank):
    """group=False: each rank is on its own; half of a group; and what works in one process only."""
    private = attach(network(), plan(noise=Gaussian(1.0 + rank)), group=False, seed=rank)
    private.detach()
    pair = dist.new_group([0, 1])
    found = [train(plan(noise=Gaussian(0.5)), group=pair)[0]] if rank < 2 else []
    for work in (_rounds, _wrapped, _not_a_group):
        try:
            work()
        except (ConfigError, RuntimeError) as error:
            found.append(str(error))
    return found


def _rounds():
    Rounds(network(), methods.dp_fedavg(users=10, users_per_round=5, rounds=2, noise=1.0, delta=1e-5))


def _wrapped():
    attach(nn.parallel.DistributedDataParallel(network()), plan())


def _not_a_group():
    attach(network(), plan(), group="gloo")


# --- fit and train ---------------------------------------------------------------------------------------------------


def fitted(rank, folder, stop_at):
    """Train with `fit`, resumed where it was left; rank 1 alone asks to stop."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    steps = []
    found = fit(
        model, data(), plan(noise=Gaussian(0.5), steps=12), test=data(), optimizer=optimizer,
        ledger=folder / "ledger.jsonl", checkpoint=folder / "checkpoint", on_step=steps.append,
        stop=lambda: rank == 1 and len(steps) >= stop_at,
    )  # fmt: skip
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return steps, found.finished, found.records[-1]["loss"], str(found.guarantee), found.anchor, weights


def fit_that_fails(rank):
    """One rank's loss cannot be computed."""

    def loss(outputs, targets):
        if rank == 1:
            raise ValueError("no such loss")
        return F.cross_entropy(outputs, targets, reduction="none")

    fit(network(), data(), plan(noise=Gaussian(0.5)), loss=loss)


def folder_of_a_run(rank, config, folder, stop_at):
    """Begin a run, or resume it."""
    steps = []
    watch = Watch(step=steps.append, stop=lambda: rank == 0 and len(steps) >= stop_at)
    outcome = resume(folder, watch) if config is None else begin(from_dict(config), folder, watch)
    return steps, outcome.finished, outcome.already, outcome.accuracy, outcome.anchor, str(outcome.guarantee)


# --- the same rows on all ranks --------------------------------------------------------------------------------------


class Rows(Dataset):
    """Tensors behind an object, of which nothing is known but its rows; `make` makes a row of what is stored."""

    def __init__(self, tensors, make=lambda x, y: (x, y)):
        self._tensors, self._make = tensors, make

    def __len__(self):
        return len(self._tensors[0])

    def __getitem__(self, i):
        return self._make(*(t[i] for t in self._tensors))


class Opaque:
    """A value that cannot be looked into."""

    def __init__(self, x, y):
        self.pair = x, y


def opened(rows):
    """What makes a batch of opaque values."""
    return tuple(torch.stack(parts) for parts in zip(*(row.pair for row in rows), strict=True))


def signalled(rank, config, folder):
    """The exit code of a run on the command line of which rank 1 is told to end after three steps."""

    def carried(watch):
        def step(number):
            watch.step(number)
            if rank == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        return begin(from_dict(config), folder, replace(watch, step=step))

    try:
        carry_out(carried, quiet=True)
    except typer.Exit as ending:
        return ending.exit_code
    return 0


def reordered(tensors, rank):
    """What an unseeded split gives: the same rows, in another order on rank 1."""
    order = torch.arange(len(tensors[0]))
    return tuple(t[order.flip(0) if rank == 1 else order] for t in tensors)


def altered(tensors, rank):
    """One row of rank 1 is another one."""
    x, y = tensors
    x = x.clone()
    x[7, 2] += rank == 1
    return x, y


def noisy(x, y):
    """A row that is another one each time it is read."""
    return x + 0.01 * torch.rand(()), y


def rarely(x, y):
    """A row that is another one now and then."""
    return x + (torch.rand(()) < 0.2), y


ROWS = {
    "same tensors": lambda rank: data(),
    "same rows": lambda rank: Rows(data()),
    "another order of tensors": lambda rank: reordered(data(), rank),
    "another order of a TensorDataset": lambda rank: TensorDataset(*reordered(data(), rank)),
    "another order of labels": lambda rank: (data()[0], reordered(data(), rank)[1]),
    "another order of rows": lambda rank: Rows(reordered(data(), rank)),
    "another order of dictionaries": lambda rank: Rows(reordered(data(), rank), lambda x, y: {"x": x, "y": int(y)}),
    "another row of tensors": lambda rank: altered(data(), rank),
    "another row": lambda rank: Rows(altered(data(), rank)),
    "another type": lambda rank: Rows(data(), lambda x, y: (x.double() if rank else x, y)),
    "same rows of another kind": lambda rank: Rows(data()) if rank else data(),
    "other rows of another kind": lambda rank: Rows(reordered(data(), rank)) if rank else data(),
    "noisy rows": lambda rank: Rows(data(), noisy),
    "rows that are rarely noisy": lambda rank: Rows(data(), rarely),
    "opaque rows": lambda rank: Rows(data(), Opaque),
    "parts": lambda rank: tuple(t[10 * rank : 10 * rank + 10] for t in data()),
}


def same_rows(rank, loader, ledgers=None):
    """Begin a loop over all kinds of rows: what was drawn by whom, what was released, and what is said of it."""
    found = {}
    for what, make in ROWS.items():
        rows, parts = make(rank), what == "parts"
        if parts and loader:
            continue
        model = network()
        sampling = Poisson(examples=20 if parts else EXAMPLES, batch_size=8)
        ledger = None if ledgers is None else ledgers / f"{what}.jsonl"
        private = attach(model, plan(noise=Gaussian(0.5), sampling=sampling), ledger, preflight=False)
        torch.manual_seed(100 + rank)
        before, read = str(private.guarantee()), []
        collate = opened if what == "opaque rows" else None
        try:
            if loader:
                listed = TensorDataset(*rows) if isinstance(rows, tuple) else rows
                handed = DataLoader(
                    listed, batch_sampler=private.batch_sampler(), collate_fn=private.collate(rows, collate)
                )
            else:
                handed = private.batches(rows, sharded=parts, collate_fn=collate)
            for batch in handed:
                x, y = batch.values() if isinstance(batch, dict) else batch
                read.append(x.detach().clone())
                private.backward(F.cross_entropy(model(x.float()), y, reduction="none"))
        except (PrivacyError, ValueError) as error:
            found[what] = str(error), private.released, read
        else:
            found[what] = before, private.guarantee(), read
        private.detach()
    return found


def loops_over_tensors(rank, change):
    """Two loops over one pair of tensors, which rank 1 may change in between, seen by torch or not."""
    model, (x, y) = network(), data()
    behind = x.numpy()
    private = attach(model, plan(noise=Gaussian(0.5)), preflight=False)
    digested = []
    tensor_digest = data_digest.of_tensors
    data_digest.of_tensors = lambda *arguments: digested.append(1) or tensor_digest(*arguments)
    try:
        for loop in range(2):
            if rank == 1 and loop == 1 and change == "seen":
                x.add_(1.0)
            if rank == 1 and loop == 1 and change == "unseen":
                behind[:] = behind[::-1].copy()
            for a, b in private.batches((x, y), steps=2):
                private.backward(F.cross_entropy(model(a), b, reduction="none"))
    except PrivacyError as error:
        return str(error), len(digested), private.released
    finally:
        data_digest.of_tensors = tensor_digest
    return "", len(digested), private.released


def one_goes_on(rank, ledger, kind, steps):
    """Some steps of a run over rows of a kind."""
    model = network()
    private = attach(model, plan(noise=Gaussian(1.0), steps=12), ledger=ledger, preflight=False)
    for x, y in private.batches(ROWS[kind](rank), steps=steps):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.detach()
    return private.guarantee()
