"""Encoders against transformers' own states (stored) and against loops."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenfield as tkf
from tests.encoders.coinciding import measured_multiplier
from tokenfield.errors import InputError

DATA = Path(__file__).parent / "data"
KINDS = ["bert", "roberta", "distilbert", "albert"]
pytest.importorskip("safetensors")


def stored(kind):
    return tkf.encoders.load(DATA / kind), np.load(DATA / f"{kind}.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_attention_are_those_of_transformers(kind):
    encoder, expected = stored(kind)
    states = np.asarray(encoder.hidden_states(expected["ids"]))
    assert states.shape == expected["states"].shape
    assert np.max(np.abs(states - expected["states"])) < 1e-12
    assert np.max(np.abs(np.asarray(encoder.attention(expected["ids"])) - expected["attention"])) < 1e-12
    assert encoder.shared == (kind == "albert")


def loops_attention(layer, x):
    """Attention of a layer as it was trained, by loops."""
    heads = {
        name: np.asarray(getattr(layer.attention, name)) for name in ("Q", "K", "V", "O", "q", "p", "v", "o")
    }
    out = np.zeros_like(x) + heads["o"]
    for h in range(len(heads["Q"])):
        for i in range(len(x)):
            query = heads["Q"][h] @ x[i] + heads["q"][h]
            scores = [query @ (heads["K"][h] @ y + heads["p"][h]) / np.sqrt(len(query)) for y in x]
            weights = np.exp(np.array(scores) - max(scores))
            for w, y in zip(weights / weights.sum(), x, strict=True):
                out[i] += w * heads["O"][h] @ (heads["V"][h] @ y + heads["v"][h])
    return out


def loops_folded(layer, u):
    """What the folded heads put out at u, in units of the sphere, by loops."""
    w = layer.weights
    B, V, c = np.asarray(w.B), np.asarray(w.V), np.asarray(w.score_bias)
    out = np.tile(np.asarray(layer.drift), (len(u), 1))
    for h in range(len(B)):
        for i in range(len(u)):
            scores = np.array([layer.beta * (B[h].T @ u[i] + c[h]) @ y for y in u])
            weights = np.exp(scores - scores.max())
            out[i] += V[h] @ (weights / weights.sum() @ u)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_folding_is_exact(kind):
    """r·g times the folded output is the centred output of attention, on states that a norm has made."""
    encoder, expected = stored(kind)
    layer, x = encoder.layers[1], expected["states"][1]
    u = np.asarray(layer.fold(x))
    assert np.max(np.abs(u.sum(axis=1))) < 1e-12  # orthogonal to 1
    unit = layer.source.radius * float(layer.source.flat_gain)
    trained = loops_attention(layer, x)
    trained -= trained.mean(axis=1, keepdims=True)
    assert np.max(np.abs(unit * loops_folded(layer, u) - trained)) < 1e-12


def test_a_layer_of_the_core_is_the_sphere_rung_and_the_idealised_encoder():
    encoder, expected = stored("bert")
    rung = tkf.encoders.idealise(encoder, drop=["mlp", "biases", "gain"])
    states = np.asarray(rung.hidden_states(expected["ids"]))
    layer = rung.layers[1]
    u = np.array(layer.fold(states[1]))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    moved = u + loops_folded(layer, u)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    run = tkf.simulate(layer.model(), tkf.Tokens(u), 1.0, solver=tkf.Layers(1.0))
    assert np.max(np.abs(np.asarray(run.x[-1]) - moved)) < 1e-13
    assert np.max(np.abs(np.asarray(rung.layers[2].fold(states[2])) - moved)) < 1e-10  # eps of the norms


def test_the_symmetric_rung_has_symmetric_matrices():
    encoder, _ = stored("bert")
    parts = ["mlp", "biases", "gain"]
    plain = tkf.encoders.idealise(encoder, drop=parts).layers[0].weights
    rung = tkf.encoders.idealise(encoder, drop=[*parts, "antisymmetric"]).layers[0]
    for name in ("B", "V"):
        M, S = np.asarray(getattr(plain, name)), np.asarray(getattr(rung.weights, name))
        assert np.max(np.abs(S - (M + np.swapaxes(M, 1, 2)) / 2)) < 1e-13
    assert np.isclose(rung.beta, encoder.layers[0].beta)


def test_other_rules_read_what_they_say():
    encoder, expected = stored("bert")
    x = expected["states"][1]
    read = {}
    for rule in ("softmax", "hardmax", "average", "zero temperature"):
        layer = tkf.encoders.idealise(encoder, attention=rule).layers[1]
        read[rule] = np.asarray(layer.attention.read(x, layer.source))
    assert np.allclose(read["average"], x.mean(axis=0))
    top = np.argmax(expected["attention"][1], axis=-1)
    assert np.allclose(read["hardmax"], x[top])
    layer = encoder.layers[1]
    u, w = np.asarray(layer.fold(x)), layer.weights
    wanted = np.einsum("hde,nd->hne", np.asarray(w.B), u) + np.asarray(w.score_bias)[:, None]
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    assert np.allclose(np.asarray(layer.source.fold(read["zero temperature"])), wanted)


@pytest.mark.parametrize("drop", [[], ["mlp"]])
def test_collapse_multiplier_is_measured_by_tokens_that_nearly_coincide(drop):
    """Differences of tokens 1e-7 apart, run through the real block with its softmax."""
    encoder, _ = stored("albert")
    layer = tkf.encoders.idealise(encoder, drop=drop).layers[0]
    found = tkf.encoders.collapse(encoder.layers[0], drop=drop)
    assert np.isclose(measured_multiplier(layer, found.x), found.multiplier, rtol=0.02)


def test_temperature_agrees_with_loops():
    encoder, expected = stored("bert")
    found = tkf.encoders.temperature(encoder, list(expected["ids"]))
    layer, pattern = encoder.layers[1], expected["attention"][1]
    u, w = np.asarray(layer.fold(expected["states"][1])), layer.weights
    for h in range(4):
        lengths = [np.linalg.norm(np.asarray(w.B[h]).T @ a + np.asarray(w.score_bias[h])) for a in u]
        assert np.isclose(found.s[1, h], layer.beta * np.median(lengths))
        assert np.isclose(found.entropy[1, h], -np.mean(np.sum(pattern[h] * np.log(pattern[h]), axis=1)))
        assert np.isclose(found.top[1, h], np.mean(pattern[h].max(axis=1)))
    assert np.all(np.abs(found.zero_temperature) <= 1)


def changed(tmp_path, **settings):
    shutil.copytree(DATA / "bert", tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"auto_map": {"AutoModel": "mine.Model"}}, "never executed"),
        ({"is_decoder": True}, "encoder"),
        ({"model_type": "t5"}, "model_type"),
        ({"num_attention_heads": 5}, "divide"),
        ({"intermediate_size": 41}, "shape"),
        ({"num_hidden_layers": 4}, "encoder.layer.3"),
        ({"position_embedding_type": "relative_key"}, "absolute"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, settings, sentence):
    with pytest.raises(InputError, match=sentence):
        tkf.encoders.load(changed(tmp_path, **settings))


def test_pickles_and_empty_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match="config.json"):
        tkf.encoders.load(tmp_path)
    path = changed(tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(InputError, match="convert to safetensors"):
        tkf.encoders.load(path)


@pytest.mark.parametrize("ids", [[], [50], [-1], [1.5], list(range(21))])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(InputError, match="ids"):
        stored("bert")[0].hidden_states(ids)


@pytest.mark.parametrize(("dtype", "sentence"), [(np.int8, "quantised"), (np.float32, "finite")])
def test_quantised_weights_and_nan_are_refused(tmp_path, dtype, sentence):
    from safetensors.numpy import load_file, save_file

    path = changed(tmp_path)
    arrays = load_file(path / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    arrays[name] = np.full_like(arrays[name], np.nan) if dtype == np.float32 else arrays[name].astype(dtype)
    save_file(arrays, path / "model.safetensors")
    with pytest.raises(InputError, match=sentence):
        tkf.encoders.load(path)
