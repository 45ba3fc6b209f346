"""A run as a whole: its start, the facts in its folder, its sinks, checkpoints, captures and failures."""
