"""Features in place of images in a run: its statistics are asked for once, whatever happens."""

import hashlib
from pathlib import Path
from typing import Any

from discreet.data import Data
from discreet.features.pipeline import Features, Pipeline
from discreet.features.pipeline import load as load_statistics
from discreet.features.pipeline import save as save_statistics
from discreet.ledger import Ledger
from discreet.release.batching import as_tensors
from discreet.runs.folder import NOISE, STATISTICS, remove, secret_noise, write
from discreet.runs.progress import Watch
from discreet.stages.plan import Plan


class FeaturedData:
    """Features in place of images: extracted at once, and whitened when the plan is known."""

    def __init__(self, pipeline: Pipeline, data: Data, watch: Watch) -> None:
        self._pipeline, self._data, self._watch = pipeline, data, watch
        self.shape = (self._pipeline.width(data.shape),)
        watch.stage("extracting features")
        self._train = self._extract("the training part", data.train)
        self._test = None if data.test is None else self._extract("the test part", data.test)

    def _extract(self, which: str, part: Any) -> Features:
        images, _ = as_tensors(part)
        return self._pipeline.extract(images, lambda d, n: self._watch.count(f"features of {which}", d, n))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee assumes of what makes the features."""
        return self._pipeline.assumptions

    def data(self, folder: Path, plan: Plan, ledger: Ledger) -> Data:
        """The rows that are trained on; statistics that were released before are taken from the folder."""
        path, pipeline = folder / STATISTICS, self._pipeline
        if path.is_file():
            fitted = load_statistics(pipeline, path)
        else:
            self._watch.stage("asking for the features' statistics")
            sampling = plan.sampling
            settings: Any = {"size": sampling.largest_batch_size, "adjacency": sampling.contract().adjacency}
            question = f"statistics of {settings['size']} rows' features, {settings['adjacency']}; {pipeline.whitening}"
            key = secret_noise(folder, question, self._digest)
            fitted = pipeline.fit(self._train, ledger, key=key, **settings)
            write(path, lambda scratch: save_statistics(fitted, scratch))
        remove(folder / NOISE)
        self._watch.stage("whitening features")
        data = self._data
        train = pipeline.rows(self._train, fitted), as_tensors(data.train)[1]
        test = None
        if self._test is not None and data.test is not None:
            test = pipeline.rows(self._test, fitted), as_tensors(data.test)[1]
        return Data(data.name, train, test, self.shape, data.classes, data.note)

    def _digest(self, key: bytes) -> str:
        """Of the images and of what makes features of them; it tells nothing without the key."""
        digest = hashlib.blake2b(repr(self._pipeline).encode(), key=key)
        images, _ = as_tensors(self._data.train)
        digest.update(repr((images.dtype, tuple(images.shape))).encode())
        digest.update(images.contiguous().numpy().data)
        return digest.hexdigest()
