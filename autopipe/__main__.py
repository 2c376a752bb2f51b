"""``python -m autopipe`` is the command line."""

from autopipe.cli import main

if __name__ == "__main__":
    main()
