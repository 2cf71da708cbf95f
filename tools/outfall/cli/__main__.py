"""`python -m outfall.cli`, where the script `outfall` is not on the path."""

from outfall.cli import main

if __name__ == "__main__":
    main()
