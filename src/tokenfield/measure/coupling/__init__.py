"""How `wasserstein` finds its couplings: on the circle, by linear programs, through several scales."""
