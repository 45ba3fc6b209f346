"""One value of the training code: read, checked, copied."""
