"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("ab")(
    CommandEntry(
        "specbench_kit.studies.ab.command:ab",
        "Running servers",
        "Compare two running inference servers, such as speculation on and off, by the same requests in turns.",
        "Both are black boxes that stream: OpenAI's completions or chat, vLLM, SGLang, llama.cpp, TGI. The "
        "servers take turns request by request (ABBA). For a server to win, greedy outputs must be identical, and "
        "sampled ones alike in distribution. API keys are read from the environment variables SKIT_API_KEY_NAME, "
        "with the server's name, or SKIT_API_KEY.",
        example="skit ab plain=vllm://host:8000 spec=vllm://host:8001 --limit 50",
    )
)
