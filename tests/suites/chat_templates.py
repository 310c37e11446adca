"""Compares heed's rendering of chat templates with transformers' own.

    PYTHONPATH=build/release/apps/python python tests/suites/chat_templates.py [--write tests/golden/data/chat_templates.json]

Needs the package transformers. The templates are our own, made of what public ones are made of (loops, namespaces, macros, tools, tool
calls, parts of content); the conversations have tools, calls, answers of tools, and texts with odd characters. Small
expressions cover every filter, test and method that heed knows, one by one. Prints what differs and exits with 1. --write keeps what
transformers gave, with a date that stays, for the tests.
"""
import argparse
import itertools
import json
import pathlib
import sys

import heed
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    "tools": """{%- macro listed(tool) -%}
* {{ tool.function.name }}({{ tool.function.parameters.properties | map('string') | join(', ') }}): {{ tool.function.description | trim }}
{%- endmacro -%}
{%- set state = namespace(answers=0) -%}
{%- if tools is defined and tools -%}
[tools]{% for tool in tools %}
{{ listed(tool) }}
{{ tool | tojson(indent=2) }}{% endfor %}[/tools]
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- set state.answers = state.answers + 1 -%}
[answer {{ state.answers }}]{{ message.content }}[/answer]
{% elif message.tool_calls is defined and message.tool_calls -%}
{%- for call in message.tool_calls -%}
[call {{ loop.index0 }} of {{ loop.length }}]{{ call.function.name }} {{ call.function.arguments | tojson }}[/call]
{% endfor -%}
{%- else -%}
[{{ message.role | upper }}]{{ message.content if message.content is string else message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') }}
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}[ASSISTANT]{% endif -%}""",
    "last": """{% set first = messages[0] %}{% if first['role'] == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{% for message in rest[::-1] %}{% if loop.index > 3 %}{% break %}{% endif %}{{ loop.revindex }}/{{ message['role'] }}: {{ (message['content'] or '-') | string | length }}
{% endfor %}{% if date_string is defined %}{{ date_string }}{% else %}{{ eos_token }}{% endif %}""",
    "generation": """{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}
{% continue %}{% endif %}
{% if loop.index > 5 %}{% break %}{% endif %}
  {% set shown %}
    <{{ message.role }}>{{ message.content | string | trim }}
  {% endset %}
  {{ shown | upper if message.role == 'nobody' else shown }}
{% else %}nothing{% endfor %}
{%+ if add_generation_prompt %}  go +%}
{% endif %}
""",
}

SMALL = [
    "{{ [3, 1, 2] | sort }}", "{{ [3, 1, 2] | sort(reverse=true) | first }}", "{{ ['b', 'A', 'c'] | sort | join('-') }}", "{{ [1, 2, 2, 3] | unique | list }}",
    "{{ [1, 2, 3] | sum }}", "{{ [1, 5, 3] | max }} {{ [4, 2] | min }}", "{{ messages | map(attribute='role') | list }}", "{{ messages | map(attribute='none', default='?') | join(',') }}",
    "{{ ['a', 'b'] | map('upper') | join }}", "{{ messages | selectattr('role', 'eq', 'user') | map(attribute='role') | list | length }}",
    "{{ messages | rejectattr('tool_calls', 'defined') | list | length }}", "{{ [1, 2, 3, 4] | select('odd') | list }}", "{{ [1, 2, 3, 4] | reject('divisibleby', 2) | list }}",
    "{{ [0, 1, '', 'a', none] | select | list }}", "{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}", "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[::-1] }}{{ 'abcdef'[1:5:2] }}{{ [1, 2, 3][:-1] }}",
    "{{ {'b': 1, 'a': [1, none, true, 1.5, 'x\\'y']} }}", "{{ 'x' * 3 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ 1.5 + 1 }}",
    "{{ 1 + 2 ~ 'x' if false else 'y' ~ 1 + 1 | string }}", "{{ 1 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 != 2 }}", "{{ 'a' in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ 'z' not in 'abc' }}",
    "{{ '%s is %d' | format('x', 3) }} {{ '%s-%s' % ('a', 'b') }}", "{{ 'a b  c' .split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}", "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\u00a0y\\u3000'.strip() }}|",
    "{{ 'Hello'.lower() }}{{ 'Hello'.upper() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ 'hello' | capitalize }}", "{{ 'abcabc'.replace('b', 'X') }}{{ 'abcabc'.replace('b', 'X', 1) }}{{ 'aab' | replace('a', 'b') }}",
    "{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ 'abcabc'.rfind('b') }}{{ 'abcabc'.count('b') }}", "{{ 'a\\nb\\r\\nc'.splitlines() }}", "{{ '-'.join(['a', 'b']) }}", "{{ '12'.isdigit() }}{{ '1a'.isdigit() }}{{ 'ab'.isalpha() }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.txt'.removesuffix('.txt') }}", "{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('c') }}", "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 'c') }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
    "{{ '12' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 2.6 | int }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }}", "{{ none | default('x') }} {{ none | default('x', true) }} {{ nobody | default }}|{{ nobody | d('y') }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\nb' | indent(width=3, first=true) }}", "{{ [1, [2, {'a': 'ü\"<>&'}]] | tojson }}", "{{ {'b': [1, 2], 'a': {}} | tojson(indent=2) }}", "{{ {'b': [], 'a': 'ü😀'} | tojson(ensure_ascii=true, sort_keys=true) }}",
    "{{ 1.0 }} {{ 0.1 }} {{ 100000.0 * 1000000000000.0 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{{ loop.cycle('x', 'y') }}{{ loop.revindex }}{% endfor %}", "{% for c in 'añb' %}{{ loop.index }}{{ c }}{% endfor %}",
    "{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}", "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.length }}{% endfor %}", "{% set x = 1 %}{% for y in [1, 2] %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}", "{% if nobody is not defined and (none is none) %}yes{% endif %}{{ nobody }}",
    "{{ 'a' if false }}|{{ ('a' if false) is defined }}", "{% macro f(a, b=2, c='x' ~ 1) %}{{ a }}{{ b }}{{ c }}{{ d }}{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(a=5, b=6) }}{% set d = 'late' %}{{ f(0) }}",
    "{% set ns = namespace(a=[]) %}{% for i in range(3) %}{% set ns.a = ns.a + [i * 2] %}{% endfor %}{{ ns.a }}{{ range(5, 0, -2) | list }}", "{% macro g(ns) %}{% set ns.x = ns.x + 1 %}{% endmacro %}{% set n = namespace(x=1) %}{{ g(n) }}{{ g(n) }}{{ n.x }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1] }}", "{{ \"}}\" }}{{ '{% if %}' }}{{ {'a': {'b': 1}} }}", "{{ '\\t\\x41\\u00e9\\\\n\\q' }}", "{{ messages[0].role.upper() }}{{ messages[0]['nope'] is defined }}", "{{ true and 'x' or 'y' }}{{ not true }}{{ none or 0 }}",
    "{{ 1 is number }}{{ 1 is integer }}{{ 1.5 is float }}{{ true is boolean }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ 'A' is upper }}{{ 'a' is lower }}{{ 2 is eq 2 }}{{ 2 is gt(1) }}{{ 1 is in [1] }}{{ none is none }}{{ true is true }}{{ 1 is true }}",
    "{{ [[1, 2], [3]] | map('length') | list }}{{ [{'a': {'b': 5}}] | map(attribute='a.b') | list }}", "{{ [1, 2].index(2) }}{{ [1, 1].count(1) }}", "a\n\n", "  {% if true %}\n x\n  {% endif %}\ny\n", "{#- c -#} z {#+ d #}\n w",
    "{{ messages | length }}{{ messages | first | string | length }}{{ (messages | last).role }}", "{% set x %}a{{ 1 }}b{% endset %}{{ x | length }}", "{{ (1, 2) | list }}{{ [1, 2] + [3] }}{{ [1] == [1] }}{{ 'ab' | list }}", "{{ nobody.x }}", "{{ none.x }}|", "{{ none + 1 }}", "{{ 'a' + 1 }}", "{{ [].append(1) }}",
    "{{ 1 in none }}", "{% for x in none %}{% endfor %}", "{{ nobody + 'x' }}", "{% include 'x' %}", "{% call f() %}{% endcall %}", "{{ x | nofilter }}", "{{ 1 is notest }}", "{{ messages[99].role }}", "{{ 5 if messages }}{{ '' | trim | length }}",
]

# What Jinja has and heed refuses by name.
REFUSED = ["{{ [1, 2, 3] | batch(2) | list }}", "{{ 'x'.encode() }}", "{{ cycler(1) }}", "{{ 1e3 }}", "{% include 'x' %}", "{% with x = 1 %}{% endwith %}", "{{ lipsum() }}",
           "{% set a, b = 1, 2 %}", "{% raw %}x{% endraw %}", "{{ 'é'.upper() }}", "{{ [1] | tojson(separators=(',', ':')) }}"]

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather \u00fcber <b> & \"c\".", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "description": "A city."}, "units": {"type": "string", "enum": ["C", "F"], "default": "C"}, "days": {"type": "array", "items": {"type": "integer"}},
    "where": {"type": "object", "properties": {"x": {"type": "number", "default": 1.5}, "y": {"type": ["string", "null"]}}, "required": ["x"]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "n": 1.0, "l": [1, None, True]}}}]}
CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief.\u00a0"}, {"role": "user", "content": " Why?\n"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBecause."}, {"role": "user", "content": "x & y <z> \u00e9 {{ 1 }} '\""}],
    [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "content": "{\"t\": 20}", "tool_call_id": "abcdefghi", "name": "get_weather"}],
    [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "content": "20", "tool_call_id": "abcdefghi"}, {"role": "assistant", "content": "20 degrees", "reasoning_content": "easy"}, {"role": "user", "content": "Thanks"}],
    [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]}],
    [{"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}],
    [{"role": "nobody", "content": {"content": {"a": [1, 2.5, "q'"]}}}],
    [],
]
VARIABLES = [{}, {"tools": TOOLS}, {"enable_thinking": False, "date_string": "1 Jan 2026", "builtin_tools": ["a", "code_interpreter"]}]


def outcome(call):
    try:
        return call()
    except Exception as error:
        return ("refused", f"{type(error).__name__}: {error}")


def rendered_by_transformers(template, messages, prompt, variables):
    more = {key: value for key, value in variables.items() if key != "tools"}
    return render_jinja_template(conversations=[messages], chat_template=template, add_generation_prompt=prompt, tools=variables.get("tools"),
                                 bos_token="<s>", eos_token="</s>", **more)[0][0]


def write(path):
    """Cases for tests/golden/chat_golden_test.cc."""
    templates = {name: text.replace('strftime_now("%Y-%m-%d")', '"2026-01-01"').replace('strftime_now("%d %b %Y")', '"01 Jan 2026"')
                 for name, text in (*TEMPLATES.items(), *((text, text) for text in SMALL))}
    cases = []
    for name, text in templates.items():
        chosen = itertools.product(range(len(CONVERSATIONS)), VARIABLES) if name in TEMPLATES else [(1, {})]
        for conversation, variables in chosen:
            want = outcome(lambda: rendered_by_transformers(text, CONVERSATIONS[conversation], True, variables))
            cases.append({"template": name, "conversation": conversation, "variables": variables, "expected": None if isinstance(want, tuple) else want})
    whole = {"templates": templates, "conversations": CONVERSATIONS, "refused": REFUSED, "cases": cases}
    pathlib.Path(path).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(template, messages, prompt, variables):
    want = outcome(lambda: rendered_by_transformers(template, messages, prompt, variables))
    got = outcome(lambda: heed.ChatTemplate.from_text(template, "<s>", "</s>").render(messages, add_generation_prompt=prompt, **variables))
    same = want == got or (isinstance(want, tuple) and isinstance(got, tuple))
    return same, want, got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", default="")
    options = parser.parse_args()
    if options.write:
        write(options.write)
    count = wrong = 0
    cases = [(name, template, messages, prompt, variables) for (name, template), messages, prompt, variables in itertools.product(
        TEMPLATES.items(), CONVERSATIONS, (True, False), VARIABLES)]
    cases += [(text, text, CONVERSATIONS[1], True, {}) for text in SMALL]
    for name, template, messages, prompt, variables in cases:
        same, want, got = compare(template, messages, prompt, variables)
        count += 1
        if not same:
            wrong += 1
            print(f"DIFFERENT {name!r} {str(messages)[:80]} {list(variables)}\n  transformers {want!r}\n  heed         {got!r}")
    for template in REFUSED:
        got = outcome(lambda: heed.ChatTemplate.from_text(template).render([]))
        count += 1
        if not isinstance(got, tuple):
            wrong += 1
            print(f"NOT REFUSED {template!r} {got!r}")
    print(f"{count} renderings, {wrong} different")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
