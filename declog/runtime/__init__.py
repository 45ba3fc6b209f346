"""Everything that runs during training: the recorder, open batches, the worker, and the exchange between ranks.

The runtime knows the compiled plan, and nothing of the config that it was compiled from.
"""
