"""The look of all figures: matplotlib settings, colours and dash patterns."""

from typing import Any

#: The house style, in force while a figure is made and while it is written.
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.handlelength": 2.75,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.dpi": 200,
    "savefig.dpi": "figure",
    "pdf.fonttype": 42,
    "svg.hashsalt": "tokenfield",
}

#: Okabe and Ito's colours, those that read best on white first.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
#: Grey, for labels without a colour of their own.
OTHER = "#999999"
#: Dash patterns, one per line of `curves`, told apart without colour.
DASHES = (
    "-",
    (0, (7, 1.5)),
    (0, (1, 1.2)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (6, 1.5, 1, 1.5, 1, 1.5)),
    (0, (12, 3)),
    (0, (3, 1, 3, 3)),
    (0, (1, 3)),
)
#: Colours and dash patterns of predictions: black or grey, finely dashed.
PREDICTED_STYLES = (
    ("#000000", (0, (3, 2))),
    ("#777777", (0, (3, 2))),
    ("#000000", (0, (2, 4))),
    ("#777777", (0, (2, 4))),
)
