"""The lab: watch tokens live in a browser (`tokenfield lab`)."""
