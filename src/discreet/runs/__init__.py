"""A run from a configuration: files in, a folder out.

config.py     what a run's file may say, field by field
run.py        data, model, plan and optimizer from it; training, resuming, what the folder holds at the end
folder.py     the folder: its name, its files, its lock
progress.py   bars, signals, and who is told how a run goes
"""
