"""Documents of the web to paragraphs, read in processes that can be killed."""

from .base import Page, Paragraph, Reading
from .parsing import READABLE
from .workers import close, read

__all__ = ["READABLE", "Page", "Paragraph", "Reading", "close", "read"]
