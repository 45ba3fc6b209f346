"""A run as a whole: how it opens, what its folder says, its checkpoints, captures and failures."""
