"""`python -m fetchproxy` is the command `fetchproxy`."""

from fetchproxy.cli.main import main

if __name__ == "__main__":
    main()
