"""nvrun: torchrun's command line, with every host looked at before the first rank starts."""

__version__ = "0.1.0"
