"""One run from claim to end, many of them side by side, and what died."""
