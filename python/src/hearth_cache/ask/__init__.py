"""Answers many questions about one context: one prefill, and a call for each question.

    python -m hearth_cache.ask --context handbook.txt --questions questions.jsonl

docs/python.md describes the files.
"""
