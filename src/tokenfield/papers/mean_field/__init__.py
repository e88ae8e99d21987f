"""The mean field itself: what densities show that tokens cannot, and how far tokens are from it."""
