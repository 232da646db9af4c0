"""The networks of benchmarks/models.py as functions of jax: parameters by torch's names, inputs, to logits.

Images are turned to channels-last, which is what jax's CPU convolutions are fast at; filters stay as torch has them.
"""

import functools

import jax
from jax import lax
from jax import numpy as jnp


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def conv(p, name, x, stride=1, padding=0, standardised=False):
    weight = p[f"{name}.weight"]
    if standardised:
        mean, variance = weight.mean((1, 2, 3), keepdims=True), weight.var((1, 2, 3), keepdims=True)
        weight = (weight - mean) * lax.rsqrt(variance + 1e-5)
    pads = [(padding, padding)] * 2
    x = lax.conv_general_dilated(x, weight, (stride, stride), pads, dimension_numbers=("NHWC", "OIHW", "NHWC"))
    return x + p[f"{name}.bias"] if f"{name}.bias" in p else x


def pool(x, stride):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, stride, stride, 1), "VALID")


def channels_last(x):
    return x.transpose(0, 2, 3, 1)


def flat(x):
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def layer_norm(p, name, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def group_norm(p, name, x, groups=16):
    n, height, width, channels = x.shape
    x = x.reshape(n, height, width, groups, channels // groups)
    centred = x - x.mean((1, 2, 4), keepdims=True)
    scaled = centred * lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + 1e-5)
    return scaled.reshape(n, height, width, channels) * p[f"{name}.weight"] + p[f"{name}.bias"]


def logistic(p, x):
    return x @ p["weight"].T + p["bias"]


def mlp(p, x):
    return linear(p, "2", jax.nn.relu(linear(p, "0", x)))


def mnist_cnn(p, x):
    x = pool(jnp.tanh(conv(p, "0", channels_last(x), 2, 3)), 1)
    x = pool(jnp.tanh(conv(p, "3", x, 2)), 1)
    return linear(p, "9", jnp.tanh(linear(p, "7", flat(x))))


def alexnet(p, x):
    x = pool(jax.nn.relu(conv(p, "0", channels_last(x), 1, 2)), 2)
    x = pool(jax.nn.relu(conv(p, "3", x, 1, 2)), 2)
    x = jax.nn.relu(linear(p, "7", flat(x)))
    return linear(p, "11", jax.nn.relu(linear(p, "9", x)))


def wide_resnet(p, x):
    standardised = functools.partial(conv, standardised=True)
    x = standardised(p, "stem", channels_last(x), 1, 1)
    for i in range(6):
        stride = 2 if i in (2, 4) else 1
        h = jax.nn.relu(group_norm(p, f"blocks.{i}.first", x))
        kept = standardised(p, f"blocks.{i}.skip", h, stride) if f"blocks.{i}.skip.weight" in p else x
        h = standardised(p, f"blocks.{i}.enter", h, stride, 1)
        x = kept + standardised(p, f"blocks.{i}.leave", jax.nn.relu(group_norm(p, f"blocks.{i}.second", h)), 1, 1)
    return linear(p, "head", jax.nn.relu(group_norm(p, "norm", x)).mean((1, 2)))


def transformer(p, tokens, depth=4, heads=4):
    n, length = tokens.shape
    x = p["words.weight"][tokens] + p["places.weight"]
    for i in range(depth):
        block = f"blocks.{i}"
        mixed = linear(p, f"{block}.attend", layer_norm(p, f"{block}.first", x)).reshape(n, length, 3, heads, -1)
        attended = jax.nn.dot_product_attention(mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2])
        x = x + linear(p, f"{block}.project", attended.reshape(n, length, -1))
        wide = jax.nn.gelu(linear(p, f"{block}.widen", layer_norm(p, f"{block}.second", x)), approximate=False)
        x = x + linear(p, f"{block}.narrow", wide)
    return linear(p, "head", layer_norm(p, "norm", x).mean(1))


def lstm(p, tokens):
    x = p["words.weight"][tokens]
    bias = p["layer.bias_ih_l0"] + p["layer.bias_hh_l0"]
    inward = (x @ p["layer.weight_ih_l0"].T + bias).swapaxes(0, 1)

    def step(carry, inward):
        hidden, cell = carry
        admit, forget, new, emit = jnp.split(inward + hidden @ p["layer.weight_hh_l0"].T, 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(admit) * jnp.tanh(new)
        return (jax.nn.sigmoid(emit) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((len(tokens), x.shape[-1]))
    (hidden, _), _ = lax.scan(step, (zeros, zeros), inward)
    return linear(p, "head", hidden)


NETWORKS = {
    "MLP 784-32-10": mlp,
    "MLP 784-1000-10": mlp,
    "MNIST CNN": mnist_cnn,
    "small AlexNet": alexnet,
    "WRN-16-4": wide_resnet,
    "transformer 4x256, 128 tokens": transformer,
    "LSTM 128, 64 tokens": lstm,
    "logistic 20,000": logistic,
}
