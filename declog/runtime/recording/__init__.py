"""The objects that a training loop calls: the recorder and its session; wrappers of steps and of reward functions."""
