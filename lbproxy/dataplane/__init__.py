"""The thin data plane that moves bytes: asyncio Protocols on uvloop, httptools as the parser."""
