"""Which draftmill this is: the version of the installed package, for `--version` and for reports."""

from __future__ import annotations


def installed_version() -> str:
    """As the package's metadata says it; of a source tree that was never installed, that."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("draftmill")
    except PackageNotFoundError:
        return "not installed"
