"""``python -m wildtta``: the command line where its script is not on the path."""

from wildtta.cli import main

if __name__ == "__main__":
    main()
