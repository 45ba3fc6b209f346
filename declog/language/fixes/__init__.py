"""What to write in place of a config that declog refuses: keys, values and expressions of other tools, and slips."""
