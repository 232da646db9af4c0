"""A trained model in use: what a run's folder holds of it, and what can be done with it.

manifest.py    model.json: how a file's rows become inputs, what network takes them, what its outputs are called
model.py       `discreet.load`: model, preprocessing, class names, guarantee; predictions
card.py        README.md: the model card
export.py      the same in one file for other programs, checked by equal outputs
torchscript.py, onnx.py, estimator.py     each kind of file
"""
