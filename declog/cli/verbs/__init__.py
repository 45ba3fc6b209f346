"""The verbs of the command line. Each module in this folder is the verb of its name; there is no list of verbs."""
