"""Publishes which prefixes a store has, as vLLM's KV events, for routers.

    pip install './python[events]'
    python -m hearth_cache.events --store 127.0.0.1:7080

docs/scale-out.md (Routers) describes the events and the routers.
"""
