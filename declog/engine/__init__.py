"""The evaluation of a window in numpy: from frames of rows to records.

It starts no thread and opens no file. Only `user_functions.by_tensors` imports torch, when it is called.
"""
