# Every target sets up .venv first where that is needed; no virtual environment has to be active.
# PYTHON chooses the interpreter that .venv is made with: make PYTHON=python3.12 bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_LOG := $(VENV)/pip.log
# What pip says is shown only where it fails. Python compiles what is imported by itself, a small part of what is installed.
PIP_INSTALL = $(BIN)/python -m pip install --no-compile --constraint constraints.txt $(1) > $(PIP_LOG) 2>&1 || { cat $(PIP_LOG) >&2; exit 1; }

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Where this is set, every process compiles all that it imports anew, the kit and the tests too.
unexport PYTHONDONTWRITEBYTECODE
COMMA := ,

.PHONY: bench pages test test-fast test-slow test-all test-lowest flaky lint types compiled sanitize protocol mutants benchmark engine-test gpu-check soak reference reference-serving reference-live reference-ab reference-pair-replayed reference-pair-decoded pair-trace pair-trees long-trace pair-training reference-pair suite-results reference-field reproduce wheel policy-page docs docs-test clean

# A real model, or the small bundled pair where the model is out of reach: make bench OPTIONS='--limit 4'. Then policies on
# the recorded drafts of a larger pair, behind a link.
FIRST_RUN := bench --config first-run $(OPTIONS)
KNOWN_PAIR := bench --config known-pair $(REPLAY_OPTIONS)
OUT_OF_REACH := SMOLLM2 IS OUT OF REACH, AS THE LINE ABOVE SAYS. THE SMALL BUNDLED PAIR DECODES INSTEAD: ITS ANSWERS ARE \
	NONSENSE, AND ITS SPEEDUP IS NOT THAT OF A LANGUAGE MODEL.
bench: $(INSTALLED)
	@if $(BIN)/skit fetch smollm2; then echo "skit $(FIRST_RUN)" && $(BIN)/skit $(FIRST_RUN); \
	else echo "$(OUT_OF_REACH)" && $(BIN)/skit $(FIRST_RUN) --target bundled; fi
	@echo "skit $(KNOWN_PAIR)" && $(BIN)/skit $(KNOWN_PAIR)

# Several processes with one thread each: most models in the tests are too small to share between threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
SUMMARY := --durations=10 --durations-min=5

# Exit code 1 says that tests failed. Each of them is tried once more, alone, after all others: only what fails twice fails
# the run, and what passes now is printed under FLAKY.
test: $(INSTALLED)
	@$(PYTEST) $(SUMMARY) --cache-clear || { test $$? -eq 1 && $(SECOND_ATTEMPT); }
SECOND_ATTEMPT = echo 'second attempt: what failed, alone' && OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 1 --last-failed \
	--second-attempt --maxfail 5

# What a pull request waits for: everything but README commands, processes, distributions and installations.
test-fast: $(INSTALLED)
	$(PYTEST) $(SUMMARY) -m 'not docs and not slow and not nightly'

# The rest of `make test`.
test-slow: $(INSTALLED)
	$(PYTEST) $(SUMMARY) -m 'slow and not nightly'

# Every night: make test, what it leaves out because other tests cover most of it, and all commands of the documentation.
test-all: $(INSTALLED)
	$(PYTEST) $(SUMMARY) --timeout 900 -m ''

# The fast tests with the lowest versions that pyproject.toml allows: make test-lowest TORCH_BACKEND=cpu
# uv chooses them; TORCH_BACKEND is its name for a build of torch, which on Linux is else one for GPUs, of several GB.
LOWEST := build/lowest
TORCH_BACKEND ?=
test-lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(if $(TORCH_BACKEND),UV_TORCH_BACKEND=$(TORCH_BACKEND)) $(LOWEST)/bin/uv pip install --python $(LOWEST)/bin/python \
		--resolution lowest-direct --editable '.[all$(COMMA)dev]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto $(SUMMARY) -m 'not docs and not slow and not nightly'

# The fast tests five times, on a machine that is busy in every way: which of them fail now and then?
flaky: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/flaky.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror specbench_kit/models/executors/csrc/*.h specbench_kit/models/executors/csrc/*.cpp \
		specbench_kit/serving/csrc/*.h specbench_kit/serving/csrc/*.cpp

types: $(INSTALLED)
	$(BIN)/mypy

# Tests and libraries compiled to bytecode once, in place of once in every process of `make test`.
compiled: $(INSTALLED)
	@$(BIN)/python -m pytest --collect-only -n 0 > $(VENV)/collected.log || { cat $(VENV)/collected.log >&2; exit 1; }

# The native executor under the compiler's address, undefined-behaviour and thread sanitizers; a warning is an error.
sanitize: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/sanitize.py

# Python code for the wire protocol, by the oldest compiler whose code the supported versions of protobuf accept.
PROTOCOL := specbench_kit/live/protocol/verification.proto
protocol:
	$(PYTHON) -m venv build/protocol-venv
	build/protocol-venv/bin/python -m pip install --quiet 'grpcio-tools==1.74.*'
	build/protocol-venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOCOL)

# Not for CI: thousands of small faults, one after the other. make mutants ONLY='*__mutmut_*7' tries about a tenth.
mutants: $(INSTALLED)
	@$(call PIP_INSTALL,--editable '.[all$(COMMA)dev$(COMMA)mutants]')
	OMP_NUM_THREADS=1 $(BIN)/python scripts/mutants.py $(if $(ONLY),'$(ONLY)')

benchmark: $(INSTALLED)
	$(BIN)/python -m benchmarks

# With ADDRESS against an engine that serves the bundled target: make engine-test ENGINE=vllm ADDRESS=127.0.0.1:8000
# Without it policies run inside the engine, which ENGINE_PYTHON's environment holds beside the kit:
# make engine-test ENGINE=vllm ENGINE_PYTHON=vllm-env/bin/python TARGET=models/large POLICIES='suffix threshold'
ENGINE ?= vllm
ADDRESS ?=
ENGINE_PYTHON ?= $(BIN)/python
TARGET ?= specbench_kit/models/bundled/target
DRAFT ?= bundled
POLICIES ?= fixed-k:k=4 threshold suffix
engine-test: $(INSTALLED)
ifneq ($(ADDRESS),)
	$(BIN)/skit bench --server $(ENGINE)://$(ADDRESS) --target bundled --method fixed-k --dataset gsm8k --limit 6 \
		--out build/engine-test
else
	$(ENGINE_PYTHON) scripts/engine_test_$(ENGINE).py --target $(TARGET) --draft $(DRAFT) --out build/engine-test/inside \
		$(addprefix --method ,$(POLICIES))
endif

# The first minutes on a new GPU: less than nine, without a network, and at most nine small files in build/gpu-check.
# GPU_PYTHON is the Python of an environment with torch for that card: make gpu-check GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
gpu-check: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(INSTALLED))
	$(GPU_PYTHON) scripts/gpu_check.py --out build/gpu-check $(OPTIONS)

# Not for CI: many devices at one server for minutes, on this machine alone.
soak: $(INSTALLED)
	$(BIN)/python scripts/soak.py

REFERENCE := build/reference
REAL := --target smollm2
TASKS := $(REFERENCE)/tasks.jsonl
# A small model on this machine's own clock: all methods as they come, and batches. What they come to on a known pair behind
# links is made by reference-pair. The prompts come from SKIT_DATA_DIR.
reference: $(INSTALLED)
	rm -rf $(addprefix $(REFERENCE)/,local batch-sizes) $(addprefix results/reference/,measured batch-sizes)
	$(BIN)/skit fetch smollm2
	$(BIN)/python scripts/task_prompts.py --each 2 --out $(TASKS)
	$(BIN)/skit bench $(REAL) --method all --dataset $(TASKS) --max-new-tokens 48 --out $(REFERENCE)/local
	$(BIN)/python scripts/keep_result.py $(REFERENCE)/local/*-bench-* results/reference/measured
	$(BIN)/skit batch-sizes $(REAL) --method suffix:shared=false --method eagle --method fixed-k --method threshold --sizes 1,2,4,8 \
		--limit 16 --dataset everyday --max-new-tokens 48 --out $(REFERENCE)/batch-sizes
	$(BIN)/python scripts/keep_result.py $(REFERENCE)/batch-sizes/*-batch-sizes-* results/reference/batch-sizes
	for name in measured batch-sizes; do $(BIN)/skit report results/reference/$$name --format md,csv,svg || exit 1; done

# The bundled traces of a known pair, for whose recording an interrupted call goes on: about three hours on two cores.
PAIR := qwen2.5-coder
PAIR_TRACE := build/pair
pair-trace: $(INSTALLED)
	$(BIN)/skit fetch $(PAIR)
	$(BIN)/python scripts/pair_prompts.py --data-dir $(SKIT_DATA_DIR) --each 15 --out $(PAIR_TRACE)
	for half in report tune; do \
		$(BIN)/skit record --target $(PAIR) --executor native --dataset $(PAIR_TRACE)/eight-tasks-$$half.jsonl --max-draft 12 \
			--max-new-tokens 128 --share CC-BY-4.0 --resume --out $(PAIR_TRACE)/$$half.parquet || exit 1; \
	done

# Long answers with a thinking part: about an hour on two cores.
long-trace: $(INSTALLED)
	$(BIN)/skit fetch $(PAIR)
	$(BIN)/python scripts/reasoning_prompts.py --out $(PAIR_TRACE)/reasoning.jsonl
	$(BIN)/skit record --target $(PAIR) --dataset $(PAIR_TRACE)/reasoning.jsonl --max-draft 12 --max-new-tokens 2048 \
		--share CC-BY-4.0 --resume --out $(PAIR_TRACE)/$(PAIR)-long.parquet
	$(BIN)/python scripts/long_acceptance.py $(PAIR_TRACE)/$(PAIR)-long.parquet --target $(PAIR) --out $(PAIR_REPORTS)/long.md

# Trees for the first requests of the half for reports, whose answers are cut to 32 tokens.
pair-trees: $(INSTALLED)
	$(BIN)/skit fetch $(PAIR)
	$(BIN)/python scripts/pair_trees.py --trace $(PAIR) --requests 45 --tokens 32 --out $(PAIR_TRACE)/trees.parquet

# What the kit knows of that pair, from the half for tuning: a predictor, and options for every deployment that drafts at an
# edge. The reports are made from the other half.
EDGES := specedge adaspec-33b-4xa100 adaspec-70b-8xa100 adaspec-7b-a100 adaspec-7b-l40 adaspec-a100 adaspec-l40 raspberry-pi \
	specedge-14b vllm-rtx4090 wan wisp-14b-roofline wisp-roofline
PAIR_FILES := specbench_kit/models/bundled/$(PAIR)
PAIR_CLOCKS := wan specedge wisp-roofline
PAIR_REPORTS := results/reference/pair
pair-training: $(INSTALLED)
	$(BIN)/skit train-predictor --trace $(PAIR)-tune $(addprefix --deployment ,$(EDGES)) --trials 6 --repeats 3 \
		--save-to $(PAIR_TRACE)/predictor --out $(PAIR_TRACE)
	cp $(PAIR_TRACE)/predictor/* specbench_kit/predictors/bundled/$(PAIR)/
	for clock in local $(EDGES); do \
		$(BIN)/skit tune --method all --replay $(PAIR)-tune --deployment $$clock --out $(PAIR_TRACE)/tuned/$$clock.json && \
		cp $(PAIR_TRACE)/tuned/$$clock.json $(PAIR_FILES)/tuned/ || exit 1; \
	done

# Every method as it comes and tuned, and learned stop rules beside thresholds; then longer links and larger batches, with
# methods that count the link as they come and with link=false; and the fastest method by task. Last what the models have
# to decode: sampled answers, and a pipeline, on two prompts of each task.
RULES := $(addprefix --method ,fixed-k:k=6 wisp wisp:send_last=true wisp:send_last=true,score=cumulative \
	specdecpp:max_draft=12 threshold:threshold=0.4483,max_draft=10 margin:threshold=0.08,max_draft=12 reachable \
	oracle:max_draft=12)
LENGTHS := $(addprefix fixed-k:k=,2 4 6 8 12)
COUNT_LINK := reachable adaspec goodput vllm-adaptive sglang-throughput delay-optimal:k_max=12 measured-link \
	flexspec:max_draft=12
WITH_AND_WITHOUT_LINK := $(foreach method,$(COUNT_LINK),$(method) \
	$(method)$(if $(findstring :,$(method)),$(COMMA),:)link=false)
LINKS := 0,0.02,0.04,0.08,0.16,0.3
OVER_LINKS := $(addprefix --method ,$(LENGTHS) threshold:max_draft=12 svip:max_draft=12 $(WITH_AND_WITHOUT_LINK))
IN_BATCHES := $(addprefix --method ,$(LENGTHS) threshold:max_draft=12 tetris adaspec goodput measured-link \
	batch-lengths:lengths=6-6-8-9,sizes=1-2-4-32)
BY_TASK := $(addprefix --method ,fixed-k:k=4 threshold:max_draft=12 wisp:send_last=true,score=cumulative adaspec \
	measured-link suffix)
SAMPLED := $(addprefix --method ,fixed-k:k=4 fixed-k:k=8 block-verification threshold:max_draft=12 adaspec \
	wisp:send_last=true,score=cumulative suffix)
PIPELINED := $(addprefix --method ,specpipe fixed-k:k=4 threshold:max_draft=12 suffix)
# What a trace of one draft model cannot replay: drafts without a model or of one forward, what is sent of them, rules
# that change outputs, and a draft model with another tokenizer.
HYBRIDS := $(addprefix --method ,fixed-k:k=4 fixed-k:k=8$(COMMA)drafter=block lookahead token-recycling \
	sparse-quantised adaptive-quantised ssd prompt-lookup)
QUANTISED := $(addprefix --method ,fixed-k:k=4 sparse-quantised adaptive-quantised)
# The corpus are the answers to the half for tuning.
RETRIEVAL := $(addprefix --method ,fixed-k:k=4 suffix)
EARLY_EXIT := --draft early-exit:21 $(addprefix --method ,fixed-k:k=1 fixed-k:k=2)
LOSSY := $(addprefix --method ,fixed-k:k=8 threshold:max_draft=12)
TOKENIZERS := --draft smollm2 $(addprefix --method ,fixed-k:k=4 fixed-k:k=4$(COMMA)drafter=slem)
TWO_EACH := $(PAIR_TRACE)/two-of-each-task.jsonl
DECODED := --target $(PAIR) --dataset $(TWO_EACH) --max-new-tokens 48
# Trees of which the trace holds what they ask for in batches too, and chains beside them.
TREES_TOGETHER := $(addprefix --method ,eagle2-tree opt-tree sequoia specinfer reachable adaspec threshold fixed-k:k=4 \
	suffix)
# The result that a benchmark of several methods has written, and the page that is made from it.
KEEP_REPORT = to=$(PAIR_REPORTS)/$$report && \
	$(BIN)/python scripts/keep_result.py $(PAIR_TRACE)/reports/$$report/*-bench-* $$to && \
	$(BIN)/skit report $$to --format md,csv,svg
PAIR_SWEEP := $(BIN)/skit sweep --replay $(PAIR) --deployment wan
reference-pair: reference-pair-replayed reference-pair-decoded

# What the recorded traces alone give: about half an hour on two cores, without a model.
reference-pair-replayed: $(INSTALLED)
	rm -rf $(PAIR_TRACE)/reports
	for clock in $(PAIR_CLOCKS); do \
		$(BIN)/skit bench --replay $(PAIR) --method all --deployment $$clock --out $(PAIR_TRACE)/reports/$$clock && \
		$(BIN)/skit bench --replay $(PAIR) --method all --tuned auto --deployment $$clock \
			--out $(PAIR_TRACE)/reports/$$clock-tuned && \
		$(BIN)/skit bench --replay $(PAIR) $(RULES) --deployment $$clock --out $(PAIR_TRACE)/reports/predictor-$$clock && \
		$(BIN)/skit bench --replay $(PAIR)-trees --method all --deployment $$clock --out $(PAIR_TRACE)/reports/trees-$$clock && \
		for report in $$clock $$clock-tuned predictor-$$clock trees-$$clock; do $(KEEP_REPORT) || exit 1; done || exit 1; \
	done
	cp $(PAIR_TRACE)/reports/wan/*-bench-*/report.tex $(PAIR_REPORTS)/wan
	for size in 8 32; do \
		report=trees-wan-$$size && $(BIN)/skit bench --replay $(PAIR)-trees $(TREES_TOGETHER) --deployment wan \
			--batch-size $$size --out $(PAIR_TRACE)/reports/$$report && $(KEEP_REPORT) || exit 1; \
	done
	for size in 1 8; do \
		$(PAIR_SWEEP) --set link.rtt_s=$(LINKS) $(OVER_LINKS) --batch-size $$size \
			--out $(PAIR_TRACE)/reports/link-batch-$$size || exit 1; \
	done
	for size in 1 2 4 8 16 32; do \
		$(PAIR_SWEEP) --set link.rtt_s=0.01407,0.04 $(IN_BATCHES) --batch-size $$size \
			--out $(PAIR_TRACE)/reports/batch-$$size || exit 1; \
	done
	for report in link-batch-1 link-batch-8 $(addprefix batch-,1 2 4 8 16 32); do \
		mkdir -p $(PAIR_REPORTS)/$$report && \
		cp $(PAIR_TRACE)/reports/$$report/*/sweep.csv $(PAIR_REPORTS)/$$report || exit 1; \
	done
	$(BIN)/python scripts/fastest_by_task.py $(PAIR) --deployment wan --rtts 0,0.01,0.02,0.04,0.08,0.16,0.3 $(BY_TASK) \
		--out $(PAIR_REPORTS)/tasks
	$(BIN)/python scripts/trace_acceptance.py $(PAIR) --out $(PAIR_REPORTS)/acceptance.md
	$(BIN)/python scripts/written_pages.py

# The pages of all results that are kept beside them, without a model or a measurement: what a change of wording takes.
pages: $(INSTALLED)
	$(BIN)/python scripts/batches_and_speculation.py --out results/reference/batches
	for result in $$(find results/reference -name result.json.xz -o -name summary.json.xz -o -name ab.json.xz); do \
		$(BIN)/skit report $$(dirname $$result) --format md,csv,svg || exit 1; \
	done
	$(BIN)/skit report results/reference/papers --format md
	$(BIN)/skit report results/reference/field --format md,csv,svg
	$(BIN)/python scripts/live_reference.py --pages
	$(BIN)/python scripts/trace_acceptance.py $(PAIR) --out $(PAIR_REPORTS)/acceptance.md
	$(BIN)/python scripts/long_acceptance.py $(PAIR)-long --target $(PAIR) --out $(PAIR_REPORTS)/long.md
	$(BIN)/python scripts/written_pages.py

# Servers behind links, and the simulator beside a server: about an hour on two cores without other work.
reference-live: $(INSTALLED)
	rm -rf build/reference/live results/reference/live
	$(BIN)/skit fetch smollm2
	$(BIN)/skit fetch $(PAIR)
	$(BIN)/python scripts/live_reference.py

# Two servers of llama.cpp in turns, plain and speculating: ten minutes, with the package xllamacpp.
reference-ab: $(INSTALLED)
	$(BIN)/skit fetch smollm2
	$(BIN)/skit fetch $(PAIR)
	rm -rf results/reference/ab/plots results/reference/ab/$(PAIR)
	$(BIN)/python scripts/ab_reference.py
	$(BIN)/python scripts/written_pages.py

# What the models have to decode, in the time of a deployment.
reference-pair-decoded: $(INSTALLED)
	$(BIN)/skit fetch $(PAIR)
	$(BIN)/python scripts/pair_prompts.py --data-dir $(SKIT_DATA_DIR) --each 15 --out $(PAIR_TRACE)
	head -n 16 $(PAIR_TRACE)/eight-tasks-report.jsonl > $(TWO_EACH)
	$(BIN)/skit bench $(DECODED) $(SAMPLED) --deployment specedge --temperature 0.7 --out $(PAIR_TRACE)/reports/sampled
	$(BIN)/skit bench $(DECODED) $(PIPELINED) --deployment specpipe --out $(PAIR_TRACE)/reports/pipeline
	$(BIN)/skit bench $(DECODED) $(HYBRIDS) --deployment specedge --out $(PAIR_TRACE)/reports/hybrids
	$(BIN)/skit bench $(DECODED) $(LOSSY) --method fixed-k:k=4 --lossy typical --deployment specedge \
		--out $(PAIR_TRACE)/reports/typical
	$(BIN)/skit bench $(DECODED) $(LOSSY) --lossy fly --deployment specedge --out $(PAIR_TRACE)/reports/fly
	$(BIN)/skit bench $(DECODED) $(TOKENIZERS) --deployment specedge --out $(PAIR_TRACE)/reports/tokenizers
	$(BIN)/skit bench $(DECODED) $(QUANTISED) --deployment specedge --temperature 0.7 --out $(PAIR_TRACE)/reports/quantised
	$(BIN)/skit bench --replay $(PAIR)-tune --method fixed-k:k=1 --deployment specedge --out $(PAIR_TRACE)/corpus
	$(BIN)/skit bench $(DECODED) --method rest:corpus=$$(echo $(PAIR_TRACE)/corpus/*/requests.jsonl) $(RETRIEVAL) \
		--deployment specedge --out $(PAIR_TRACE)/reports/retrieval
	$(BIN)/skit bench $(DECODED) $(EARLY_EXIT) --deployment local --out $(PAIR_TRACE)/reports/early-exit
	for report in sampled pipeline hybrids typical fly tokenizers quantised retrieval early-exit; do $(KEEP_REPORT) || exit 1; done
	$(BIN)/python scripts/written_pages.py

# The rows of the kit's own policies on suite v1, one file each: about twenty minutes on two cores.
SUITE := specbench_kit/studies/suite/v1/results
suite-results: $(INSTALLED)
	$(BIN)/skit suite run v1 --method all --jobs 2 --submit $(SUITE) --resume --out build/suite

CLASSES := --slo class-1:0.25,class-2:0.25,class-3:0.25,class-4:0.25 --kv-tokens unlimited
SCHEDULERS := --system wisp-cache --scheduler fcfs --scheduler edf --scheduler edf:by=promise \
	--scheduler wisp-promise --scheduler wisp-paper --scheduler wisp-paper:late_lane=true \
	--scheduler wisp-paper:late_lane=true,amortise=6 --label fcfs --label edf --label edf-by-promise \
	--label wisp-promise --label paper --label paper-late-lane --label paper-late-lane-amortised
FITTED := --deployment wisp-roofline --acceptance iid:alpha=0.8,length=4 --prompt-tokens 500 --output-tokens 100 \
	--duration 100 --warm-up 20 --devices 70,85,100 --seeds 5
HELD_OUT := --deployment wisp-14b-roofline --acceptance iid:alpha=0.7,length=5 --prompt-tokens 1000 \
	--output-tokens 150 --arrivals closed:think_s=3,ramp_s=30,exponential=true --duration 100 --warm-up 40 \
	--devices 150,200 --max-batch 128 --seeds 5
SIMULATE := $(BIN)/skit simulate $(SCHEDULERS) $(CLASSES) --out build/reference
reference-serving: $(INSTALLED)
	rm -rf build/reference/schedulers build/reference/schedulers-held-out
	$(SIMULATE)/schedulers $(FITTED)
	$(SIMULATE)/schedulers-held-out $(HELD_OUT)
	for name in schedulers schedulers-held-out; do \
		$(BIN)/python scripts/keep_result.py build/reference/$$name/* results/reference/$$name && \
		$(BIN)/skit report results/reference/$$name --format md,csv,svg || exit 1; \
	done
	$(BIN)/python -m benchmarks serving_log --out results/reference/serving_log
	$(BIN)/python -m benchmarks step_times --out results/reference/step_times
	$(BIN)/python -m benchmarks steps --out results/reference/steps

PAIRS := --target synthetic --draft synthetic:spread=0.5 --deployment specedge \
	--set draft.ranks=0.3,0.5,0.7,0.9,0.5+0.25+0.12,0.7+0.15+0.08 --set link.rtt_s=0.005,0.05,0.2
# Tables that others measured on servers, predicted: five minutes.
reference-field: $(INSTALLED)
	$(BIN)/skit reproduce field --to results/reference/field
	rm results/reference/field/*.html results/reference/field/plots/*.png

# The experiments of the papers, published numbers beside ours; the searches for capacity take most of the time.
reproduce: $(INSTALLED)
	rm -rf build/reference/policy-map
	$(BIN)/skit reproduce all --to results/reference/papers && rm results/reference/papers/*.html
	$(BIN)/skit sweep $(PAIRS) --method fixed-k:k=1 --method fixed-k:k=4 --method threshold --method specinfer \
		--method specedge --limit 3 --max-new-tokens 64 --out build/reference/policy-map
	$(BIN)/python scripts/keep_result.py build/reference/policy-map/* results/reference/policy-map
	$(BIN)/skit report results/reference/policy-map --format md,csv,svg

# With the native executor for this kind of processor; without a compiler, one that leaves it out.
wheel: $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

# docs/policies.md, from the docstrings of the code.
policy-page: $(INSTALLED)
	$(BIN)/python scripts/policy_page.py

# The site, in build/site; a warning is an error.
docs: $(INSTALLED)
	@$(call PIP_INSTALL,--editable '.[all$(COMMA)dev$(COMMA)docs]')
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Not for CI: the commands of the documentation that make test only parses; long ones as they are written.
docs-test: $(INSTALLED)
	$(BIN)/python -m pytest --timeout 900 -m docs tests/test_readme.py

clean:
	rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and by itself: pip then takes the CPU build where the package index or a link offers one.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard specbench_kit/models/executors/csrc/*.h specbench_kit/models/executors/csrc/*.cpp \
		specbench_kit/serving/csrc/*.h specbench_kit/serving/csrc/*.cpp)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "specbench-kit needs Python 3.11 or newer: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "[1/3] making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing $$(grep '^torch==' constraints.txt), the largest download"
	@$(call PIP_INSTALL,torch)
	@echo "[3/3] installing specbench-kit and what it needs"
	@$(call PIP_INSTALL,--editable '.[all$(COMMA)dev]')
	@touch $@
