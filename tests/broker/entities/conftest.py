"""Reads a text as a Config.json."""

import pytest

from pairbus.broker.entities.config import load_config


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "Config.json"
        path.write_text(text, "utf-8")
        return load_config(path)

    return load_text
