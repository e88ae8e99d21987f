"""One module per paper: its experiments as named recipes."""
