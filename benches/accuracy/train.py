#!/usr/bin/env python3
"""Trains a small network on scikit-learn's digits in the orders of dlfs, and records the accuracy by epoch.

    train.py DLFS [FOLDER]       needs numpy, scikit-learn and matplotlib; DLFS is the command
    train.py --by-ranks DLFS     prints what an exchange of Q is worth to M ranks with 1/M of the images each

The training images are imported sorted by class and without shuffling, so that the share of a rank under `local`
holds one or two of ten classes: the hardest case for shuffling less. Every order comes from `dlfs read --ids`, so
the sequences are those that a training job gets; `dlfs shuffle-report` says of each order what it says.

Eight ranks are simulated in one process. Each computes the gradient of its own batch, with batch normalisation over
that batch alone, and the gradients are averaged exactly, as DistributedDataParallel does; the running statistics
are those of rank 0, which it broadcasts. The network has a 3 x 3 convolution of 16 channels, 2 x 2 averaging and a
hidden layer of 32, both with batch normalisation and ReLU, and a linear layer; SGD with momentum. Seeds vary the order
and the network together. `--check` compares the gradients with differences instead.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RANKS, BATCH, EPOCHS, SEEDS = 8, 8, 15, (1, 2, 3)
# Epochs of which shuffle-report is asked: `partial` exchanges nothing before the second.
REPORTED = (0, 5)
ORDERS = {
    "global": ["--order", "global"],
    "grouped, 8 lanes": ["--order", "grouped", "--lanes", "8"],
    "grouped, 1 lane": ["--order", "grouped", "--lanes", "1"],
    "partial, Q = 1.0": ["--order", "partial", "--exchange", "1"],
    "partial, Q = 0.3": ["--order", "partial", "--exchange", "0.3"],
    "partial, Q = 0.1": ["--order", "partial", "--exchange", "0.1"],
    "partial, Q = 0": ["--order", "partial", "--exchange", "0"],
}
# Of `--by-ranks`: ranks that have some hundred images each.
BY_RANKS, BY_EXCHANGE = (2, 4, 8, 16), (0, 0.1, 0.3, 1)


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:2] == ["--by-ranks"]:
        return by_ranks(sys.argv[2])
    dlfs, folder = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else HERE
    train, test = digits()
    results = {}
    with tempfile.TemporaryDirectory() as temp:
        image, (pixels, labels) = imported(dlfs, Path(temp), train)
        for name, order in ORDERS.items():
            runs = [accuracies(dlfs, Path(temp), image, order, seed, (pixels, labels), test) for seed in SEEDS]
            reports = {epoch: report(dlfs, image, order, epoch) for epoch in REPORTED}
            results[name] = {"accuracy": runs, "reports": reports}
            last = [run[-1] for run in runs]
            print(f"{name:18} {np.mean(last):.3f}  {last}", flush=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, folder)
    print("\n".join(table(results)))


def by_ranks(dlfs):
    """Prints the accuracy at the end for each number of ranks and each exchange, with the same global batch."""
    train, test = digits()
    columns = " | ".join(f"Q = {exchange}" for exchange in BY_EXCHANGE)
    print(f"| M | images a rank | {columns} | global |\n|---|---|{'---|' * (len(BY_EXCHANGE) + 1)}")
    with tempfile.TemporaryDirectory() as temp:
        image, train = imported(dlfs, Path(temp), train)
        orders = [["--order", "partial", "--exchange", exchange] for exchange in BY_EXCHANGE]
        for ranks in BY_RANKS:
            cells = []
            for order in [*orders, ORDERS["global"]]:
                runs = [accuracies(dlfs, Path(temp), image, order, seed, train, test, ranks)[-1] for seed in SEEDS]
                cells.append(f"{100 * np.mean(runs):.1f} ({100 * min(runs):.1f} to {100 * max(runs):.1f})")
            print(f"| {ranks} | {len(train[1]) // ranks} | {' | '.join(cells)} |", flush=True)


def table(results):
    """The recorded table: accuracy in percent, mean and range over the seeds, and what shuffle-report says."""
    epochs = " and ".join(map(str, REPORTED))
    yield (f"| order | epoch 1 | epoch 3 | epoch {EPOCHS} | lowest to highest | classes in a rank's batch, epochs "
           f"{epochs} | in its epoch | verdict on epoch {REPORTED[-1]} |")
    yield "|---|---|---|---|---|---|---|---|"
    for name, found in results.items():
        runs = 100 * np.array(found["accuracy"])
        means = " | ".join(f"{runs[:, epoch - 1].mean():.1f}" for epoch in (1, 3, EPOCHS))
        last, reports = runs[:, -1], found["reports"].values()
        seen = [" and ".join(f"{report['ranks'][what]['found']:.1f}" for report in reports)
                for what in ("classes_per_batch", "classes_per_share")]
        verdict = list(reports)[-1]["verdict"]
        yield f"| {name} | {means} | {last.min():.1f} to {last.max():.1f} | {seen[0]} | {seen[1]} | {verdict} |"


def check():
    """Compares each gradient with the difference of the loss."""
    draw = np.random.default_rng(5)
    network = Network(draw)
    pixels, labels = draw.integers(0, 17, (8, 64)), draw.integers(0, 10, 8)

    def of_batch(_, values):
        axes = tuple(range(values.ndim - 1))
        return values.mean(axes), values.var(axes)

    def loss():
        logits = network.forward(pixels, of_batch)[-1]
        logits = logits - logits.max(1, keepdims=True)
        return np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(8), labels])

    gradient = network.gradient(pixels, labels, is_first=False)
    for name, weight in network.weights.items():
        for at in draw.integers(0, weight.size, 5):
            old, step = weight.flat[at], 1e-6
            weight.flat[at] = old + step
            above = loss()
            weight.flat[at] = old - step
            difference = (above - loss()) / (2 * step)
            weight.flat[at] = old
            assert abs(difference - gradient[name].flat[at]) < 1e-5 + 1e-3 * abs(difference), name
    print("the gradients are those of the loss")


def digits():
    """Training and test images: four of five of each class are for training."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels, labels = data.data.astype(np.uint8), data.target
    is_test = np.zeros(len(labels), bool)
    for label in range(10):
        is_test[np.flatnonzero(labels == label)[::5]] = True
    return (pixels[~is_test], labels[~is_test]), (pixels[is_test], labels[is_test])


def imported(dlfs, temp, train):
    """Writes the images into class folders and imports them as they lie; returns the image, and the samples by id.

    A sample repeats its 64 bytes, so that a chunk holds 15 samples, mostly of one class, and there are 96 chunks.
    """
    pixels, labels = train
    order = np.argsort(labels, kind="stable")
    pixels, labels = pixels[order], labels[order]
    for index, (sample, label) in enumerate(zip(pixels, labels)):
        (temp / "source" / str(label)).mkdir(parents=True, exist_ok=True)
        (temp / "source" / str(label) / f"{index:05}").write_bytes(sample.tobytes() * 64)
    image = temp / "digits.dlfs"
    run(dlfs, "import", temp / "source", image, "--placement", "source", "--chunk-size", "64K", "--quiet")
    return image, (pixels, labels)


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def report(dlfs, image, order, epoch):
    """What shuffle-report says of an epoch, of what this uses."""
    text = run(dlfs, "shuffle-report", image, *order, "--seed", 1, "--world-size", RANKS,
               "--batch-size", RANKS * BATCH, "--epoch", epoch, "--json")
    said = json.loads(text)
    return {"verdict": said["verdict"], "ranks": said["ranks"]}


def accuracies(dlfs, temp, image, order, seed, train, test, ranks=RANKS):
    shares, size = [], RANKS * BATCH // ranks
    for rank in range(ranks):
        ids = temp / "ids"
        run(dlfs, "read", image, *order, "--seed", seed, "--rank", rank, "--world-size", ranks, "--batch-size", size,
            "--epochs", EPOCHS, "--drop-last", "--ids", ids, "--quiet")
        shares.append(np.array(ids.read_text().split(), int).reshape(EPOCHS, -1))
    network = Network(np.random.default_rng(seed))
    found = []
    for epoch in range(EPOCHS):
        for first in range(0, shares[0].shape[1] - size + 1, size):
            batches = [share[epoch][first:first + size] for share in shares]
            network.step([(train[0][batch], train[1][batch]) for batch in batches])
        found.append(float(np.mean(network.classify(test[0]) == test[1])))
    return found


class Network:
    """Convolution, averaging, and two linear layers; the first two of the three are normalised by batch, then ReLU."""

    def __init__(self, draw, channels=16, hidden=32):
        self.weights = {
            "conv": draw.normal(0, np.sqrt(2 / 9), (9, channels)),
            "scale 1": np.ones(channels),
            "shift 1": np.zeros(channels),
            "hidden": draw.normal(0, np.sqrt(2 / (16 * channels)), (16 * channels, hidden)),
            "scale 2": np.ones(hidden),
            "shift 2": np.zeros(hidden),
            "linear": draw.normal(0, np.sqrt(1 / hidden), (hidden, 10)),
            "bias": np.zeros(10),
        }
        self.momentum = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.running = {"1": (np.zeros(channels), np.ones(channels)), "2": (np.zeros(hidden), np.ones(hidden))}

    def step(self, batches, rate=0.05):
        """One step on the average of the ranks' gradients."""
        gradients = [self.gradient(*batch, is_first=rank == 0) for rank, batch in enumerate(batches)]
        for name, weight in self.weights.items():
            self.momentum[name] = 0.9 * self.momentum[name] + sum(each[name] for each in gradients) / len(batches)
            weight -= rate * self.momentum[name]

    def classify(self, pixels):
        return self.forward(pixels, lambda layer, values: self.running[layer])[-1].argmax(1)

    def forward(self, pixels, statistics):
        """What each layer makes of the images; `statistics` gives mean and variance to normalise a layer by."""
        first = self.normal("1", self.patches(pixels) @ self.weights["conv"], statistics)
        active = np.maximum(first * self.weights["scale 1"] + self.weights["shift 1"], 0)
        count, channels = active.shape[0], active.shape[3]
        pooled = active.reshape(count, 4, 2, 4, 2, channels).mean((2, 4)).reshape(count, -1)
        second = self.normal("2", pooled @ self.weights["hidden"], statistics)
        features = np.maximum(second * self.weights["scale 2"] + self.weights["shift 2"], 0)
        return first, active, pooled, second, features, features @ self.weights["linear"] + self.weights["bias"]

    @staticmethod
    def normal(layer, values, statistics):
        mean, variance = statistics(layer, values)
        return (values - mean) / np.sqrt(variance + EPSILON)

    def gradient(self, pixels, labels, is_first):
        deviations = {}

        def of_batch(layer, values):
            axes = tuple(range(values.ndim - 1))
            found = values.mean(axes), values.var(axes)
            deviations[layer] = np.sqrt(found[1] + EPSILON)
            if is_first:
                pairs = zip(self.running[layer], found)
                self.running[layer] = tuple(old + 0.1 * (new - old) for old, new in pairs)
            return found

        first, active, pooled, second, features, logits = self.forward(pixels, of_batch)
        chances = np.exp(logits - logits.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        of_logits = chances / len(labels)
        of_second = of_logits @ self.weights["linear"].T * (features > 0)
        of_hidden = self.through(second, of_second * self.weights["scale 2"], deviations["2"])
        count, channels = active.shape[0], active.shape[3]
        of_pooled = (of_hidden @ self.weights["hidden"].T).reshape(count, 4, 1, 4, 1, channels) / 4
        of_first = np.broadcast_to(of_pooled, (count, 4, 2, 4, 2, channels)).reshape(active.shape) * (active > 0)
        of_conv = self.through(first, of_first * self.weights["scale 1"], deviations["1"])
        return {
            "conv": np.tensordot(self.patches(pixels), of_conv, ((0, 1, 2), (0, 1, 2))),
            "scale 1": (of_first * first).sum((0, 1, 2)),
            "shift 1": of_first.sum((0, 1, 2)),
            "hidden": pooled.T @ of_hidden,
            "scale 2": (of_second * second).sum(0),
            "shift 2": of_second.sum(0),
            "linear": features.T @ of_logits,
            "bias": of_logits.sum(0),
        }

    @staticmethod
    def through(normal, gradient, deviation):
        """The gradient before normalising by batch, from the one after it."""
        axes = tuple(range(normal.ndim - 1))
        return (gradient - gradient.mean(axes) - normal * (gradient * normal).mean(axes)) / deviation

    @staticmethod
    def patches(pixels):
        """The 3 x 3 surroundings of each pixel: [count, 8, 8, 9]."""
        images = np.pad(pixels.reshape(-1, 8, 8) / 16 - 0.5, ((0, 0), (1, 1), (1, 1)))
        return np.stack([images[:, row:row + 8, column:column + 8] for row in range(3) for column in range(3)], 3)


def draw(results, folder):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "dlfs"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for name, found in results.items():
        runs = 100 * np.array(found["accuracy"])
        (line,) = axes.plot(range(1, EPOCHS + 1), runs.mean(0), label=name)
        axes.fill_between(range(1, EPOCHS + 1), runs.min(0), runs.max(0), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy on test images, %")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    # The book shows the drawing.
    drawn = HERE.parents[1] / "docs" if folder == HERE else folder
    figure.savefig(drawn / "accuracy.svg", metadata={"Date": None})
    figure.savefig(folder / "accuracy.png", dpi=120)


EPSILON = 1e-5

if __name__ == "__main__":
    main()
