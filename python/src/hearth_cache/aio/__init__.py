"""The clients for asyncio. The build makes the blocking ones of them (hatch_build.py)."""
