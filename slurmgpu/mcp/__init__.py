"""The server for assistants: tools that read, tools that act within a budget, and what is kept from an assistant.

Here: fields, budget, record of calls, masking of secrets; nothing else imports the library mcp.
Not here: what the tools do, which is the same as the commands of their names.
"""

from __future__ import annotations
