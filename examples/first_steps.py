# %% [markdown]
# # First steps
# Three tasks: compare policies on this machine, see them over a link, and keep a report.
# Run as a script, or cell by cell in an editor that knows the percent format.

# %%
import specbench_kit.api as skit

# %% [markdown]
# ## Compare policies
# Every method decodes the same prompts in turns; the table comes with intervals, and with what must be known first.

# %%
SMALL = {"limit": 6, "max_new_tokens": 24, "out": "results"}
result = skit.bench(["fixed-k:k=3", "threshold"], dataset="gsm8k", **SMALL)
for line in result.warnings:
    print(line)
print(result.headline)
table = result.to_pandas()
print(
    table[
        ["method", "speedup", "speedup_low", "speedup_high", "acceptance_length", "lossless_errors"]
    ]
)

# %% [markdown]
# ## The same tokens over a link
# Time is modelled from the deployment's latencies: nothing here depends on this machine.

# %%
for rtt_s in (0.005, 0.08):
    over_link = skit.bench(
        "fixed-k:k=3", deployment="specedge", replaced=[f"link.rtt_s={rtt_s}"], **SMALL
    )
    print(rtt_s, over_link.to_pandas()[["method", "speedup"]].to_string(index=False, header=False))

# %% [markdown]
# ## Keep a report
# Markdown, one HTML page, CSV, LaTeX and every figure.

# %%
files = result.report("report")
print(*files, sep="\n")
