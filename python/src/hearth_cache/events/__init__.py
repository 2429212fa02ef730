"""Tells routers which prefixes a store has, in the events that vLLM publishes of its own cache.

    pip install './python[events]'
    python -m hearth_cache.events --store 127.0.0.1:7080

docs/scale-out.md (Routers) says what is published, and for whom.
"""
