#!/usr/bin/env python3
"""Trains a classifier of pictures from a folder, on a GPU if there is one: docs/tutorial.md explains it.

    train_images.py                              draws small pictures of its own; seconds on a CPU
    train_images.py --folder photos --size 128   class folders, as torchvision's ImageFolder has them: photos/cat/1.jpg
"""

import argparse
import pathlib
import tempfile

import torch
from PIL import Image, ImageDraw
from torch import nn

import dlfs.images


def draw_pictures(folder, count):
    """Class folders of discs, squares and rings, of any place, size and shade on noise."""
    numbers = torch.Generator().manual_seed(1)
    for name in ("disc", "ring", "square"):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            x, y, side, shade = torch.randint(20, (4,), generator=numbers).tolist()
            picture, box = Image.effect_noise((64, 64), 40), (x, y, x + 20 + side, y + 20 + side)
            pen, options = ImageDraw.Draw(picture), {"width": 4} if name == "ring" else {"fill": 200 + shade}
            (pen.rectangle if name == "square" else pen.ellipse)(box, **options)
            picture.save(folder / name / f"{index:04}.jpg")
    return str(folder)


def network(classes):
    """Three layers of convolution; torchvision.models has large networks."""
    layers = []
    for channels, wider in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, wider, 3), nn.BatchNorm2d(wider), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def main(folder, image, size, epochs):
    # The folder becomes an image: one file, with a checksum for each sample. Training opens no picture file.
    dlfs.import_(folder, image)
    pictures = dlfs.open(image)                     # or nvme-tcp://HOST/NQN, when another machine serves it
    parts = pictures.split({"train": 0.8, "test": 0.2}, seed=1)
    print(f"{len(parts['train'])} pictures of {len(pictures.classes)} classes, and {len(parts['test'])} to test")

    # A loader reads and shuffles ahead on native threads; a decoder makes a tensor of the pictures of a batch.
    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = dlfs.Loader(parts["train"], batch_size=32, seed=7)
    crop = dlfs.images.Decoder(size, "train", device, dtype="f32", seed=7)
    centre = dlfs.images.Decoder(size, "eval", device, dtype="f32")
    model = network(len(pictures.classes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(epochs):
        loader.set_epoch(epoch)                     # another order in each epoch, and the same in each run
        for batch in loader:
            labels = torch.tensor(batch.labels, device=device)
            loss = nn.functional.cross_entropy(model.train()(crop(batch)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = 0
        with torch.no_grad():
            for batch in dlfs.Loader(parts["test"], batch_size=64, order="sequential"):
                found = model.eval()(centre(batch)).argmax(1).cpu()
                right += int((found == torch.tensor(batch.labels)).sum())
        print(f"epoch {epoch}: {100 * right / len(parts['test']):.0f} % of them are told right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder")
    parser.add_argument("--size", type=int, default=48, help="of what the network sees")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or draw_pictures(pathlib.Path(scratch, "pictures"), count=200)
        main(folder, f"{scratch}/pictures.dlfs", given.size, given.epochs)
