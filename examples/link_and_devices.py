# %% [markdown]
# # A link, and many devices
# Where does a policy stop paying as the round trip grows, and how many devices can share one verifier?
# Run as a script, or cell by cell in an editor that knows the percent format.

# %%
import specbench_kit.api as skit

# %% [markdown]
# ## Over round trips
# A trace of the bundled pair is recorded once and replayed at every point of the grid.

# %%
SMALL = {"limit": 2, "max_new_tokens": 16, "out": "results"}
swept = skit.sweep(
    ["fixed-k:k=2", "threshold:max_draft=4"],
    deployment="wan",
    replaced="link.rtt_s=0.01,0.08",
    **SMALL,
)
print(swept.to_pandas()[["link.rtt_s", "method", "speedup"]])
print(swept.report)

# %% [markdown]
# ## Many devices
# What is accepted is a stated rate here; a trace of `skit record` or the folder of a run serves as well.

# %%
served = skit.simulate(
    ["wisp", "sled"],
    devices=[4, 8],
    acceptance="iid:alpha=0.8,length=4",
    duration_s=10,
    warmup_s=2,
    seeds=1,
    jobs=1,
    prompt_tokens=50,
    output_tokens=20,
    out="results",
)
print(served.to_pandas()[["series", "devices"]])
print(served.report)
