#!/usr/bin/env python3
"""Reads shuffled batches of arrays into JAX, and fits a line between two classes of points.

    read_jax.py                      makes an image of points of its own
    read_jax.py IMAGE                or an address: samples with a field x, f32[8], and the labels 0 and 1

Without a GPU a batch is handed over as numpy arrays. With one, dlfs.Loader(device=jax.devices()[0]) has each batch
copied while the step before it runs: docs/gpu.md. Grain users take dlfs.grain.DataSource.
"""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy

import dlfs


def make_points(image):
    """Points of eight numbers; their class says whether they add up to more than zero."""
    x = numpy.random.default_rng(7).normal(size=(2000, 8)).astype("float32")
    dlfs.import_({"x": x, "y": (x.sum(1) > 0).astype("int64")}, image, label="y")


def loss_of(weights, x, y):
    """The mean of the logistic loss."""
    return jnp.mean(jnp.logaddexp(0.0, (1 - 2 * y) * (x @ weights)))


@jax.jit
def step(weights, x, y):
    loss, slope = jax.value_and_grad(loss_of)(weights, x, y)
    return weights - slope, loss


def main(image):
    weights = jnp.zeros(8)
    # drop_last: all batches have one shape, so that JAX compiles the step once.
    with dlfs.open(image) as points, dlfs.Loader(points, batch_size=64, seed=7, drop_last=True) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                # A field with a type is one array of the whole batch, [64, 8], over the memory that was read.
                x, y = jax.device_put((batch["x"], batch.labels))
                weights, loss = step(weights, x, y)
            print(f"epoch {epoch}: {len(loader)} batches of {x.shape}, loss {loss:.3f} at last")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        given = sys.argv[1] if len(sys.argv) > 1 else f"{scratch}/points.dlfs"
        if len(sys.argv) == 1:
            make_points(given)
        main(given)
