"""The exceptions of this package.

```
FaithfulSearchError
├── DialectError      an unknown dialect, or text that does not fit the one asked for
├── DataError         an unreadable file, a missing column, an empty corpus
├── ToolError         a tool that failed; its message is shown to the policy
├── TemplateError     a tokenizer whose chat template is missing or cannot be used
├── JudgeError        a judge that could not be asked
└── ConfigError       settings that contradict each other
```
"""


class FaithfulSearchError(Exception):
    """Base class: catch this to catch everything the package raises on purpose."""


class DialectError(FaithfulSearchError, ValueError):
    """An unknown dialect, or text that does not fit the dialect asked for."""


class DataError(FaithfulSearchError, ValueError):
    """Data that cannot be used: the message names the file, the row and what is missing."""


class ToolError(FaithfulSearchError):
    """A tool that failed in a way the policy should read about and act on."""


class TemplateError(FaithfulSearchError, ValueError):
    """A tokenizer without a usable chat template."""


class JudgeError(FaithfulSearchError):
    """A judge that gave no verdict; the reward abstains, it never scores 0 for it."""


class ConfigError(FaithfulSearchError, ValueError):
    """Settings that contradict each other or name something that does not exist."""
