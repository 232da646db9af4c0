# The public names, listed once: what is imported here is what `discreet` has (see __init__.py).
from discreet import accounting as accounting
from discreet import audit as audit
from discreet import data as data
from discreet import distributed as distributed
from discreet import features as features
from discreet import federated as federated
from discreet import gradients as gradients
from discreet import integrations as integrations
from discreet import ledger as ledger
from discreet import models as models
from discreet import nn as nn
from discreet import papers as papers
from discreet import release as release
from discreet import report as report
from discreet import runs as runs
from discreet import stages as stages
from discreet import training as training
from discreet import tuning as tuning
from discreet.accounting.calibrate import calibrate as calibrate
from discreet.accounting.guarantee import Claim as Claim
from discreet.accounting.guarantee import Condition as Condition
from discreet.accounting.guarantee import Guarantee as Guarantee
from discreet.accounting.tuning import Tuning as Tuning
from discreet.accounting.tuning import tuning_cost as tuning_cost
from discreet.audit import sanity
from discreet.errors import BudgetExhausted as BudgetExhausted
from discreet.errors import ConfigError as ConfigError
from discreet.errors import PrivacyError as PrivacyError
from discreet.integrations import lightning as lightning
from discreet.integrations import sklearn as sklearn
from discreet.integrations import transformers as transformers
from discreet.ledger import Ledger as Ledger
from discreet.ledger.verification import verify as verify
from discreet.release import collate as collate
from discreet.release.attachment import attach as attach
from discreet.release.preflight.check import preflight as preflight
from discreet.release.private import Private as Private
from discreet.runs.trained.model import load as load
from discreet.stages import bounds as bounds
from discreet.stages import noise as noise
from discreet.stages import presets
from discreet.stages.bounds import AdaptiveClip as AdaptiveClip
from discreet.stages.bounds import AutomaticClip as AutomaticClip
from discreet.stages.bounds import BoundedNetwork as BoundedNetwork
from discreet.stages.bounds import Clip as Clip
from discreet.stages.bounds import Encode as Encode
from discreet.stages.bounds import PerLayerClip as PerLayerClip
from discreet.stages.bounds import RadialTanh as RadialTanh
from discreet.stages.bounds import ScaledTanh as ScaledTanh
from discreet.stages.bounds import Tanh as Tanh
from discreet.stages.denoise import JamesStein as JamesStein
from discreet.stages.denoise import Kalman as Kalman
from discreet.stages.denoise import KolmogorovSmirnov as KolmogorovSmirnov
from discreet.stages.denoise import Score as Score
from discreet.stages.mechanism import Mechanism as Mechanism
from discreet.stages.noise import AirySquared as AirySquared
from discreet.stages.noise import BandedGaussian as BandedGaussian
from discreet.stages.noise import BLTGaussian as BLTGaussian
from discreet.stages.noise import Cauchy as Cauchy
from discreet.stages.noise import Gaussian as Gaussian
from discreet.stages.noise import Laplace as Laplace
from discreet.stages.noise import Logistic as Logistic
from discreet.stages.noise import Sech as Sech
from discreet.stages.noise import StudentT as StudentT
from discreet.stages.noise import VarianceGamma as VarianceGamma
from discreet.stages.plan import Plan as Plan
from discreet.stages.sampling import Allocation as Allocation
from discreet.stages.sampling import CyclicPoisson as CyclicPoisson
from discreet.stages.sampling import FixedBatches as FixedBatches
from discreet.stages.sampling import FixedOrder as FixedOrder
from discreet.stages.sampling import FixedSize as FixedSize
from discreet.stages.sampling import MinSeparation as MinSeparation
from discreet.stages.sampling import Poisson as Poisson
from discreet.stages.sampling import Shuffled as Shuffled
from discreet.stages.sampling import WeightedPoisson as WeightedPoisson
from discreet.training import losses as losses
from discreet.training.checkpoint import load_checkpoint as load_checkpoint
from discreet.training.checkpoint import save_checkpoint as save_checkpoint
from discreet.training.loop import fit as fit

checks = sanity
methods = presets

__version__: str
