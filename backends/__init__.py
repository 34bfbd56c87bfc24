"""One adapter per framework, and a fake one: translation of the step protocol, nothing else.

A framework is imported inside its adapter's constructor, never when a module here is imported.
"""
