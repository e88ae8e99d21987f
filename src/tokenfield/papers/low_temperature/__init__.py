"""Low temperature (arXiv 2605.10931, Alcalde, Bungert, Riedl, Roith): concentrate, stay, leave.

At low temperature tokens follow the zero-temperature flow to the dominant eigenspace of V Bᵀ, stay there for
a time like log β, and end in the dominant eigenspace of V. One module per recipe; theory §2 is the reference.
"""
