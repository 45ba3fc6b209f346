"""The command line: ``declog VERB [HYDRA OVERRIDES...]``, one file per group of verbs."""
