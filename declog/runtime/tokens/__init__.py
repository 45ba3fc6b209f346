"""Per-token values, folded per completion on the device they are on."""
