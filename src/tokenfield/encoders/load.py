"""Reading encoders: which tensor of a checkpoint is which part of a layer, for every family."""

from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from tokenfield.encoders.checkpoint import TrainedCheckpoint, open_checkpoint, strip_prefix
from tokenfield.encoders.encoder import Embedding, Encoder
from tokenfield.encoders.layer import EncoderLayer, FeedForward, SelfAttention
from tokenfield.encoders.layer_norm import LayerNorm
from tokenfield.errors import InputError, as_number, as_whole, require

#: Activations of files by their names in the library.
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}


@dataclass(frozen=True)
class Names:
    """How a family calls its settings and its tensors; `layer` holds {} for the number of the layer."""

    settings: dict[str, str]
    layer: str
    tensors: dict[str, str]
    embedding_norm: str
    has_types: bool


_BERT = Names(
    settings={
        "d": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
        "neurons": "intermediate_size",
        "activation": "hidden_act",
    },
    layer="encoder.layer.{}.",
    tensors={
        "Q": "attention.self.query",
        "K": "attention.self.key",
        "V": "attention.self.value",
        "O": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "W1": "intermediate.dense",
        "W2": "output.dense",
        "norm2": "output.LayerNorm",
    },
    embedding_norm="embeddings.LayerNorm",
    has_types=True,
)
FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": Names(
        settings={
            "d": "dim",
            "heads": "n_heads",
            "layers": "n_layers",
            "neurons": "hidden_dim",
            "activation": "activation",
        },
        layer="transformer.layer.{}.",
        tensors={
            "Q": "attention.q_lin",
            "K": "attention.k_lin",
            "V": "attention.v_lin",
            "O": "attention.out_lin",
            "norm1": "sa_layer_norm",
            "W1": "ffn.lin1",
            "W2": "ffn.lin2",
            "norm2": "output_layer_norm",
        },
        embedding_norm="embeddings.LayerNorm",
        has_types=False,
    ),
    "albert": Names(
        settings=_BERT.settings,
        layer="encoder.albert_layer_groups.0.albert_layers.0.",
        tensors={
            "Q": "attention.query",
            "K": "attention.key",
            "V": "attention.value",
            "O": "attention.dense",
            "norm1": "attention.LayerNorm",
            "W1": "ffn",
            "W2": "ffn_output",
            "norm2": "full_layer_layer_norm",
        },
        embedding_norm="embeddings.LayerNorm",
        has_types=True,
    ),
}


def load(path: str | Path) -> Encoder:
    """A trained encoder from a Hugging Face directory: config.json and safetensors, sharded or not.

    Pickles are not read, and code that a configuration asks for is never executed. Weights are kept in
    double precision.
    """
    checkpoint = open_checkpoint(path)
    kind = str(checkpoint.settings.get("model_type"))
    _check_kind(checkpoint, kind)
    names = FAMILIES[kind]
    checkpoint = strip_prefix(checkpoint, f"{kind}.", "embeddings.word_embeddings.weight")
    embedding = _embedding(checkpoint, names, kind)
    count = checkpoint.whole(names.settings["layers"])
    if kind == "albert":
        layers = _shared_layers(checkpoint, names, count)
    else:
        layers, source = [], embedding.norm
        for number in range(count):
            layers.append(_layer(checkpoint, names, names.layer.format(number), source))
            source = layers[-1].norm2
    return Encoder(embedding, tuple(layers), kind, kind == "albert", checkpoint.parameters())


def _check_kind(checkpoint: TrainedCheckpoint, kind: str) -> None:
    settings = checkpoint.settings
    if settings.get("is_encoder_decoder") or settings.get("is_decoder"):
        raise InputError(f"`path` must hold an encoder, but {kind} is here set up as a decoder")
    require(kind in FAMILIES, "model_type", f"be one of {', '.join(FAMILIES)}", repr(kind))
    positions = settings.get("position_embedding_type", "absolute")
    require(positions == "absolute", "position_embedding_type", "be absolute", repr(positions))
    if settings.get("quantization_config"):
        raise InputError("`config.json` must describe floating-point weights, but has a quantization_config")
    if kind == "albert":
        one = settings.get("num_hidden_groups", 1) == settings.get("inner_group_num", 1) == 1
        require(one, "num_hidden_groups", "be 1, and inner_group_num too: one shared layer", "another number")


def _norm(checkpoint: TrainedCheckpoint, name: str, d: int) -> LayerNorm:
    gain, bias = (checkpoint.take(f"{name}.{part}", d) for part in ("weight", "bias"))
    zero = np.flatnonzero(gain == 0)
    require(zero.size == 0, f"{name}.weight", "have no zero gain: folding divides by it", f"0 at {zero[:1]}")
    eps = as_number(checkpoint.settings.get("layer_norm_eps", 1e-12), "layer_norm_eps")
    return LayerNorm(jnp.asarray(gain), jnp.asarray(bias), eps)


def _embedding(checkpoint: TrainedCheckpoint, names: Names, kind: str) -> Embedding:
    d = checkpoint.whole(names.settings["d"])
    e = checkpoint.whole("embedding_size") if kind == "albert" else d
    words = checkpoint.take("embeddings.word_embeddings.weight", checkpoint.whole("vocab_size"), e)
    most = checkpoint.whole("max_position_embeddings")
    places = checkpoint.take("embeddings.position_embeddings.weight", most, e)
    if names.has_types:
        # every token is of the first type: one text
        types = checkpoint.whole("type_vocab_size")
        places = places + checkpoint.take("embeddings.token_type_embeddings.weight", types, e)[0]
    matrix = shift = None
    if kind == "albert":
        matrix = jnp.asarray(checkpoint.take("encoder.embedding_hidden_mapping_in.weight", d, e))
        shift = jnp.asarray(checkpoint.take("encoder.embedding_hidden_mapping_in.bias", d))
    padding = checkpoint.settings.get("pad_token_id", 1) if kind == "roberta" else -1
    first = as_whole(padding, "pad_token_id", -1) + 1
    norm = _norm(checkpoint, names.embedding_norm, e)
    return Embedding(jnp.asarray(words), jnp.asarray(places), norm, matrix, shift, first)


def _shared_layers(checkpoint: TrainedCheckpoint, names: Names, count: int) -> list[EncoderLayer]:
    """One layer, `count` times; from the second on its input was made by its own last norm."""
    own = _norm(checkpoint, names.layer + names.tensors["norm2"], checkpoint.whole(names.settings["d"]))
    return [_layer(checkpoint, names, names.layer, own)] * count


def _layer(checkpoint: TrainedCheckpoint, names: Names, start: str, source: LayerNorm) -> EncoderLayer:
    d, heads, neurons = (checkpoint.whole(names.settings[each]) for each in ("d", "heads", "neurons"))
    require(d % heads == 0, names.settings["heads"], f"divide the width {d}", heads)
    k = d // heads

    def matrix(part: str, rows: int, columns: int) -> tuple[jnp.ndarray, jnp.ndarray]:
        name = start + names.tensors[part]
        weight, bias = checkpoint.take(f"{name}.weight", rows, columns), checkpoint.take(f"{name}.bias", rows)
        return jnp.asarray(weight), jnp.asarray(bias)

    (Q, q), (K, p), (V, v) = (matrix(part, d, d) for part in "QKV")
    O, o = matrix("O", d, d)  # noqa: E741
    Q, K, V = (each.reshape(heads, k, d) for each in (Q, K, V))
    q, p, v = (each.reshape(heads, k) for each in (q, p, v))
    out = jnp.swapaxes(O.reshape(d, heads, k), 0, 1)
    attention = SelfAttention(Q, K, V, out, q, p, v, o, scale=k**-0.5)
    (W1, b1), (W2, b2) = matrix("W1", neurons, d), matrix("W2", d, neurons)
    activation = str(checkpoint.settings.get(names.settings["activation"], "gelu"))
    require(
        activation in ACTIVATION_NAMES, "activation", f"be one of {', '.join(ACTIVATION_NAMES)}", activation
    )
    mlp = FeedForward(W1, b1, W2, b2, ACTIVATION_NAMES[activation])
    norm1, norm2 = (_norm(checkpoint, start + names.tensors[part], d) for part in ("norm1", "norm2"))
    return EncoderLayer(attention, mlp, norm1, norm2, source)
