"""`cni-agent`: finds the command and imports only what that one needs."""

import sys


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:2] == ["validate"]:  # runs in every pod before the application: the standard library only
        from cni_agent import validate

        sys.exit(validate.main(sys.argv[2:]))
    from cni_agent.cli import cli

    cli(prog_name="cni-agent")


if __name__ == "__main__":
    main()
