"""The verbs of the command line: one file each, of its name. Nothing lists them: a file of this folder is a verb."""
