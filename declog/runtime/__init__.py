"""Everything that runs during training: the recorder, open batches, the worker, and the exchange between ranks.

The runtime executes the compiled plan. It imports nothing that composes or compiles a config.
"""
