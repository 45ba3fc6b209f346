"""What runs beside training: the recorder, the open batches, the worker, ranks.

Imports torch, the plan, the engine and the sinks; nothing of the configuration.
"""
