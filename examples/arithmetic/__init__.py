"""The arithmetic task, the policies and the algorithms of the demos; only `tabular` and `report` import declog."""
