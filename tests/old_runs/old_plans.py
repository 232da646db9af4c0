"""A plan for every sampler, bound, noise and denoiser, as they were saved: with every field that a stage has set."""

from discreet import (
    AdaptiveClip,
    AirySquared,
    AutomaticClip,
    BoundedNetwork,
    Cauchy,
    Clip,
    Encode,
    FixedBatches,
    FixedSize,
    Gaussian,
    JamesStein,
    Kalman,
    KolmogorovSmirnov,
    Laplace,
    Logistic,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    RadialTanh,
    ScaledTanh,
    Score,
    Sech,
    Shuffled,
    StudentT,
    Tanh,
    Tuning,
    VarianceGamma,
    methods,
)

SAMPLER, BOUND, NOISE = Poisson(examples=1000, batch_size=100), Clip(0.5), Gaussian(1.5)


def plan(bound=BOUND, noise=NOISE, sampling=SAMPLER, steps=6, delta=1e-5, more=None, **mechanism):
    return Plan(
        sampling=sampling, mechanism=Mechanism(bound, noise, **mechanism), steps=steps, delta=delta, **(more or {})
    )


_WIDTHS = BoundedNetwork.of_widths((6, 5, 3), 1.0, 2.0, input_norm=2.0, weight_norm=1.5)
PLANS = {
    # samplers
    "poisson": plan(),
    "poisson-rate": plan(sampling=Poisson(rate=0.125, batch_size=64)),
    "poisson-replace": plan(sampling=Poisson(examples=1000, batch_size=100, adjacency="replace")),
    "poisson-cap": plan(sampling=Poisson(examples=1000, batch_size=100, cap=170)),
    "poisson-user": plan(sampling=Poisson(examples=1000, batch_size=100, unit="user")),
    "fixed-size": plan(sampling=FixedSize(1000, 100)),
    "shuffled": plan(sampling=Shuffled(1000, 100), steps=20),
    "fixed-batches": plan(sampling=FixedBatches(1000, 100)),
    # bounds
    "per-layer": plan(PerLayerClip(0.5)),
    "per-layer-stated": plan(PerLayerClip({"0.weight": 0.5, "0.bias": 0.25}), allocation="power"),
    "automatic": plan(AutomaticClip(0.5, stability=0.02)),
    "adaptive": plan(AdaptiveClip(0.5)),
    "adaptive-quantile": plan(AdaptiveClip(0.5, quantile=0.7, speed=0.3)),
    "adaptive-all-set": plan(
        AdaptiveClip(0.5, "mean", per_layer=True, factor=1.2, reach=3.0, least=1e-4, share=0.05, tensors=4)
    ),
    "tanh": plan(Tanh(0.5, 2.0, size=50)),
    "tanh-clip": plan(Tanh(0.5, 2.0, clip=1.5)),
    "scaled-tanh": plan(ScaledTanh(0.5, 2.0)),
    "radial-tanh": plan(RadialTanh(0.5, 2.0)),
    "encode": plan(Encode(0.5, size=50)),
    "encode-all-set": plan(Encode(0.5, "nearest", levels=7, envelopes=3, seed=4, size=50)),
    "bounded-network": plan(_WIDTHS),
    "bounded-network-squared": plan(
        BoundedNetwork.of_widths((6, 5, 3), 1.0, 2.0, input_norm=2.0, weight_norm=1.5, loss="belu squared")
    ),
    "bounded-network-not-fitted": plan(BoundedNetwork(2.0, (1.5, 2.0), projection="frobenius", input_shape=(1, 4, 4))),
    # noises
    "no-noise": plan(noise=Gaussian(0.0)),
    "gaussian-std": plan(noise=Gaussian(std=0.75)),
    "gaussian-to-be-solved": plan(noise=Gaussian()),
    "student-t": plan(noise=StudentT(5.0, 2.0)),
    "cauchy": plan(noise=Cauchy(2.0)),
    "laplace": plan(noise=Laplace(2.0)),
    "variance-gamma": plan(noise=VarianceGamma(2.0)),
    "sech": plan(noise=Sech(2.0)),
    "logistic": plan(noise=Logistic(2.0)),
    "airy-squared": plan(Encode(0.5, size=50), AirySquared(2.0)),
    "encode-student-t": plan(Encode(0.5, size=50), StudentT(5.0, 2.0)),
    # denoisers
    "kolmogorov-smirnov": plan(denoise=KolmogorovSmirnov(rescale=True)),
    "score": plan(noise=StudentT(5.0, 2.0), denoise=Score()),
    "james-stein": plan(denoise=JamesStein(each=False)),
    "kalman-gain": plan(denoise=Kalman(gain=0.25)),
    "kalman-drift": plan(denoise=Kalman(drift=0.125)),
    # the rest
    "microbatches": plan(microbatch=4),
    "exact": plan(hardening="exact"),
    "each": plan(PerLayerClip({"a": 0.5, "b": 0.25}), allocation="each"),
    "schedule": plan(more={"noise_schedule": (1.5, 1.0, 0.75)}),
    "tuning": plan(more={"tuning": Tuning(8.0)}),
    "epsilon": plan(more={"epsilon": 5.0}),
    "paper-001": methods.dp_sgd(examples=1000, batch_size=100, steps=6, form="paper"),
    "paper-002": methods.belu(examples=1000, batch_size=100, steps=6, noise=2.0, certified=True),
    "paper-003": methods.adaptive_clipping(examples=1000, batch_size=100, steps=6, noise=2.0),
    "paper-004": methods.encode_denoise(examples=1000, batch_size=100, steps=6, noise=2.0),
    "paper-000": methods.tanh_filter(examples=1000, batch_size=100, steps=6, noise=2.0, variant="clipped"),
    "fedavg": methods.dp_fedavg(users=1000, users_per_round=100, rounds=6, noise=2.0, delta=1e-4),
}
SLOW = {"airy-squared"}  # whose guarantee takes long to compute
