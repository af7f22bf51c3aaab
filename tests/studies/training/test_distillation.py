"""Answers kept on disk, and drafts trained on them."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.reduced_draft import is_reduced, load_draft, new_draft, save_draft
from specbench_kit.models.runner import Append, Runner
from specbench_kit.studies.training.answers.store import Answer, AnswerKey, AnswerStore
from specbench_kit.studies.training.answers.teach import require_fresh, teach
from specbench_kit.studies.training.distillation.batches import batches
from specbench_kit.studies.training.distillation.vocabulary import ReducedTargets, choose_size, choose_tokens, index_of
from specbench_kit.studies.training.distillation.walk import Acceptance, accepted_counts
from specbench_kit.studies.training.drafts.fit import DraftLoss
from specbench_kit.studies.training.drafts.options import DraftRecipe
from specbench_kit.studies.training.heads.fit import HeadLoss, new_head
from specbench_kit.studies.training.heads.options import HeadRecipe

KEY = AnswerKey("target", "prompts", 8, 0.5, 0, (0, 1, 2))
