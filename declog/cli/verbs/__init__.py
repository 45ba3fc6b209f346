"""The verbs of the command line. Each file in this folder is the verb of its name; no list names them."""
