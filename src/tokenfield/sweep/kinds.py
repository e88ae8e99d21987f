"""What a cell may be, and what comes out of one.

A kind is a module with
    sections                          the tables of its TOML files
    check(settings) → settings        refuse bad ones; the same run always gives the same settings
    build(settings)                   build everything once, to find what only building finds
    together_if(settings) → text      cells with the same text may be computed in one program; None: alone
    batch_size(settings) → count      how many of them
    alone(settings, time_limit) → Outcome
    together(many, size, time_limit) → Outcomes; `size` lanes, the same for every batch of a group
    records(settings) → bytes         about what a cell takes on disk
A new kind is such a module and its name here; its files are told by a section of that name, those without one
are runs of `simulate`. Kinds whose cells are always alone need no `together`.
"""

from types import ModuleType

from tokenfield.sweep import mean_field, pairs, simulation

KINDS: dict[str, ModuleType] = {"simulate": simulation, "density": mean_field, "pairs": pairs}
