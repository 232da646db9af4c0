"""Fine-tuning a public network: what is trained, exact per-example gradients, and the assumption in the guarantee."""

import oracle
import pytest
import torch
from public_networks import IMAGE, LENGTH, image_body, stand_in, text_body
from torch.nn import functional as F

import discreet
from discreet import ConfigError
from discreet.models import build
from discreet.models.finetuning import FineTuned, LowRank
from discreet.models.pretrained import public_network

TRAINED = ("head", "last", "lora", "all")


def images_model(train):
    return FineTuned(image_body(), 64, 3, train=train, rank=2, side=32, assumes="the weights are public")


def settled(model):
    """The model with a head that is not zero, so that gradients reach the body."""
    torch.nn.init.normal_(model.head.weight, std=0.3)
    for name, parameter in model.named_parameters():
        if ".up." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def smooth(outputs):
    return F.cross_entropy(outputs, torch.zeros(len(outputs), dtype=torch.long), reduction="none")


@pytest.mark.parametrize("train", TRAINED)
def test_what_is_trained_and_what_is_frozen(train):
    model = images_model(train)
    model.train()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"head.weight", "head.bias"} <= trained
    rest = trained - {"head.weight", "head.bias"}
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert not any(m.training or p.requires_grad for m in norms for p in m.parameters())
    if train == "head":
        assert not rest
    elif train == "last":
        assert rest == {"body.network._conv_head.weight"}
    elif train == "lora":
        assert rest
        assert all(".down." in name or ".up." in name for name in rest)
    else:
        assert "body.network._conv_stem.weight" in rest


@pytest.mark.parametrize("train", TRAINED)
def test_gradients_are_each_examples_own(train):
    model = settled(images_model(train))
    oracle.assert_exact(model, torch.rand(3, *IMAGE), loss=smooth, dtypes=(torch.float64,), slack=100)


@pytest.mark.parametrize("train", ["last", "lora"])
def test_gradients_of_a_text_network_are_each_examples_own(train):
    model = settled(FineTuned(text_body(), 16, 2, train=train, rank=2))
    for name, parameter in model.named_parameters():
        if name.endswith("key.bias"):  # attention does not depend on it: its gradient is rounding alone
            parameter.requires_grad_(False)
    texts = torch.randint(1, 50, (3, LENGTH)).double()
    texts[1, 3:] = 0
    oracle.assert_exact(model, texts, loss=smooth, dtypes=(torch.float64,), slack=100)


def test_a_private_step_says_what_it_assumes_and_leaves_the_statistics_alone(tmp_path):
    model = images_model("last")
    norms = {n: b.clone() for n, b in model.named_buffers()}
    plan = discreet.methods.dp_sgd(examples=8, batch_size=4, steps=2, noise=1.0, delta=1e-3)
    x, y = torch.rand(8, *IMAGE), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    ledger = tmp_path / "ledger.jsonl"
    fitted = discreet.fit(model, (x, y), plan, ledger=ledger, assumes=["the labels are right"])
    conditions = {c.text: c.status for c in fitted.guarantee.conditions}
    assert conditions["the weights are public"] == conditions["the labels are right"] == "assumed"
    proven = {c.text for c in discreet.verify(ledger).runs[0].guarantee.conditions}
    assert {"the weights are public", "the labels are right"} <= proven
    assert all(torch.equal(b, norms[n]) for n, b in model.named_buffers())


def test_an_attached_model_says_what_its_weights_are():
    model = images_model("head")
    plan = discreet.methods.dp_sgd(examples=8, batch_size=4, steps=1, noise=1.0, delta=1e-3)
    private = discreet.attach(model, plan, assumes=["the weights are public", "so is the rest"])
    words = [c.text for c in private.guarantee().conditions]
    private.detach()
    assert words.count("the weights are public") == words.count("so is the rest") == 1
    with pytest.raises(ConfigError, match="a list of texts"):
        discreet.attach(model, plan, assumes="one text")


@pytest.mark.parametrize("name", ["efficientnet-lite0", "minilm-l6"])
def test_a_run_can_name_them(name, monkeypatch):
    stand_in(monkeypatch, name)
    shape = IMAGE if name == "efficientnet-lite0" else (LENGTH,)
    settings = {"train": "last", "blocks": 2} | ({"side": 32} if len(shape) == 3 else {})
    model = build(name, shape, 3, **settings)
    assert model(torch.ones(2, *shape)).shape == (2, 3)
    assert model.assumes == public_network(name).assumption


def test_weights_are_read_once_and_never_to_no_memory(monkeypatch):
    body, devices = stand_in(monkeypatch, "efficientnet-lite0"), []
    known = type(public_network("efficientnet-lite0"))
    monkeypatch.setattr(known, "load", lambda _: devices.append(torch.get_default_device().type) or body)
    build("efficientnet-lite0", IMAGE, 3, side=32)
    assert devices == ["cpu"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train": "some"}, "must be one of head, last, lora, all"),
        ({"train": "last", "blocks": 99}, "the network has"),
        ({"side": 50}, "take a multiple of 32"),
        ({"depth": 3}, "has no setting 'depth'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words, monkeypatch):
    stand_in(monkeypatch, "efficientnet-lite0")
    with pytest.raises(ConfigError, match=words):
        build("efficientnet-lite0", IMAGE, 3, **settings)


def test_examples_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match=r"takes images of shape \(channels, height, width\).*is \(6,\)"):
        build("efficientnet-lite0", (6,), 2)
    with pytest.raises(ConfigError, match=r"takes texts of shape \(length,\)"):
        build("minilm-l6", IMAGE, 2)


def test_an_adapter_begins_as_the_layer_itself():
    body = text_body()
    texts = torch.randint(1, 50, (2, LENGTH))
    before = body(texts)
    torch.testing.assert_close(FineTuned(body, 16, 2, train="lora").body(texts), before, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="takes no adapter"):
        LowRank(torch.nn.Conv2d(2, 2, 3), 1)


@pytest.mark.parametrize(("name", "shape"), [("efficientnet-lite0", (3, 16, 16)), ("minilm-l6", (8,))])
def test_one_real_step(name, shape):
    pytest.importorskip(public_network(name).module, reason="needs discreet[backbones]")
    pytest.importorskip("transformers" if name == "minilm-l6" else "efficientnet_lite_pytorch")
    settings = {"side": 32} if len(shape) == 3 else {}
    model = build(name, shape, 2, train="last", **settings)
    plan = discreet.methods.dp_sgd(examples=4, batch_size=2, steps=1, noise=1.0, delta=1e-3)
    x = torch.rand(4, *shape) if len(shape) == 3 else torch.randint(1000, 2000, (4, *shape)).float()
    before = model.head.weight.clone()
    fitted = discreet.fit(model, (x, torch.tensor([0, 1, 0, 1])), plan)
    assert not torch.equal(model.head.weight, before)
    assert any(c.text == public_network(name).assumption for c in fitted.guarantee.conditions)
