"""``python -m declog``: the command line."""

from declog.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
