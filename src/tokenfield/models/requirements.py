"""What merging, densities, devices and fast sums ask of a model, each refused in one sentence.

A model declares what it reads (base.py); nothing here asks which model it is.
"""

from tokenfield.errors import InputError
from tokenfield.models.base import Model


def obstacles(model: Model) -> dict[str, str]:
    """What the model would have to be for some uses and is not, each as the middle of a sentence."""
    found = {
        "order": (model.reads_order, "not read the order of its tokens (have no mask)"),
        "number": (
            model.reads_number,
            "depend on the law of its tokens only, not on their number (say `count`)",
        ),
        "free": (model.space.free, "live on the sphere, not in a free space"),
        "space": (not model.space.projects, "move tokens by the projected output itself"),
        "time": (model.reads_time, "not change with time"),
        "noise": (model.noisy, "have no noise"),
        "common": (model.common_noise, "have no noise that all tokens share, which makes its density random"),
        "more": (not model.adds_up, "be the sum of its terms, not mirrored"),
        "rough": (not model.smooth, "have a smooth velocity, not a hardmax"),
    }
    return {name: must for name, (holds, must) in found.items() if holds}


def _refuse(model: Model, use: str, unwanted: tuple[str, ...], instead: str) -> None:
    there = obstacles(model)
    for name in unwanted:
        if name in there:
            kind = type(model).__name__
            raise InputError(f"`model` must {there[name]} for {use}, but this {kind} is not so; {instead}")


def check_law(model: Model, use: str) -> None:
    """Refuse models that are no flow of laws on the sphere."""
    _refuse(model, use, ("order", "number", "free", "time", "noise"), "simulate tokens instead")


def check_density(model: Model) -> None:
    """Refuse models whose mean field is no equation for one density on the sphere."""
    unwanted = ("order", "number", "free", "space", "time", "common", "more", "rough")
    _refuse(model, "a density", unwanted, "simulate tokens instead")


def check_merging(model: Model) -> None:
    """Refuse models under which close tokens do not stay together."""
    _refuse(model, "merging tokens", ("order", "number", "free", "noise"), "leave merge_angle out")


def check_devices(model: Model) -> None:
    """Refuse models that cannot be spread over several devices."""
    _refuse(model, "several devices", ("order", "noise"), "leave devices out")


def check_closure(model: Model) -> None:
    """Refuse models that are no flow of laws of R^d: a space that normalises, order, time, noise."""
    _refuse(model, "a Gaussian law", ("order", "number", "time", "more", "noise"), "simulate tokens instead")
    if not (model.space.raw or model.space.projects):
        raise InputError(
            "`model` must be without normalisation (NoNorm) or name no space for a Gaussian law, but was"
            f" {type(model).__name__}"
        )
