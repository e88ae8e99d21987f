"""Writes the tiny random models beside this file, with the states that transformers computes for them.

Run once with torch and transformers installed; the tests read what it wrote and need neither.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers as tf

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
COMMON = {"vocab_size": 50, "max_position_embeddings": 20}
MODELS = {
    "bert": (tf.BertModel, tf.BertConfig(**SIZES, **COMMON)),
    "roberta": (tf.RobertaModel, tf.RobertaConfig(**SIZES, **COMMON, pad_token_id=1, layer_norm_eps=1e-5)),
    "distilbert": (
        tf.DistilBertModel,
        tf.DistilBertConfig(dim=24, n_layers=3, n_heads=4, hidden_dim=40, **COMMON),
    ),
    "albert": (tf.AlbertModel, tf.AlbertConfig(**SIZES, **COMMON, embedding_size=10)),
}
IDS = [3, 14, 15, 9, 2, 6, 5]


def main(out):
    for number, (kind, (model_class, config)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        config._attn_implementation = "eager"
        model = model_class(config).eval()
        with torch.no_grad():
            for name, value in model.named_parameters():
                # gains around 1, everything else large enough that softmax and GELU are far from linear
                value.copy_(
                    torch.randn_like(value) * 0.4
                    + (1.0 if "norm" in name.lower() and "weight" in name else 0.0)
                )
        model.save_pretrained(out / kind)
        with torch.no_grad():
            found = model.double()(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
        np.savez(
            out / f"{kind}.npz",
            ids=IDS,
            states=torch.stack(found.hidden_states)[:, 0].numpy(),
            attention=torch.stack(found.attentions)[:, 0].numpy(),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
