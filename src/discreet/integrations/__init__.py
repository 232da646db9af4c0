"""Other people's loops: each part needs the package it is named after, and nobody else imports it.

sklearn.py        scikit-learn's interface
fit_registry.py   which rows were fitted already in this process
lightning.py      a plan carried by Lightning
transformers/     Hugging Face's Trainer, made private
flower/           training at user level on many machines
"""
