"""The messages of Hearth's API; proto/*.proto in the repository documents them."""

from hearth_cache.v1 import cache_store_pb2, inference_pb2, store_stats_pb2

__all__ = ["cache_store_pb2", "inference_pb2", "store_stats_pb2"]
