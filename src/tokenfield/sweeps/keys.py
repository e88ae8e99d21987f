"""Keys of everything random in a file: a seed gives them, a dataset lists them.

What is random is asked of the sections, and they ask the registry; no name of a law or solver stands here.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from tokenfield.config.choices import tables_of
from tokenfield.config.section import Section


def is_random(section: type[Section], table: Mapping[str, Any]) -> bool:
    """Whether a table of settings, not yet checked, describes something that has to be drawn with a key."""
    return section.is_random(table)


def assign_keys(whole: type[Section], settings: dict[str, Any], seed: int) -> int:
    """Give a key of its own to everything random that has none.

    Args:
        whole: the section that the whole file is for.
        settings: the file as plain data; keys are added to its tables.
        seed: with the place of a table in the file, it determines the key.

    Returns:
        How many keys were given.
    """
    without = [
        (name, table)
        for name, section, table in tables_of(whole, settings)
        if "key" not in table and is_random(section, table)
    ]
    for name, table in without:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        table["key"] = int.from_bytes(digest[:4], "big")
    return len(without)


def keys_of(whole: type[Section], settings: Mapping[str, Any]) -> dict[str, int]:
    """The keys that a file's numbers depend on, by where they stand."""
    return {
        f"{name}.key": table["key"]
        for name, section, table in tables_of(whole, settings)
        if section.uses_key(table)
    }
