"""Problems of files and overrides: where they are, and the edit that mends them, as a file or a shell takes it."""
