"""The one form of error sentences."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield.errors import require


@pytest.mark.parametrize(
    "value", [np.zeros((30, 30)), tkf.AttentionWeights.identity(3), "a\nb", list(range(999))]
)
def test_a_sentence_is_one_line_whatever_the_value(value):
    with pytest.raises(tkf.InputError) as caught:
        require(False, "beta", "be one number", value)
    sentence = str(caught.value)
    assert sentence.startswith("`beta` must be one number, but was ")
    assert "\n" not in sentence
    assert len(sentence) < 300
