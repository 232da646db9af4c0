"""The script that makes the kept values is no test."""

collect_ignore = ["make.py"]
