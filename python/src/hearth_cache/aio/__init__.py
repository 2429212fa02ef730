"""The asyncio clients. The build makes the blocking clients from them (hatch_build.py)."""
