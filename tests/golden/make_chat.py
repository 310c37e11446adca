"""Writes data/chat.json: conversations rendered by Jinja2 as transformers renders them. Needs the package jinja2.

The templates have the shapes of public ones: Llama 3, ChatML, Mistral, Zephyr, Gemma, Phi-3, Llama 2.
"""
import json
import pathlib

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = {
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
              "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
              "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "chatml": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful "
              "assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
               "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
             "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
             "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}"
              "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and "
              "system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
              "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
              "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "newer": """{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0].content -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = "Today is a good day." -%}
    {%- set rest = messages -%}
{%- endif -%}
{{- bos_token ~ '<|system|>' ~ system ~ '\\n' }}
{#- a comment -#}
{%- set ns = namespace(users=0, last='') -%}
{%- for message in rest if message.content is defined and message.content is not none %}
    {%- if message.role == 'user' %}
        {%- set ns.users = ns.users + 1 %}
    {%- endif %}
    {%- set ns.last = message.role %}
  {{- '<|' + (message.role if message.role in ['user', 'assistant'] else 'other') + '|>' }}
  {{- message.content.split('</think>')[-1].lstrip('\\n') | replace('x', 'X') }}
{% endfor %}
{%- if not (ns.last == 'assistant') and add_generation_prompt is defined and add_generation_prompt -%}
    {{- '<|assistant|>' ~ ns.users ~ (messages | length > 2 and 'many' or 'few') ~ ({'a': [1, true, none], 'b': "q"} | tojson) -}}
{%- endif -%}""",
}
CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "Be brief. "), ("user", " Why? "), ("assistant", "<think>x</think>\n\nBecause."), ("user", "x & y \u00e9 {{ 1 }}")],
    [("user", "a"), ("assistant", "b")],
    [("assistant", "b"), ("assistant", "c")],
]


def main():
    def refuse(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    cases = []
    for name, template in TEMPLATES.items():
        for conversation in CONVERSATIONS:
            for prompt in (True, False):
                messages = [{"role": role, "content": content} for role, content in conversation]
                try:
                    text = environment.from_string(template).render(messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>")
                except TemplateError:
                    text = None
                cases.append({"name": name, "template": template, "messages": messages, "add_generation_prompt": prompt, "expected": text})
    target = pathlib.Path(__file__).parent / "data" / "chat.json"
    target.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
