"""Texts that a tokenizer of Hugging Face encodes: the same tokens as its own package gives."""

import hashlib
import json
import random

import numpy
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED

# As those of GPT-2 and of Llama 3.
PATTERNS = [
    None,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
]
PARTS = [
    "hello", " world", "The", " a", " ", "  ", "\n", "\r\n\n", "\t", "ä", "a\u0308", "日本語", "العربية", "𝄞",
    "👩‍🚀", "I'LL", "'s", "1234567", "½", "<end>", "_x_", "...", "\u00a0", "\u200b", "\u3000", "ǅ", "ß", "\u0000",
]


def texts(count):
    print("seed", SEED)
    draw = random.Random(SEED)
    made = ["".join(draw.choices(PARTS, k=draw.randrange(60))) for _ in range(count)]
    return ["", " \n ", "hello  world " * 5000, *made]


def tokenizer_of_bytes(path, tokenizers, corpus, pattern):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pre = tokenizers.pre_tokenizers
    parts = [pre.ByteLevel(add_prefix_space=False, use_regex=pattern is None)]
    if pattern is not None:
        parts.insert(0, pre.Split(tokenizers.Regex(pattern), "isolated"))
    tokenizer.pre_tokenizer = pre.Sequence(parts)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<end>"], initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(path))
    return tokenizer


def write_lines(path, lines):
    path.write_text("".join(json.dumps({"text": line, "n": 1}) + "\n" for line in lines))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_documents_have_the_tokens_that_the_package_of_the_tokenizer_gives(tmp_path, pattern):
    tokenizers = pytest.importorskip("tokenizers")
    corpus = texts(500)
    tokenizer = tokenizer_of_bytes(tmp_path / "tokenizer.json", tokenizers, corpus, pattern)
    write_lines(tmp_path / "a.jsonl", corpus)
    image = tmp_path / "image"
    assert dlfs.import_(tmp_path / "a.jsonl", image, tokenizer=tmp_path / "tokenizer.json").samples == len(corpus)
    dataset = dlfs.open(image)
    for number, text in enumerate(corpus):
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert dataset[f"a.jsonl/{number}"].tolist() == expected, repr(text)


def words(path, last):
    model = {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, last: 2}}
    path.write_text(json.dumps({"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}))
    return path


def test_texts_of_parquet_become_tokens_and_bytes_that_are_no_text_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tokenizer = words(tmp_path / "t.json", "c")
    rows = {"body": ["a c", "", "b b b"], "lang": ["de", "en", "de"], "n": [1, 2, 3]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    options = {"tokenizer": tokenizer, "text_field": "body", "label": "lang"}
    dlfs.import_(tmp_path / "a.parquet", tmp_path / "image", shuffle=False, **options)
    dataset = dlfs.open(tmp_path / "image")
    found = [(dataset[at].tolist(), dataset.label(at)) for at in range(3)]
    assert found == [([0, 2], 0), ([], 1), ([1, 1, 1], 0)]
    rows["body"] = [b"a", b"\xff", b"b"]
    parquet.write_table(pyarrow.table(rows), tmp_path / "b.parquet")
    with pytest.raises(dlfs.Error, match="b.parquet/1: field body is not UTF-8 from byte 0 on"):
        dlfs.import_(tmp_path / "b.parquet", tmp_path / "other", **options)


def test_a_loader_takes_only_tokens_of_its_tokenizer(tmp_path):
    one, other = words(tmp_path / "one.json", "c"), words(tmp_path / "other.json", "d")
    write_lines(tmp_path / "a.jsonl", ["a b c", "c"])
    image = tmp_path / "image"
    dlfs.import_(tmp_path / "a.jsonl", image, tokenizer=one, text_field="text")
    dataset = dlfs.open(image)
    loader = dlfs.tokens.Loader(dataset, 3, 1, order="sequential", tokenizer=one)
    (rows,) = loader
    assert sorted([*rows.tokens[0], rows.labels[0][-1]]) == [0, 1, 2, 2]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, other)]
    with pytest.raises(dlfs.InvalidArgument, match=f"{hashes[0]}.*{hashes[1]}"):
        dlfs.tokens.Loader(dataset, 3, 1, tokenizer=other)
    with pytest.raises(dlfs.InvalidArgument, match="has 2 tokens.* 3"):
        dlfs.tokens.Loader(dataset, 3, 1, vocabulary=2)
    with pytest.raises(dlfs.InvalidArgument, match="another tokenizer"):
        dlfs.import_(tmp_path / "a.jsonl", image, tokenizer=other, append=True)
    with pytest.raises(TypeError, match="tokenizer"):
        dlfs.import_([b"x"], tmp_path / "other", tokenizer=one)
    plain = tmp_path / "plain"
    with dlfs.Writer(plain, {"tok": "u16[*]"}) as out:
        out.write({"tok": numpy.arange(9, dtype="uint16")})
    with pytest.raises(dlfs.InvalidArgument, match=f"does not say.*{hashes[0]}"):
        dlfs.tokens.Loader(dlfs.open(plain), 3, 1, tokenizer=one)
