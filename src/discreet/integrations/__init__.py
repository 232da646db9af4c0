"""Other people's loops: each file needs the package it is named after, and nobody else imports it.

sklearn.py        scikit-learn's interface; fit_registry.py knows which rows were fitted already
lightning.py      a plan carried by Lightning
transformers.py   Hugging Face's Trainer, made private
flower.py         training at user level on many machines
"""
