"""How a token reads the field: the rules, and the sums they are made of."""
