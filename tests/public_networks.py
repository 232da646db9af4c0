"""Small networks of the same classes as the public ones, with chance weights: what tests need of those."""

from dataclasses import replace

import pytest
import torch

from discreet.models.pretrained import NETWORKS, ImageBody, TextBody

IMAGE, LENGTH = (3, 8, 8), 6


def image_body():
    """An EfficientNet-Lite of seven narrow blocks and 8 features, whose BatchNorm layers have statistics."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs discreet[backbones]")
    small = {"width_coefficient": 0.05, "depth_coefficient": 0.1, "fix_head_stem": False, "image_size": 32}
    network = package.EfficientNet.from_name("efficientnet-lite0", **small)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.1, 0.3)
    network._fc = torch.nn.Identity()
    return ImageBody(network)


def text_body():
    """A BERT of two layers and 16 features."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    configuration = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, **sizes)
    return TextBody(transformers.BertModel(configuration, add_pooling_layer=False))


def stand_in(monkeypatch, name):
    """Have a small network in a public one's place."""
    make = image_body if NETWORKS[name].takes == "images" else text_body
    with torch.random.fork_rng():
        body = make()
    width = body.network._bn1.num_features if NETWORKS[name].takes == "images" else 16
    blocks = body.network._blocks if NETWORKS[name].takes == "images" else []
    known = replace(NETWORKS[name], width=width, channels=tuple(b._bn2.num_features for b in blocks))
    monkeypatch.setattr(type(known), "load", lambda self: body)
    monkeypatch.setitem(NETWORKS, name, known)
    return body
