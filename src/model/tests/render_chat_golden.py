#!/usr/bin/env python3
"""Prints chat_golden.h: conversations rendered by jinja2 3.1.6 from the template in gguf_builder.c, in the settings of
the transformers package (trim_blocks, lstrip_blocks). usage: render_chat_golden.py > chat_golden.h"""
import ast
import pathlib
import re

import jinja2

CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "Who are you?")],
    [("user", "1"), ("assistant", "2"), ("user", "3")],
    [("user", " spaces  kept \n\n"), ("system", "late"), ("assistant", "")],
    [("assistant", "é 中 \U0001f600 the and {{ 'not' }} {% a template %}"), ("user", "it's 42\r\n")],
    [("system", ""), ("user", "")],
]


def quoted(text):
    """A C string literal, every byte that is not plain as a three-digit octal escape."""
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7f and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def main():
    source = (pathlib.Path(__file__).parent / "gguf_builder.c").read_text()
    literal = re.search(r"tiny_chat_template\[\] =\s*((?:\".*\"\s*)+);", source).group(1)
    template = "".join(ast.literal_eval(line) for line in literal.strip().splitlines())
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    print("/* Made by render_chat_golden.py with jinja2; not written by hand. */")
    print("/* clang-format off */")
    print("static const struct golden {\n\tsize_t count;\n\tstruct {\n\t\tconst char *role, *content;\n\t} message[4];")
    print("\tconst char *rendered;\n} goldens[] = {")
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        rendered = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
        inner = ", ".join(f"{{{quoted(role)}, {quoted(content)}}}" for role, content in conversation)
        print(f"\t{{{len(conversation)}, {{{inner}}},\n\t {quoted(rendered)}}},")
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
