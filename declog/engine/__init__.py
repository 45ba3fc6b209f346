"""The evaluation of a window in numpy: from frames of rows to records.

No torch, no threads, no files; imports the language and the plan.
"""
