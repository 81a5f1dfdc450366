"""What is hidden in texts and records, and what is left alone."""

from __future__ import annotations

import pytest

from nvrun.mask import Mask, masked, secret_values, secrets

SECRET = [
    "WANDB_API_KEY=0123456789abcdef",
    "export AWS_SECRET_ACCESS_KEY='x/y+z0123456'",
    '{"HF_TOKEN": "abc0123"}',
    '{\\"HF_TOKEN\\": \\"abc0123\\"}',
    "train.py --api-key abc0123 --lr 3",
    "['--wandb-api-key', 'abc0123']",
    "a line with hf_abcdefghijklmnop in it",
    "git clone https://ann:abc0123@host/x.git",
    "Authorization: Bearer abcdefgh0123",
    "DB_PASSWORD=0123",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc0123\nIBAAKabc0123\n-----END RSA PRIVATE KEY-----",
    "said: the-value-itself",
]
PLAIN = [
    "max_tokens=512, tokens: 1_024, 3.2e5 tokens/s",
    "tokenizer=gpt2",
    "task-0123456789 disk-0123456789 risk-averse",
    "Private_Dirty: 12 kB",
    "http://host:29500/path and tcp://[::1]:29500",
    "token=None",
]


@pytest.mark.parametrize("line", SECRET)
def test_secrets_are_hidden_in_texts(line: str) -> None:
    shown = Mask(["the-value-itself"]).text(line.encode()).decode()
    assert "***" in shown
    for piece in ("0123", "abcdefgh", "the-value"):
        assert piece not in shown


@pytest.mark.parametrize("line", PLAIN)
def test_what_is_no_secret_is_left_alone(line: str) -> None:
    assert Mask(["1", "true", "10.5"]).text(line.encode()).decode() == line


def test_records_are_hidden_by_their_structure_and_their_values_found_elsewhere() -> None:
    record = {
        "env": [{"name": "MY_TOKEN", "value": "spaced out value"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
        "options": {"env": ["OTHER_SECRET=in-an-option"], "password": "pa$$word"},
        "argv": ["train.py", "--api-key", "a-key-apart", "--lr", "3"],
    }
    values = set(secrets(record))
    assert values == {"spaced out value", "in-an-option", "pa$$word", "a-key-apart"}
    mask = Mask(values)
    shown = mask.json(record)
    assert shown["env"] == [{"name": "MY_TOKEN", "value": "***"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    assert shown["argv"] == ["train.py", "--api-key", "***", "--lr", "3"]
    assert not any(value in str(shown) for value in values)
    assert mask.text(b"KeyError: 'spaced out value'") == b"KeyError: '***'"
    assert mask.bytes(b"\x80\x04in-an-option\0") == b"\x80\x04************\0", "as long as before: it can still be read"


def test_variables_of_the_one_who_packs() -> None:
    assert list(secret_values({"HF_TOKEN": "a", "PATH": "/bin", "GITHUB_API_KEY": "b"})) == ["a", "b"]


@pytest.mark.parametrize("value", ["glpat-0123456789abc", "redis://:abc0123@store", "Bearer abcdefgh0123",
                                   "-----BEGIN PRIVATE KEY-----\nMIIE0123\n-----END PRIVATE KEY-----"])  # fmt: skip
def test_a_value_is_known_by_its_shape_under_any_name(value: str) -> None:
    assert masked("STORE", value) == "***"
    assert masked("STORE", "http://host:29500/path") == "http://host:29500/path"
