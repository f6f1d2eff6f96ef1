"""A multi-stage streaming text-to-speech runtime that plans by playback deadlines."""

__version__ = "0.1.0"
