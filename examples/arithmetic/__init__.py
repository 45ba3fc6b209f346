"""The arithmetic task, the policy and the two algorithms of the demo; nothing here knows of declog."""
