"""How much may be under way to a destination at a time."""

from __future__ import annotations

from outfall.async_sink.limiting.aimd import AimdLimiter
from outfall.async_sink.limiting.base import Answer, InFlight, Limiter
from outfall.async_sink.limiting.fixed import FixedLimiter
from outfall.async_sink.limiting.gradient import GradientLimiter

__all__ = ["AimdLimiter", "Answer", "FixedLimiter", "GradientLimiter", "InFlight", "Limiter"]
