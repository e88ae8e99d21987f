"""Quantitative clustering (arXiv 2504.14697, Chen, Lin, Polyanskiy, Rigollet): how fast, and whether.

Attention with B = V = I climbs the energy E_β, whose maxima are single clusters. Near one it does so
exponentially fast; far from one it may wait exponentially long, or for ever. One module per recipe; theory §3
is the reference. The paper's examples are reconstructions where it does not print them.
"""
