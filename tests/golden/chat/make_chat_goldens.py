"""Records what `transformers` makes of conversations with chat templates of the shapes that models have.

    pip install transformers jinja2 gguf
    python make_chat_goldens.py [SmolLM2-135M-Instruct.Q4_1.gguf]

Writes chat.json and, with the GGUF file, smollm2_chat.json beside itself. The tokenizers are those in ../tokenizers.
"""

import importlib.metadata
import json
import pathlib
import sys

import jinja2
import transformers

HERE = pathlib.Path(__file__).resolve().parent

TEMPLATES = {
    # One header for each message, contents trimmed, a date; no system message unless given.
    "llama3": """\
{%- set today = strftime_now("") %}
{{- "<|begin_of_text|>" }}
{%- for message in messages %}
    {%- if message.role not in ["system", "user", "assistant"] %}
        {{- raise_exception("unknown role " + message.role) }}
    {%- endif %}
    {{- "<|im_start|>" ~ message["role"] ~ "<|im_end|>\\n\\n" + message["content"] | trim + "<|endoftext|>" ~ today }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant<|im_end|>\\n\\n" }}
{%- endif %}
""",
    # Turns must alternate; the system message goes into the first turn.
    "mistral": """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- "<s>" }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + "</s>" }}
    {%- endif %}
{%- endfor %}
""",
    # A default system message, a namespace, thoughts cut out of earlier answers, tools as JSON.
    "qwen2": """\
{%- set ns = namespace(count=0) %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- "\\n" }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {% set ns.count = ns.count + 1 %}
    {% if message.role == 'assistant' and '</think>' in message.content %}
        {% set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {% else %}
        {% set content = message.content %}
    {% endif %}
{% generation %}<|im_start|>{{ message.role }}
{{ content }}<|im_end|>
{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
""",
    "smollm": """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
}


def conversation(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


CONVERSATIONS = [
    conversation("Hello there!"),
    conversation("What is 12 + 34?", "46, of course.", "  And 7*8?\n"),
    conversation(
        "naïve 日本語 👩\u200d👩\u200d👧\r\n\t",
        "<think>hm</think>\n\nYes: n\u0303.",
        '{"a": [1, "<b>"]}\n\n\n',
    ),
    conversation("one", "two", "three", "four", "five"),
    [{"role": "system", "content": "You are a lighthouse."}, *conversation("Who are you?", "A lamp.")],
]


def record(tokenizer: transformers.PreTrainedTokenizerFast, **variables: object) -> list[dict]:
    cases = []
    for messages in CONVERSATIONS:
        for prompt in (False, True):
            case = {"messages": messages, "add_generation_prompt": prompt, **variables}
            case["text"] = tokenizer.apply_chat_template(
                messages, add_generation_prompt=prompt, tokenize=False, **variables
            )
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, **variables)
            case["ids"] = ids["input_ids"]
            cases.append(case)
    return cases


def made_by() -> str:
    return "make_chat_goldens.py: " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "tokenizers", "jinja2")
    )


def write(name: str, document: object) -> None:
    (HERE / name).write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")


def main() -> None:
    models = []
    for name, template in TEMPLATES.items():
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(HERE.parent / "tokenizers" / f"{name}.tokenizer.json"), chat_template=template
        )
        cases = record(tokenizer)
        if name == "qwen2":
            cases += record(tokenizer, tools=[{"name": "light", "is": "<on> & 'off' é"}])
        models.append({"tokenizer": name, "template": template, "cases": cases})
    write("chat.json", {"made_by": made_by(), "models": models})
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        write("smollm2_chat.json", {"made_by": made_by(), "cases": record(tokenizer)})


if __name__ == "__main__":
    print(made_by(), "jinja2", jinja2.__version__)
    main()
