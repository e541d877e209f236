"""Pictures: crops beside torchvision's arithmetic, every back end beside Pillow, odd files, and DALI's source."""

import ctypes
import gc
import io
import math
import multiprocessing
import pickle
import random
import sys
import threading
import types

import numpy as np
import pytest

import dlfs
from conftest import command, wait_until
from dlfs import dali

PIL_Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
images = pytest.importorskip("dlfs.images", reason="Pillow is not installed")

from dlfs.images import _codecs, _crop, _jpeg, _output  # noqa: E402

SEED = 20261129
SIZE = 64


def picture(seed, width, height):
    """A smooth picture, as photographs are."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return PIL_Image.fromarray(coarse).resize((width, height), PIL_Image.Resampling.BICUBIC)


def saved(image, format="JPEG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def jpeg(seed, width, height, **options):
    return saved(picture(seed, width, height), quality=90, **options)


def codecs():
    """The codecs of this machine."""
    found = []
    for codec in _codecs.CODECS:
        try:
            codec()
        except (ImportError, OSError):
            continue
        found.append(codec)
    return found


@pytest.fixture(params=["turbojpeg", "torchvision", "pillow"])
def codec(request, monkeypatch):
    """Each codec, as if it were the first that is installed."""
    found = [codec for codec in codecs() if codec.name == request.param]
    if not found:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setattr(_codecs, "CODECS", tuple(found))
    return found[0]


def array(batch):
    """A batch as an array int64[B, 3, H, W] or float32 of the same shape."""
    if not isinstance(batch, np.ndarray):
        batch = batch.float().numpy() if batch.is_floating_point() else batch.numpy()
    return batch.astype(np.int64) if batch.dtype == np.uint8 else batch.astype(np.float32)


def by_hand(data, crop, size=SIZE):
    """What a crop is by Pillow alone: cut out, resized, mirrored."""
    image = PIL_Image.open(io.BytesIO(data)).convert("RGB")
    image = image.crop((crop.x, crop.y, crop.x + crop.width, crop.y + crop.height))
    image = image.resize((size, size), PIL_Image.Resampling.BILINEAR)
    pixels = np.asarray(image)[:, ::-1] if crop.flip else np.asarray(image)
    return pixels.transpose(2, 0, 1).astype(np.int64)


# Crops


def torchvisions(width, height, rng):
    """RandomResizedCrop.get_params of torchvision, or its arithmetic where it is not installed, with numbers of rng."""
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    try:
        from torchvision.transforms import transforms
    except ImportError:
        return arithmetic(width, height, scale, ratio, rng)
    number = types.SimpleNamespace
    stand_in = types.SimpleNamespace(
        tensor=lambda values: values,
        log=lambda values: [math.log(value) for value in values],
        exp=lambda value: number(item=lambda: math.exp(value.item())),
        empty=lambda _: number(
            uniform_=lambda low, high: (lambda value: number(item=lambda: value))(rng.uniform(low, high))
        ),
        randint=lambda low, high, size: (lambda value: number(item=lambda: value))(int(rng.integers(low, high))),
    )
    real, transforms.torch = transforms.torch, stand_in
    try:
        top, left, h, w = transforms.RandomResizedCrop.get_params(PIL_Image.new("L", (width, height)), scale, ratio)
    finally:
        transforms.torch = real
    return left, top, w, h


def arithmetic(width, height, scale, ratio, rng):
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = int(round(math.sqrt(area * aspect))), int(round(math.sqrt(area / aspect)))
        if 0 < w <= width and 0 < h <= height:
            top = int(rng.integers(0, height - h + 1))
            return int(rng.integers(0, width - w + 1)), top, w, h
    w, h = width, height
    if width / height < min(ratio):
        h = int(round(w / min(ratio)))
    elif width / height > max(ratio):
        w = int(round(h * max(ratio)))
    return (width - w) // 2, (height - h) // 2, w, h


def test_random_crops_are_those_of_torchvision_with_the_same_numbers():
    print("seed", SEED)
    draw, mirrored, fallbacks = random.Random(SEED), 0, 0
    for id in range(2000):
        long, thin = draw.random() < 0.2, draw.randrange(1, 40)
        width, height = (draw.randrange(400, 900), thin) if long else (draw.randrange(1, 900), draw.randrange(1, 900))
        if draw.random() < 0.5:
            width, height = height, width
        crop = _crop.random_crop(width, height, dlfs.random_of(SEED, 3, id))
        rng = dlfs.random_of(SEED, 3, id)
        assert crop.flip == (rng.random() < 0.5)
        assert crop[:4] == torchvisions(width, height, rng), (width, height, id)
        mirrored += crop.flip
        fallbacks += max(width, height) > 2 * min(width, height) and crop.width == min(width, round(height * 4 / 3))
    assert 900 < mirrored < 1100 and fallbacks > 50


def test_a_picture_is_cropped_resized_and_mirrored_as_by_hand(codec):
    decoder = images.Decoder(SIZE, seed=SEED)
    assert decoder.backend == codec.name
    data = [jpeg(seed, 90 + 7 * seed, 120 - 5 * seed, subsampling=seed % 3) for seed in range(12)]
    result = array(decoder(data, ids=range(12), epoch=2))
    flips = set()
    for id, one in enumerate(data):
        width, height = PIL_Image.open(io.BytesIO(one)).size
        crop = _crop.random_crop(width, height, dlfs.random_of(SEED, 2, id))
        flips.add(crop.flip)
        assert np.abs(result[id] - by_hand(one, crop)).max() <= 1
    assert flips == {False, True}
    assert decoder.stats() == {
        "backend": codec.name, "images": 12, "scaled": 0, "fallback": 0, "damaged": 0, "failed": 0,
    }


def test_evaluation_resizes_the_whole_picture_and_takes_the_centre(codec):
    decoder = images.Decoder(SIZE, "eval")
    data = [jpeg(1, 100, 150), jpeg(2, 133, 77), jpeg(3, 40, 50), jpeg(4, 73, 73)]
    result = array(decoder(data))
    short = SIZE * 256 // 224
    for at, one in enumerate(data):
        image = PIL_Image.open(io.BytesIO(one))
        (width, height), size = image.size, (short, short)
        size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        image = image.resize(size, PIL_Image.Resampling.BILINEAR)
        left, top = round((size[0] - SIZE) / 2), round((size[1] - SIZE) / 2)
        expected = np.asarray(image.crop((left, top, left + SIZE, top + SIZE))).transpose(2, 0, 1).astype(int)
        assert np.abs(result[at] - expected).max() <= 2  # Pillow rounds boxes to f32


def test_scaled_decoding_is_nearly_full_decoding(codec):
    data = [jpeg(seed, 64 * seed + 31, 64 * seed + 5) for seed in (2, 4, 8, 12)]
    for mode in ("train", "eval"):
        decoder = images.Decoder(SIZE, mode, seed=SEED)
        scaled = array(decoder(data * 4, ids=range(16)))
        expected = decoder.stats()["scaled"]
        assert expected > 4 if len(codec.scales) > 1 else expected == 0
        full = images.Decoder(SIZE, mode, seed=SEED)
        full._cpu._kind = type("Whole", (codec,), {"scales": (1,)})
        difference = np.abs(array(full(data * 4, ids=range(16))) - scaled)
        assert full.stats()["scaled"] == 0
        assert difference.mean() < 1 and difference.max() < 12


def test_a_part_of_a_jpeg_has_the_pixels_of_the_whole(codec):
    print("seed", SEED)
    draw, decoder, pillow = random.Random(SEED), codec(), _codecs.Pillow()
    for seed in range(60):
        width, height = draw.randrange(1, 150), draw.randrange(1, 150)
        options = {"subsampling": draw.randrange(3), "progressive": draw.random() < 0.2, "quality": 95}
        image = PIL_Image.effect_noise((width, height), 90)
        image = image if seed % 5 == 0 else PIL_Image.merge("RGB", [image, image.transpose(1), image.transpose(0)])
        data = memoryview(saved(image, **options))
        head = _jpeg.header(data)
        assert (head.width, head.height) == (width, height)
        for scale in codec.scales:
            w, h = -(-width // scale), -(-height // scale)
            left, top = draw.randrange(w), draw.randrange(h)
            cut = (left, top, draw.randrange(left, w) + 1, draw.randrange(top, h) + 1)
            image = pillow.open(data)
            if scale > 1:
                image.draft(None, (max(width // scale, 1), max(height // scale, 1)))
            if image.size == (w, h):  # Pillow does not scale the smallest
                expected = np.asarray(image.convert("RGB").crop(cut))
                assert np.array_equal(decoder.decode(data, head, cut, scale), expected), (seed, scale, cut)


def test_tiny_and_thin_pictures_have_crops_too(codec):
    sizes = [(1, 1), (1, 700), (700, 1), (2, 3), (9, 8), (63, 64), (64, 64), (1500, 70)]
    data = [saved(PIL_Image.new("RGB", size, (200, 100, 50)), quality=95) for size in sizes]
    for mode in ("train", "eval"):
        decoder = images.Decoder(SIZE, mode)
        result = array(decoder(data, ids=range(len(data))))
        assert np.abs(result - np.array([200, 100, 50]).reshape(3, 1, 1)).max() <= 3
        assert decoder.stats()["fallback"] == 0


# Odd files


def odd():
    """Files by name, each with the picture that it should be, before it is cropped, and the counters that change."""
    plain = picture(5, 80, 70)
    grey, rgba = plain.convert("L"), plain.convert("RGBA")
    rgba.putalpha(grey)
    palette = plain.quantize(16)
    wide = PIL_Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    turned = PIL_Image.Exif()
    turned[0x0112] = 6
    fallback, native = {"fallback": 1}, {}
    return {
        "grey.jpg": (saved(grey, quality=95), grey, native),
        "progressive.jpg": (saved(plain, quality=95, progressive=True), plain, native),
        "turned.jpg": (saved(plain, quality=95, exif=turned), plain, native),
        "comment.jpg": (saved(plain, quality=95, comment=b"x" * 60000), plain, native),
        "restarts.jpg": (saved(plain, quality=95, restart_marker_blocks=1), plain, native),
        "cmyk.jpg": (saved(plain.convert("CMYK"), quality=95), plain, fallback),
        "rgb.jpg": (saved(plain, quality=95, keep_rgb=True), plain, fallback),
        "png.jpg": (saved(plain, "PNG"), plain, fallback),
        "wide.png": (saved(wide, "PNG"), grey, fallback),
        "palette.png": (saved(palette, "PNG"), palette, fallback),
        "see-through.png": (saved(palette, "PNG", transparency=0), palette, fallback),
        "alpha.png": (saved(rgba, "PNG"), plain, fallback),
        "bits.png": (saved(grey.convert("1"), "PNG"), grey.convert("1"), fallback),
        "anything.bmp": (saved(plain, "BMP"), plain, fallback),
        "anything.gif": (saved(palette, "GIF"), palette, fallback),
        "anything.webp": (saved(plain, "WEBP", lossless=True), plain, fallback),
    }


@pytest.mark.parametrize("name", list(odd()))
def test_an_odd_file_is_decoded_alike_by_all_back_ends(name, codec):
    data, image, counters = odd()[name]
    decoder = images.Decoder(SIZE, seed=SEED)
    result = array(decoder([data, jpeg(1, 80, 70)], ids=[4, 5]))[0]
    crop = _crop.random_crop(80, 70, dlfs.random_of(SEED, 0, 4))
    expected = by_hand(saved(image.convert("RGB"), "PNG"), crop)
    assert np.abs(result - expected).mean() < (4 if name.endswith("jpg") else 0.5)
    zero = {"images": 2, "scaled": 0, "fallback": 0, "damaged": 0, "failed": 0}
    assert decoder.stats() == {"backend": codec.name, **zero, **counters}


def test_a_jpeg_that_ends_too_early_is_grey_from_there_on(codec):
    whole = saved(PIL_Image.effect_noise((100, 100), 60), quality=90)
    decoder = images.Decoder(SIZE, "eval")
    full, part = array(decoder([whole, whole[: len(whole) // 2]]))
    assert decoder.stats()["damaged"] == decoder.stats()["fallback"] == 1
    assert np.abs(full - part)[:, :20].max() <= 1
    assert np.abs(part[:, -20:] - 128).max() <= 1


def test_every_prefix_of_a_jpeg_is_decoded_or_an_error_and_nothing_else(codec):
    whole = jpeg(3, 40, 30, comment="a comment")
    decoder = images.Decoder(SIZE, "eval", on_error="none")
    decoder([whole[:length] for length in range(len(whole))])
    counted = decoder.stats()
    assert counted["failed"] > 100 and counted["damaged"] > 10
    assert counted["failed"] + counted["damaged"] >= len(whole) - 2


def test_random_bytes_are_no_plain_jpeg_and_never_raise():
    print("seed", SEED)
    draw = random.Random(SEED)
    markers = [b"\xff" + bytes([marker]) for marker in range(256)]
    for _ in range(5000):
        parts = [draw.choice(markers) + draw.randbytes(draw.randrange(12)) for _ in range(draw.randrange(8))]
        _jpeg.header(memoryview(b"\xff\xd8" + b"".join(parts)))
    assert _jpeg.header(memoryview(b"")) is None and _jpeg.header(memoryview(b"\x89PNG")) is None


# Errors


BAD = {
    "text": b"this is no picture at all",
    "empty": b"",
    "png": saved(picture(1, 50, 50), "PNG")[:200],
    "bomb": jpeg(1, 50, 50).replace(b"\x08" + b"\x00\x32" * 2, b"\x08" + b"\xea\x60" * 2),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_decoded_is_an_error_or_zeros(name, codec):
    good = jpeg(1, 50, 50)
    with pytest.raises(dlfs.InvalidArgument, match="picture 2 of the batch cannot be decoded") as raised:
        images.Decoder(SIZE, "eval")([good, good, BAD[name], good, BAD[name]])
    assert raised.value.__cause__ is not None and "on_error" in str(raised.value)
    decoder = images.Decoder(SIZE, "eval", on_error="none", dtype="f32")
    result = array(decoder([good, None, BAD[name], good]))
    assert not result[1:3].any() and result[0].any() and np.array_equal(result[0], result[3])
    assert decoder.stats()["failed"] == 2
    with pytest.raises(dlfs.InvalidArgument, match="the loader could not read it"):
        images.Decoder(SIZE, "eval")([None])


def test_arguments_that_make_no_sense_are_refused():
    for wrong in (
        {"mode": "test"}, {"dtype": "f64"}, {"on_error": "skip"}, {"size": 0}, {"threads": 0}, {"mean": (1, 2)},
        {"std": (0, 1, 1)}, {"device": "nowhere"},
    ):
        with pytest.raises(dlfs.InvalidArgument, match=next(iter(wrong))):
            images.Decoder(**wrong)
    with pytest.raises(dlfs.InvalidArgument, match="ids="):
        images.Decoder()([b""])
    with pytest.raises(dlfs.InvalidArgument, match="2 ids for 1"):
        images.Decoder()([b""], ids=[1, 2])


# Batches of a data set


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """An image of 90 pictures, PNG among them under the name of JPEG."""
    root = tmp_path_factory.mktemp("pictures")
    for label, first in (("one", 0), ("two", 45)):
        (root / "src" / label).mkdir(parents=True)
        for number in range(first, first + 45):
            data = jpeg(number, 60 + number, 150 - number)
            if number % 15 == 7:
                data = saved(picture(number, 70, 70), "PNG")
            (root / "src" / label / f"{number:03}.jpg").write_bytes(data)
    command("import", root / "src", root / "pictures.dlfs", "--chunk-size", "64K", "--quiet")
    return str(root / "pictures.dlfs")


def epoch_of(pictures, decoder, epochs=1, **options):
    """The pictures of each epoch by id."""
    found = [{} for _ in range(epochs)]
    with dlfs.open(pictures) as ds:
        loader = dlfs.Loader(ds, seed=SEED, epochs=epochs, **options)
        for batch in (batch for _ in range(epochs) for batch in loader):
            decoded = array(decoder(batch))
            found[batch.epoch].update(zip(batch.ids.tolist(), decoded))
    return found


def test_pictures_are_the_same_with_any_threads_ranks_and_batches(pictures):
    first = epoch_of(pictures, images.Decoder(SIZE, threads=1, seed=5), 2, batch_size=16)
    assert [len(epoch) for epoch in first] == [90, 90]
    assert any(not np.array_equal(first[0][id], first[1][id]) for id in first[0])
    decoder = images.Decoder(SIZE, threads=4, seed=5)
    again = [{}, {}]
    for rank in range(3):
        for at, part in enumerate(epoch_of(pictures, decoder, 2, batch_size=7, rank=rank, world_size=3)):
            again[at].update(part)
    for before, after in zip(first, again):
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[id], after[id]) for id in before)
    other = epoch_of(pictures, images.Decoder(SIZE, seed=6), batch_size=16)[0]
    assert any(not np.array_equal(first[0][id], other[id]) for id in other)
    assert decoder.stats()["images"] == 180 and decoder.stats()["fallback"] == 12


def test_workers_of_torch_give_the_pictures_of_this_process(pictures):
    pytest.importorskip("torch", reason="torch is not installed")
    import dlfs.torch
    from torch.utils.data import DataLoader

    decoder = images.Decoder(SIZE, seed=5)
    expected = epoch_of(pictures, decoder, batch_size=16)[0]
    with dlfs.open(pictures) as ds:
        data = dlfs.torch.IterableDataset(ds, 16, seed=SEED, transform=lambda batch: (decoder(batch), batch.ids.copy()))
        found = {}
        for decoded, ids in DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork"):
            found.update(zip(ids.tolist(), array(decoded)))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[id], expected[id]) for id in found)


def test_a_decoder_works_for_many_threads_at_once_and_in_forked_and_spawned_processes(pictures):
    with dlfs.open(pictures) as ds:
        batch = ds.read_batch(range(40))
        decoder = images.Decoder(SIZE, threads=2, seed=5)
        expected, wrong = array(decoder(batch)), []

        def check():
            for _ in range(5):
                if not np.array_equal(array(decoder(batch)), expected):
                    wrong.append(threading.current_thread())

        callers = [threading.Thread(target=check) for _ in range(6)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong
        data = batch.tobytes()
    other = pickle.loads(pickle.dumps(decoder))
    assert np.array_equal(array(other(data, ids=range(40))), expected) and repr(other) == repr(decoder)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        results = context.Queue()
        child = context.Process(target=decode_in_child, args=(decoder, data, results))
        child.start()
        assert np.array_equal(results.get(timeout=120), expected), method
        child.join()


def test_threads_end_with_their_decoder():
    decoder = images.Decoder(SIZE, "eval", threads=3)
    decoder([jpeg(1, 50, 50)] * 8)
    assert threads_of_pools()
    del decoder
    gc.collect()
    wait_until(lambda: not threads_of_pools(), "the end of the threads")


def threads_of_pools():
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlfs-images")]


def decode_in_child(decoder, data, results):
    results.put(array(decoder(data, ids=range(40))))


def test_samples_of_several_fields_need_a_choice(tmp_path):
    with dlfs.Writer(tmp_path / "several.dlfs", fields={"jpg": "bytes", "cls": "bytes"}) as writer:
        for number in range(4):
            writer.write({"jpg": jpeg(number, 50, 40), "cls": str(number)})
    with dlfs.open(tmp_path / "several.dlfs") as ds:
        batch, decoder = ds.read_batch(range(4)), images.Decoder(SIZE)
        with pytest.raises(dlfs.InvalidArgument, match='fields="'):
            decoder(batch)
        chosen = array(decoder(batch.select("jpg")))
        assert np.array_equal(chosen, array(decoder(ds.read_batch(range(4), fields="jpg"))))


def test_an_error_names_the_sample(tmp_path):
    with dlfs.Writer(tmp_path / "bad.dlfs") as writer:
        for number in range(4):
            writer.write(jpeg(number, 50, 40) if number != 2 else b"no picture")
    with dlfs.open(tmp_path / "bad.dlfs") as ds:
        with pytest.raises(dlfs.InvalidArgument, match="sample 2, picture 1 of the batch in epoch 0") as raised:
            images.Decoder(SIZE)(ds.read_batch([3, 2, 0]))
    assert raised.value.sample_id == 2


# The result


def test_numbers_are_normalised_as_by_hand():
    data = [jpeg(seed, 90, 70) for seed in range(6)]
    given = {"size": SIZE, "seed": SEED, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    whole = array(images.Decoder(SIZE, seed=SEED)(data, ids=range(6)))
    mean, std = (np.array(given[name]).reshape(3, 1, 1) for name in ("mean", "std"))
    expected = (whole / 255 - mean) / std
    for dtype, tolerance in (("f32", 1e-5), ("f16", 2e-3), ("bf16", 2e-2)):
        if dtype == "bf16":
            pytest.importorskip("torch", reason="torch is not installed")
        result = images.Decoder(**given, dtype=dtype)(data, ids=range(6))
        assert str(result.dtype).endswith({"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype])
        assert np.abs(array(result) - expected).max() < tolerance


def test_without_torch_the_result_is_an_array_of_the_same_numbers(monkeypatch):
    data = [jpeg(seed, 90, 70) for seed in range(6)]
    dtypes = ("uint8", "f16", "f32")
    expected = {dtype: array(images.Decoder(SIZE, dtype=dtype)(data, ids=range(6))) for dtype in dtypes}

    def missing(*_):
        raise ImportError("no torch")

    monkeypatch.setattr(images, "TorchOutput", missing)
    for dtype, numbers in expected.items():
        result = images.Decoder(SIZE, dtype=dtype)(data, ids=range(6))
        assert isinstance(result, np.ndarray) and result.shape == (6, 3, SIZE, SIZE)
        assert np.abs(array(result) - numbers).max() <= (1 if dtype == "uint8" else 0.02)
    with pytest.raises(dlfs.InvalidArgument, match="bf16"):
        images.Decoder(dtype="bf16")


def test_a_batch_that_is_kept_stays_and_memory_that_nobody_holds_is_used_again():
    decoder = images.Decoder(SIZE, "eval")
    kept, copies, places = [], [], set()
    for number in range(8):
        result = decoder([jpeg(number, 50, 50)] * 4)
        places.add(address_of(result))
        if number % 2:
            kept.append(result[1:2])  # a view keeps the memory, too
            copies.append(array(result[1:2]).copy())
        del result
        gc.collect()
    assert len(places) == 4, "four are kept, each in the memory of the one before"
    assert all(np.array_equal(array(view), copy) for view, copy in zip(kept, copies))


def address_of(batch):
    return batch.ctypes.data if isinstance(batch, np.ndarray) else batch.data_ptr()


def test_torch_keeps_its_threads_elsewhere():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    before, inside = torch.get_num_threads(), []

    def look():
        _output.alone()
        inside.append(torch.get_num_threads())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert torch.get_num_threads() == before and inside == [1]


# The device


@pytest.fixture
def on_device(monkeypatch):
    """Makes decoders that run what is for a device on the CPU, with a codec of the test's."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dlfs.images import _device

    def make(codec, *given, dtype="uint8", **options):
        decoder = images.Decoder(*given, dtype=dtype, **options)
        size, mean, std = given[0], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        decoder._device = _device.Device(torch.device("cpu"), _output.Format(size, dtype, mean, std), codec)
        decoder._cpu.output = _output.TorchOutput(_output.Format(size, "uint8", mean, std))
        return decoder

    return make


class ByPillow:
    """A codec of a device that decodes with Pillow, and refuses what it is told to."""

    name = "stand-in"

    def __init__(self, refused=()):
        self.refused = refused

    def decode(self, views, cuts):
        import torch

        return [
            None if view in self.refused
            else torch.from_numpy(np.array(PIL_Image.open(io.BytesIO(view)).convert("RGB").crop(cut))).permute(2, 0, 1)
            for view, cut in zip(views, cuts)
        ]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("dtype", ["uint8", "f16", "bf16", "f32"])
def test_a_device_gives_the_pictures_of_the_cpu(mode, dtype, on_device):
    data = [jpeg(seed, 90 + 7 * seed, 120 - 5 * seed) for seed in range(9)]
    data += [saved(picture(1, 60, 50), "PNG"), odd()["cmyk.jpg"][0], b"no picture", None, jpeg(9, 700, 500)]
    expected = array(images.Decoder(SIZE, mode, dtype=dtype, on_error="none")(data, ids=range(len(data))))
    for codec in (ByPillow(), ByPillow(refused=data[3:5]), None):
        decoder = on_device(codec, SIZE, mode, dtype=dtype, on_error="none")
        result = decoder(data, ids=range(len(data)))
        assert str(result.dtype) == str(images.Decoder(SIZE, dtype=dtype)([], ids=[]).dtype)
        unit = 1 if dtype == "uint8" else 1 / 255 / 0.22
        difference = np.abs(array(result) - expected) / unit
        assert difference[:-1].max() <= 2 and difference[-1].mean() <= 1.5
        counted = decoder.stats()
        assert counted["failed"] == 2 and counted["fallback"] == 3
    with pytest.raises(dlfs.InvalidArgument, match="picture 11 of the batch"):
        on_device(ByPillow(), SIZE)(data[:12], ids=range(12))


def test_nvimagecodec_decodes_the_parts_that_crops_show(monkeypatch, on_device):
    """By its own decoder for the CPU, since the one for a GPU takes and gives the same."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    library = pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed")
    from dlfs.images import _device

    real = library.Decoder

    def on_cpu(device_id, max_num_cpu_threads, options):
        backends = [library.Backend(library.BackendKind.CPU_ONLY)]
        return real(library.NVIMGCODEC_DEVICE_CPU_ONLY, 1, backends, options)

    monkeypatch.setattr(library, "Decoder", on_cpu)
    of_host = staticmethod(lambda image: torch.from_numpy(np.array(image)))
    monkeypatch.setattr(_device.NvImageCodec, "tensor", of_host)
    codec = _device.choose(torch.device("cpu"), 1)
    assert codec.name == "nvimagecodec"
    plain = {name: data for name, (data, _, counters) in odd().items() if not counters}
    data = [jpeg(seed, 90, 70, subsampling=seed % 3) for seed in range(6)] + list(plain.values())
    expected = array(images.Decoder(SIZE)(data, ids=range(len(data))))
    decoder = on_device(codec, SIZE)
    assert np.abs(array(decoder(data, ids=range(len(data)))) - expected).max() <= 1
    assert decoder.stats()["fallback"] == 0
    decoder([data[0][:1200]], ids=[1])
    assert decoder.stats()["damaged"] == 1


def test_nvjpeg_refuses_one_picture_without_the_others(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from dlfs.images import _device

    def decode(sources, mode, device):
        assert mode == 3, "RGB"
        views = [bytes(source.numpy()) for source in sources]
        if b"bad" in views:
            raise RuntimeError("nvJPEG does not decode all of them")
        return ByPillow().decode(views, [PIL_Image.open(io.BytesIO(view)).getbbox() for view in views])

    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", decode)
    codec = _device.Nvjpeg(torch.device("cpu"), 1)
    data = [memoryview(jpeg(1, 50, 40)), memoryview(b"bad"), memoryview(jpeg(2, 50, 40))]
    first, refused, last = codec.decode(data, [(10, 20, 50, 40)] * 3)
    assert refused is None and first.shape == last.shape == (3, 20, 40)
    assert np.array_equal(first.permute(1, 2, 0), np.asarray(PIL_Image.open(io.BytesIO(data[0])))[20:, 10:])


def test_the_cpu_may_be_named_and_a_device_that_is_not_there_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert images.Decoder(SIZE, "eval", device=torch.device("cpu"))([jpeg(1, 50, 50)]).device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(dlfs.InvalidArgument, match="device=cuda"):
            images.Decoder(device="cuda")


def test_a_gpu_gives_the_pictures_of_the_cpu():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    data = [jpeg(seed, 90 + 7 * seed, 120 - 5 * seed) for seed in range(9)] + [saved(picture(1, 60, 50), "PNG")]
    for dtype, tolerance in (("uint8", 3), ("bf16", 0.1)):
        decoder = images.Decoder(SIZE, device="cuda", dtype=dtype)
        result = decoder(data, ids=range(10))
        assert result.is_cuda
        expected = array(images.Decoder(SIZE, dtype=dtype)(data, ids=range(10)))
        assert np.abs(array(result.cpu()) - expected).max() <= tolerance, decoder.backend


# DALI


def test_arrays_for_dali_stay_until_it_has_handed_out_the_batch(tmp_path):
    """Does with them what DALI does: keeps addresses alone, and reads when as many batches more have been asked for as
    its queue has. The samples are many times the loader's window, which is soon used again."""
    print("seed", SEED)
    draw, depth = random.Random(SEED), 3
    expected = {number: draw.randbytes(40_000 + number) for number in range(400)}
    with dlfs.Writer(tmp_path / "many.dlfs", chunk_size=256 << 10) as out:
        for number, data in expected.items():
            out.write(data, label=number % 7)
    with dlfs.open(tmp_path / "many.dlfs") as ds:
        loader = dlfs.Loader(ds, 4, order="global", seed=SEED, window=1 << 20)
        source, queue, epochs = dali.source(loader, depth), [], 3

        def hand_out():
            for address, length in queue.pop(0):
                assert ctypes.string_at(address, length) == expected[length - 40_000]

        for _ in range(epochs):
            numbers = []
            for arrays, labels in iter(source):
                assert labels.shape == (4, 1) and labels.dtype == np.int64
                own = [len(array) - 40_000 for array in arrays]
                assert labels[:, 0].tolist() == [number % 7 for number in own]
                numbers += own
                queue.append([(array.ctypes.data, len(array)) for array in arrays])
                del arrays, labels
                if len(queue) > depth:
                    hand_out()
            assert sorted(numbers) == list(expected)
        while queue:
            hand_out()
        assert len(source) == len(loader) == 100


def test_the_source_for_dali_takes_its_options(pictures):
    with dlfs.open(pictures) as ds:
        source = dali.source(dlfs.Loader(ds, 4), {"cpu_size": 2, "gpu_size": 3})
        assert source._kept.maxlen == 7
        with pytest.raises(dlfs.InvalidArgument, match="prefetch_queue_depth"):
            dali.source(dlfs.Loader(ds, 4), 0)


def test_dlfs_imports_no_codec_and_no_dali(run_python):
    out = run_python("import sys, dlfs, dlfs.dali; print(sorted({'PIL', 'torch', 'nvidia'} & set(sys.modules)))")
    assert out == "[]\n"
