"""What a training loop calls: the recorder, its session, and who else may call it."""
