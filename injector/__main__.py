"""`injector`: finds the command and imports only what that one needs."""


def main() -> None:
    """Entry point of the console script."""
    from injector.cli import cli

    cli(prog_name="injector")


if __name__ == "__main__":
    main()
