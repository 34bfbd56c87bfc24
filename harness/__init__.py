"""The core: plans arms, runs each in a process of its own, keeps the records.

It imports no framework. An adapter in `backends` is reached by its name alone.
"""

__version__ = "0.1.0"
