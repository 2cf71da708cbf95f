"""`python -m outfall.cli`, for environments without the script `outfall` on the path."""

from outfall.cli import main

if __name__ == "__main__":
    main()
