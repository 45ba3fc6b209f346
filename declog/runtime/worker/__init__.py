"""The threads beside the training thread: the worker, and on rank 0 the evaluation of all ranks' rows."""
